package cli

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) machine() *cobra.Command {
	c := &cobra.Command{Use: "machine", Short: "The project's virtual machine", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return usagef("fy machine wants one of: status, stop, rm, shell, host-firewall")
	}}
	op := func(name, short, op, done string) *cobra.Command {
		return a.jsonFlag(&cobra.Command{Use: name, Short: short, Args: cobra.NoArgs, RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			m, err := a.askMachine(cmd.Context(), op)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(m)
			}
			if done != "" {
				fmt.Fprintln(a.Stdout, done)
				return nil
			}
			a.printMachine(m)
			return nil
		})})
	}
	c.AddCommand(
		op("status", "What the machine is, as a connection shows it", "", ""),
		op("stop", "End the boxes in the machine, and stop it", control.MachineStop, "the machine is stopped"),
		op("rm", "Delete the machine with its disk", control.MachineRemove, "the machine is removed"),
		&cobra.Command{Use: "shell", Short: "A terminal in the machine, outside the box, as its user", Args: cobra.NoArgs, RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			m, err := a.askMachine(cmd.Context(), control.MachineShell)
			if err != nil {
				return err
			}
			sh := exec.CommandContext(cmd.Context(), m.Argv[0], m.Argv[1:]...)
			sh.Stdin, sh.Stdout, sh.Stderr = a.Stdin, a.Stdout, a.Stderr
			err = sh.Run()
			if code := sh.ProcessState.ExitCode(); err != nil && code > 0 {
				return &exit{code: code}
			}
			return err
		})},
		a.hostFirewall(),
	)
	return c
}

func (a *app) askMachine(ctx context.Context, op string) (control.Machine, error) {
	c, _, err := a.connect(ctx)
	if err != nil {
		return control.Machine{}, err
	}
	defer c.Close()
	return c.Machine(ctx, control.MachineRequest{Op: op})
}

func (a *app) printMachine(m control.Machine) {
	rows := [][]string{{"machine", m.State}, {"backend", m.Backend}}
	for _, r := range [][]string{{"why", m.Why}, {"waits for", m.Step}, {"walled ids", m.Walled}} {
		if r[1] != "" {
			rows = append(rows, []string{r[0], escape(r[1])})
		}
	}
	table(a.Stdout, "", rows, func(_, col int, cell string) string {
		if col == 0 {
			return a.style.dim(cell)
		}
		return cell
	})
}

func (a *app) hostFirewall() *cobra.Command {
	var uninstall bool
	c := a.jsonFlag(&cobra.Command{
		Use: "host-firewall", Short: "Render the host's firewall for the machine, with the commands that apply it", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			m, err := a.askMachine(cmd.Context(), control.MachineHostFirewall)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(m)
			}
			commands := m.Install
			if uninstall {
				commands = m.Uninstall
			} else {
				for _, f := range m.Files {
					fmt.Fprintf(a.Stdout, "%s\n%s\n", a.style.bold("# "+f.Path), f.Text)
				}
			}
			fmt.Fprintf(a.Stdout, "%s\ncd %s\n", a.style.bold("# foldyard never elevates itself: read this, then run"), m.Dir)
			for _, line := range commands {
				fmt.Fprintln(a.Stdout, line)
			}
			a.say("rendered; starting the VM below that slice, and probing it, is not built yet: this ring stays unavailable")
			return &exit{code: exitFailed}
		}),
	})
	c.Flags().BoolVar(&uninstall, "uninstall", false, "print how to remove it")
	return c
}

// making tells, while a box is made, what its machine is waited for. The result ends that.
func (a *app) making(ctx context.Context, p *project) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := control.NewClient(p.checkout.Project.ControlSocket())
		defer c.Close()
		t := time.NewTicker(time.Second)
		defer t.Stop()
		last := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			st, err := c.Status(ctx)
			if err == nil && st.Machine != "" && st.Machine != last {
				last = st.Machine
				a.say("%s", escape(last))
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
