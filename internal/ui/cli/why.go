package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) why() *cobra.Command {
	var q control.WhyRequest
	c := &cobra.Command{
		Use: "why URL|HOST[:PORT]", Short: "What would happen to a request, and by which rule", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Target = args[0]
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Why(cmd.Context(), q)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(got)
			} else {
				a.printWhy(got)
			}
			if err == nil && got.Verdict != "allow" && got.Verdict != "would_deny" {
				err = &exit{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().StringVar(&q.Method, "method", "", "the request's method (default GET)")
	c.Flags().StringVar(&q.Box, "box", "", "as the box `ID` would see it")
	return a.jsonFlag(c)
}

func (a *app) printWhy(w control.Why) {
	verdict := a.style.green("allowed")
	switch w.Verdict {
	case "allow":
	case "would_deny":
		verdict = a.style.yellow("let through, though nothing grants it")
	default:
		verdict = a.style.red("refused")
	}
	fmt.Fprintf(a.Stdout, "%s  %s\n", line(w.Target), verdict)
	var rows [][]string
	for _, r := range [][]string{{"rule", w.Rule}, {"reason", w.Reason}, {"from", w.Origin}, {"how", w.Mode}, {"credential", text(w.Credential)}, {"note", w.Note}, {"change", w.Fix}} {
		if r[1] != "" {
			rows = append(rows, []string{r[0], escape(r[1])})
		}
	}
	table(a.Stdout, "  ", rows, func(_, col int, cell string) string {
		if col == 0 {
			return a.style.dim(cell)
		}
		return cell
	})
}
