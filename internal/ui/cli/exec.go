package cli

import (
	"context"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) exec() *cobra.Command {
	var env []string
	var id string
	var raw bool
	c := &cobra.Command{
		Use: "exec [flags] [--] CMD [ARG…]", Short: "Run a command in the running box", Args: cobra.ArbitraryArgs,
		Annotations: map[string]string{"relays": "yes"},
		RunE: hostOnly(func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("fy exec wants a command: fy exec -- CMD")
			}
			return a.execIn(cmd.Context(), id, env, args, raw)
		}),
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringArrayVar(&env, "env", nil, "set `NAME[=VALUE]`; NAME alone passes yours")
	f.StringVar(&id, "box", "", "the box `ID` instead of the long-lived one")
	f.BoolVar(&raw, "raw-terminal", false, "do not filter what the box prints on the terminal")
	return c
}

// execIn runs a command in a box that runs; no argv is the box's shell.
func (a *app) execIn(ctx context.Context, id string, env, argv []string, raw bool) error {
	c, _, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	b, err := c.Enter(ctx, id, control.EnterRequest{Env: a.named(env), Term: a.inherited()})
	if err != nil {
		return err
	}
	if len(argv) == 0 {
		argv = []string{b.Shell}
	}
	code, err := (&relay{a: a, box: b, raw: raw}).run(ctx, argv)
	if err == nil && code != 0 {
		err = &exit{code: code}
	}
	return err
}
