package cli

import (
	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) allow() *cobra.Command {
	var l levels
	var q control.RuleRequest
	c := &cobra.Command{
		Use:   "allow RULE…",
		Short: "Let boxes reach a host",
		Long: `Let boxes reach a host. RULE is [METHOD[,METHOD] ][scheme://]HOST[:PORT][/path/glob]; HOST is a name, *.suffix,
an IP or a CIDR. Without a port it means 443 and 80. The grant works from the next request on.`,
		Example: "  fy allow registry.example.com\n  fy allow 'GET api.example.com/v1/*' --permanent\n  fy allow db.example.com:5432 --once --ttl 10m",
		Args:    cobra.MinimumNArgs(1),
	}
	l.add(c)
	c.Flags().BoolVar(&q.Internal, "internal", false, "also where the host's address is private, per host:port")
	c.Flags().StringVar(&q.Reason, "reason", "", "why, kept with the grant")
	c.Flags().StringVar(&q.Box, "box", "", "only for the box `ID`")
	c.Flags().BoolVar(&q.Yes, "yes", false, "also a wildcard over a shared host")
	c.RunE = hostOnly(func(cmd *cobra.Command, args []string) error {
		if err := l.fill(&q); err != nil {
			return err
		}
		q.Rules = args
		return a.change(cmd, "allowed", func(c *control.Client) (control.Changed, error) { return c.Allow(cmd.Context(), q) })
	})
	return a.jsonFlag(c)
}
