package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) home() *cobra.Command {
	c := &cobra.Command{
		Use: "home", Short: "The kept home of the project's box", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("want fy home path or fy home reset") },
	}
	path := a.jsonFlag(&cobra.Command{
		Use: "path", Short: "Print where it is", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			if p.machine() {
				return fmt.Errorf("the kept home lies in the VM, as the volume fy-home of its engine: fy machine shell")
			}
			return a.printPath(p.checkout.Project.Home())
		},
	})
	reset := &cobra.Command{
		Use: "reset", Short: "Empty it", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			c, _, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.ResetHome(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "home emptied")
			return nil
		}),
	}
	c.AddCommand(path, reset)
	return c
}
