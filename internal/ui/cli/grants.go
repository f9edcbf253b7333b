package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) grants() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "grants", Short: "List what boxes may reach", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Grants(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				if got == nil {
					got = []control.Grant{}
				}
				return a.printJSON(got)
			}
			if len(got) == 0 {
				fmt.Fprintln(a.Stdout, "nothing is granted: boxes reach no host")
				fmt.Fprintln(a.Stdout, a.style.dim("fy allow HOST grants one"))
				return nil
			}
			rows := [][]string{{"", "RULE", "LEVEL", "LEFT", "HITS", "FROM", "WHY"}}
			for _, g := range got {
				rows = append(rows, a.grantRow(g))
			}
			table(a.Stdout, "", rows, func(row, col int, cell string) string {
				switch {
				case row == 0:
					return a.style.dim(cell)
				case col == 0 && cell == "deny":
					return a.style.red(cell)
				case col == 0:
					return a.style.green(cell)
				}
				return cell
			})
			return nil
		},
	})
}

func (a *app) grantRow(g control.Grant) []string {
	verdict, left := "allow", ""
	if g.Deny {
		verdict = "deny"
	}
	if g.Expires != nil {
		left = short(g.Expires.Sub(a.Now()))
	}
	level := g.Level
	if g.Internal {
		level += ", internal"
	}
	origin := g.Origin
	if g.Box != "" {
		origin += " (box " + g.Box + ")"
	}
	return []string{verdict, escape(g.Rule), level, left, fmt.Sprint(g.Hits), escape(origin), escape(g.Reason)}
}
