package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) supervisor() *cobra.Command {
	c := &cobra.Command{
		Use: "supervisor", Short: "The project's host process", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("want fy supervisor status, restart, logs or stop")
		},
	}
	status := &cobra.Command{
		Use: "status", Short: "Does it run", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := a.running(cmd.Context())
			if err != nil {
				return err
			}
			if c == nil {
				fmt.Fprintln(a.Stdout, "no supervisor runs")
				return &exit{code: exitFailed}
			}
			st, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(st.Supervisor)
			}
			fmt.Fprintf(a.Stdout, "pid %d, for %s, %s\n", st.Supervisor.PID, ago(a.Now(), st.Supervisor.Since), plural(st.Boxes, "box"))
			if st.Supervisor.Binary != control.Binary() {
				fmt.Fprintln(a.Stdout, a.style.yellow("started from another fy; the next command that needs it replaces it"))
			}
			return nil
		},
	}
	restart := &cobra.Command{
		Use: "restart", Short: "Replace it; boxes and session grants go on", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			if err := a.launch(p).Replace(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "supervisor restarted")
			return nil
		}),
	}
	stop := &cobra.Command{
		Use: "stop", Short: "End it, its boxes and session grants", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			c, p, err := a.alive(cmd.Context())
			if err != nil {
				return err
			}
			if c == nil {
				fmt.Fprintln(a.Stdout, "no supervisor runs")
				return nil
			}
			if err := a.launch(p).Stop(cmd.Context(), false); err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "supervisor stopped")
			return nil
		}),
	}
	logs := &cobra.Command{
		Use: "logs", Short: "Print its log", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			f, err := os.Open(p.checkout.Project.SupervisorLog())
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			defer f.Close()
			return a.printEscaped(f)
		},
	}
	c.AddCommand(a.jsonFlag(status), restart, stop, logs)
	return c
}

// printEscaped copies text that may quote a box.
func (a *app) printEscaped(r io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(r, 64<<20))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if _, err := io.WriteString(a.Stdout, escape(line)); err != nil {
			return err
		}
	}
	return nil
}
