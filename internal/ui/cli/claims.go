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
			claims := []proof.Row{}
			if a.json {
				if err := a.printJSON(claims); err != nil {
					return err
				}
			}
			lacking := 0
			rows := [][]string{{"RING", "CLAIM", "BOUNDARY", "SHOWN BY"}}
			for _, c := range claims {
				_ = c
			}
			if !a.json {
				table(a.Stdout, "", rows, nil)
			}
			if lacking > 0 {
				return &exit{exitFailed, fmt.Errorf("%s without what it needs", plural(lacking, "claim"))}
			}
			return nil
		},
	})
}
