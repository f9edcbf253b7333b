package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) learn() *cobra.Command {
	var window time.Duration
	c := &cobra.Command{
		Use: "learn", Short: "A window that lets through and notes; it ends by itself", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			if window <= 0 || window > 24*time.Hour {
				return usagef("--for %s: want up to 24h", window)
			}
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Learn(cmd.Context(), control.LearnRequest{For: control.Duration(window)})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(got)
			}
			end := a.Now().Add(window)
			if got.Until != nil {
				end = *got.Until
			}
			fmt.Fprintf(a.Stdout, "learning until %s: boxes reach every public host, and no box counts as locked\n", end.Local().Format("15:04:05"))
			fmt.Fprintln(a.Stdout, a.style.dim("fy learn review shows what was used; fy enforce on ends it now"))
			return nil
		}),
	}
	c.Flags().DurationVar(&window, "for", time.Hour, "how long")
	var q control.ReviewRequest
	var l levels
	review := &cobra.Command{
		Use: "review", Short: "What was learnt; --yes grants it", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			var r control.RuleRequest
			if err := l.fill(&r); err != nil {
				return err
			}
			if !l.once && !l.session {
				r.Level = "permanent"
			}
			q.Level, q.TTL = r.Level, r.TTL
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Review(cmd.Context(), q)
			if err != nil {
				return err
			}
			return a.printReview(got, q.Yes)
		}),
	}
	review.Flags().BoolVar(&q.Yes, "yes", false, "grant all of it (default permanent)")
	l.add(review)
	c.AddCommand(a.jsonFlag(review))
	return a.jsonFlag(c)
}

func (a *app) printReview(l control.Learning, yes bool) error {
	if a.json {
		return a.printJSON(l)
	}
	if len(l.Learnt) == 0 && len(l.Granted) == 0 {
		fmt.Fprintln(a.Stdout, "nothing was learnt that is not granted already")
		return nil
	}
	for _, r := range l.Granted {
		fmt.Fprintf(a.Stdout, "allowed %s\n", line(r))
	}
	var rows [][]string
	for _, r := range l.Learnt {
		rows = append(rows, []string{escape(r.Rule), plural(int(r.Count), "time")})
	}
	table(a.Stdout, "", rows, nil)
	if !yes {
		fmt.Fprintln(a.Stdout, a.style.dim("fy learn review --yes grants them all; fy allow RULE grants one"))
	}
	return nil
}
