package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"foldyard/internal/proof"
)

func (a *app) claims() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "claims", Short: "What foldyard claims, and what shows it", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			evidence, err := proof.Published()
			if err != nil {
				return err
			}
			claims := proof.Hold(proof.Claims(), evidence, a.Now())
			lacking := 0
			for _, c := range claims {
				if c.Lacks != "" {
					lacking++
				}
				if !a.json {
					fmt.Fprintf(a.Stdout, "%s: %s\n    holds against %s\n    %s\n", c.Ring, c.Text, c.Boundary, c.By())
				}
			}
			if a.json {
				if err := a.printJSON(claims); err != nil {
					return err
				}
			}
			if lacking > 0 {
				return &exit{exitFailed, fmt.Errorf("%s without what it needs", plural(lacking, "claim"))}
			}
			return nil
		},
	})
}
