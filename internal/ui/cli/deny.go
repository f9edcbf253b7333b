package cli

import (
	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) deny() *cobra.Command {
	var l levels
	var q control.RuleRequest
	c := &cobra.Command{
		Use: "deny RULE…", Short: "Refuse a host, whatever else allows it", Args: cobra.MinimumNArgs(1),
	}
	l.add(c)
	c.Flags().StringVar(&q.Reason, "reason", "", "why, kept with the rule")
	c.RunE = hostOnly(func(cmd *cobra.Command, args []string) error {
		if err := l.fill(&q); err != nil {
			return err
		}
		if !l.session && !l.once {
			q.Level = "permanent" // a refusal that forgets itself would widen by itself
		}
		q.Rules = args
		return a.change(cmd, "denied", func(c *control.Client) (control.Changed, error) { return c.Deny(cmd.Context(), q) })
	})
	return a.jsonFlag(c)
}
