package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"foldyard/internal/egress/policy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/ui/term"
)

func (a *app) config() *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "foldyard.toml: check, show, adopt", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("want fy config check, show, diff, adopt, revert or schema")
		},
	}
	c.AddCommand(a.configCheck(), a.configShow(), a.configDiff(), a.configAdopt(), a.configRevert(), a.configSchema())
	return c
}

// checked is what fy config check --json prints.
type checked struct {
	OK       bool          `json:"ok"`
	Faults   config.Faults `json:"faults"`
	Warnings config.Faults `json:"warnings"`
}

func (a *app) configCheck() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "check", Short: "Say what is wrong with foldyard.toml and config.toml", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			e, err := p.host.Check(p.checkout)
			faults, wrong := errors.AsType[config.Faults](err)
			if err != nil && !wrong {
				return err
			}
			if a.json {
				out := checked{OK: !wrong, Faults: append(config.Faults{}, faults...), Warnings: config.Faults{}}
				if !wrong {
					out.Warnings = append(out.Warnings, e.Warnings...)
				}
				if err := a.printJSON(out); err != nil || !wrong {
					return err
				}
				return &exit{code: exitFailed}
			}
			if wrong {
				for _, f := range faults {
					fmt.Fprintln(a.Stdout, line(f.String()))
				}
				return &exit{exitFailed, fmt.Errorf("%s", plural(len(faults), "fault"))}
			}
			for _, w := range e.Warnings {
				fmt.Fprintf(a.Stdout, "%s %s\n", a.style.yellow("warning:"), line(w.String()))
			}
			fmt.Fprintln(a.Stdout, "ok")
			return nil
		},
	})
}

func (a *app) configShow() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "show", Short: "Effective values, and where each comes from", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			e, err := p.host.Load(p.checkout)
			if err != nil {
				return err
			}
			values := e.Values()
			if a.json {
				return a.printJSON(values)
			}
			if p.checkout.Notice != "" {
				a.say("%s", p.checkout.Notice)
			}
			var rows [][]string
			for _, v := range values {
				rows = append(rows, []string{v.Key, escape(fmt.Sprint(v.Value)), escape(v.Origin)})
			}
			table(a.Stdout, "", rows, func(_, col int, cell string) string {
				if col == 2 {
					return a.style.dim(cell)
				}
				return cell
			})
			return nil
		},
	})
}

func (a *app) configDiff() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "diff", Short: "What changed since it was adopted", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			d, err := p.host.Drift(p.checkout)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(d)
			} else {
				err = writeAll(a.Stdout, d.Diff)
			}
			if err == nil && d.Different {
				err = &exit{code: exitFailed}
			}
			return err
		},
	})
}

func (a *app) configAdopt() *cobra.Command {
	var move bool
	c := &cobra.Command{
		Use: "adopt", Short: "Obey foldyard.toml as it is now", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			prop, err := p.host.Propose(p.checkout)
			if err != nil {
				return err
			}
			if prop.Same && prop.BoundTo == "" {
				fmt.Fprintln(a.Stdout, "adopted already, unchanged")
				return a.reload(cmd.Context(), p, p.checkout.Project) // config.toml may be another one
			}
			a.showProposal(a.Stdout, prop)
			if term.IsTerminal(a.Stdin) {
				yes, err := a.confirm("adopt it?")
				if err != nil {
					return err
				}
				if !yes {
					return &exit{exitFailed, errors.New("not adopted")}
				}
			}
			return a.adopt(cmd.Context(), p, prop, move)
		}),
	}
	c.Flags().BoolVar(&move, "move", false, "take the name over from another checkout")
	return c
}

// showProposal prints what would be adopted: what it newly permits first, then exactly its bytes.
func (a *app) showProposal(w io.Writer, p *config.Proposal) {
	if p.BoundTo != "" {
		fmt.Fprintf(w, "the name %s belongs to the checkout at %s\n", line(p.Name), line(p.BoundTo))
	}
	if len(p.Widenings) == 0 {
		fmt.Fprintln(w, "it permits nothing new")
	} else {
		fmt.Fprintln(w, "it newly permits:")
		for _, l := range p.Widenings {
			fmt.Fprintf(w, "  %s %s\n", a.style.yellow("+"), line(l))
		}
	}
	for _, f := range p.Effective.Warnings {
		fmt.Fprintf(w, "%s %s\n", a.style.yellow("warning:"), line(f.String()))
	}
	fmt.Fprintf(w, "\n%s\n", indent(p.Text()))
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  │ " + line)
	}
	return b.String()
}

func why(text string) string {
	if text == "" {
		return ""
	}
	return "  (" + line(text) + ")"
}

// confirm asks on the terminal. Enter means no.
func (a *app) confirm(question string) (bool, error) {
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(a.Stdin, 1024)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// adopt stores the proposal, and has a supervisor that runs follow it.
func (a *app) adopt(ctx context.Context, p *project, prop *config.Proposal, move bool) error {
	next, err := prop.Adopt(a.Now(), move)
	if _, elsewhere := errors.AsType[*state.BoundElsewhereError](err); elsewhere {
		return hint(err, "fy config adopt --move")
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "adopted for project %s\n", line(next.Project.Name))
	for _, r := range prop.Effective.Proxy.Recommend {
		if rule, err := policy.ParseRule(r.Host); err == nil { // canonical: never the file's own text
			fmt.Fprintf(a.Stdout, "it asks for: fy allow --permanent %s%s\n", control.ShellQuote(rule.String()), a.style.dim(why(r.Why)))
		}
	}
	if err := a.confirmSecrets(ctx, &project{p.host, next}, prop.Effective); err != nil {
		return err
	}
	return a.reload(ctx, p, next.Project)
}

// reload has a supervisor that runs follow the configuration of what is project next from now on.
func (a *app) reload(ctx context.Context, p *project, next state.Project) error {
	old := control.NewClient(p.checkout.Project.ControlSocket())
	defer old.Close()
	if next.Name != p.checkout.Project.Name {
		if _, err := old.Status(ctx); err == nil {
			a.say("project %s still has a supervisor: it stops when its boxes have ended", p.checkout.Project.Name)
		}
		return nil
	}
	got, err := old.Reload(ctx)
	if control.NotRunning(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(got.Restart) > 0 {
		if err := a.launch(p).Replace(ctx); err != nil {
			return err
		}
	}
	if got.Machine {
		a.say("[machine] holds once the VM is started anew: fy up")
	}
	if len(got.Boxes) > 0 {
		a.say("%s hold for boxes made from now on: fy down && fy up", strings.Join(got.Boxes, " and "))
	}
	return nil
}

func (a *app) configRevert() *cobra.Command {
	return &cobra.Command{
		Use: "revert", Short: "Put the adopted file back into the project", Args: cobra.NoArgs,
		RunE: hostOnly(func(*cobra.Command, []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			kept, err := p.host.Revert(p.checkout, a.Now())
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "foldyard.toml is what was adopted")
			if kept != "" {
				a.say("what was there is kept at %s", kept)
			}
			return nil
		}),
	}
}

func (a *app) configSchema() *cobra.Command {
	var operator bool
	c := &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of foldyard.toml", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := config.Schema()
			if operator {
				b = config.OperatorSchema()
			}
			return writeAll(a.Stdout, strings.TrimRight(string(b), "\n"), "\n")
		},
	}
	c.Flags().BoolVar(&operator, "operator", false, "of config.toml instead")
	return a.jsonFlag(c)
}
