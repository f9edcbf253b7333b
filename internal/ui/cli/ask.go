package cli

import (
	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) ask() *cobra.Command {
	c := &cobra.Command{
		Use: "ask", Short: "Answer one of fy asks", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("want fy ask allow ID or fy ask deny ID") },
	}
	var l levels
	var ans control.Answer
	allow := &cobra.Command{Use: "allow ID", Short: "Grant what the ask wants", Args: cobra.ExactArgs(1)}
	l.add(allow)
	allow.Flags().BoolVar(&ans.Internal, "internal", false, "also where the host's address is private")
	allow.Flags().StringVar(&ans.Reason, "reason", "", "why, kept with the grant")
	allow.RunE = hostOnly(func(cmd *cobra.Command, args []string) error {
		if err := l.fill(&ans.RuleRequest); err != nil {
			return err
		}
		ans.Allow = true
		return a.change(cmd, "allowed", func(c *control.Client) (control.Changed, error) { return c.Answer(cmd.Context(), args[0], ans) })
	})
	deny := &cobra.Command{Use: "deny ID", Short: "Refuse it, from now on without asking", Args: cobra.ExactArgs(1)}
	deny.RunE = hostOnly(func(cmd *cobra.Command, args []string) error {
		return a.change(cmd, "denied", func(c *control.Client) (control.Changed, error) {
			return c.Answer(cmd.Context(), args[0], control.Answer{RuleRequest: control.RuleRequest{Level: "session"}})
		})
	})
	c.AddCommand(a.jsonFlag(allow), a.jsonFlag(deny))
	return c
}
