package cli

import (
	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) revoke() *cobra.Command {
	var q control.RuleRequest
	c := &cobra.Command{
		Use: "revoke RULE…", Short: "Remove a rule, and close what it let through", Args: cobra.MinimumNArgs(1),
	}
	c.Flags().StringVar(&q.Box, "box", "", "only for the box `ID`")
	c.RunE = hostOnly(func(cmd *cobra.Command, args []string) error {
		q.Rules = args
		return a.change(cmd, "revoked", func(c *control.Client) (control.Changed, error) { return c.Revoke(cmd.Context(), q) })
	})
	return a.jsonFlag(c)
}
