package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
	"foldyard/internal/ui/term"
)

func (a *app) up() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "up", Short: "Start the project's box, which stays", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			if err := a.offerAdoption(cmd.Context()); err != nil {
				return err
			}
			c, p, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			made := a.making(cmd.Context(), p)
			b, err := c.CreateBox(cmd.Context(), control.BoxRequest{Term: a.inherited()})
			made()
			if err != nil {
				return err
			}
			for _, n := range b.Notes {
				a.say("%s", n)
			}
			if err := a.offerGrants(cmd.Context(), c); err != nil {
				return err
			}
			if a.json {
				b.Nonce, b.Env = "", nil
				return a.printJSON(b)
			}
			if b.Existed {
				fmt.Fprintf(a.Stdout, "box %s runs already\n", b.ID)
				return nil
			}
			fmt.Fprintf(a.Stdout, "box %s runs\n", b.ID)
			fmt.Fprintln(a.Stdout, a.style.dim("fy shell enters it; fy verify shows what holds; fy down ends it"))
			return nil
		}),
	})
}

// offerAdoption asks, on a terminal only, whether a changed foldyard.toml is to be adopted. Without a terminal it says that
// it changed since it was adopted, and goes on without it.
func (a *app) offerAdoption(ctx context.Context) error {
	p, err := a.project()
	if err != nil {
		return err
	}
	d, err := p.host.Drift(p.checkout)
	if err != nil || !d.Exists || !d.Different {
		return err
	}
	if !term.IsTerminal(a.Stdin) || !term.IsTerminal(a.Stderr) {
		if d.Adopted { // that none was ever adopted is told when the box is made
			a.say("foldyard.toml differs from what was adopted: fy config diff, then fy config adopt")
		}
		return nil
	}
	prop, err := p.host.Propose(p.checkout)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	a.showProposal(a.Stderr, prop)
	yes, err := a.confirm("adopt this configuration?")
	if err != nil || !yes {
		return err
	}
	return a.adopt(ctx, p, prop, false)
}
