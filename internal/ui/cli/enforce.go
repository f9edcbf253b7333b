package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) enforce() *cobra.Command {
	return &cobra.Command{
		Use: "enforce on|off", Short: "The allowlist switch", ValidArgs: []string{"on", "off"},
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: hostOnly(func(cmd *cobra.Command, args []string) error {
			on := args[0] == "on"
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Enforce(cmd.Context(), control.EnforceRequest{On: on})
			if err != nil {
				return err
			}
			for _, n := range got.Notes {
				a.say("%s", n)
			}
			if on {
				fmt.Fprintln(a.Stdout, "the allowlist decides: what is not granted is refused")
				return nil
			}
			fmt.Fprintln(a.Stdout, "the allowlist only watches: boxes reach every public host, and no box counts as locked")
			fmt.Fprintln(a.Stdout, a.style.dim("fy enforce on turns it on again"))
			return nil
		}),
	}
}
