package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) down() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End the project's box and its session", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			c, p, err := a.alive(cmd.Context())
			if err != nil {
				return err
			}
			if c == nil && p.machine() { // a supervisor that was killed left it running
				c, p, err = a.connect(cmd.Context())
				if err != nil {
					return err
				}
			}
			if c == nil {
				fmt.Fprintln(a.Stdout, "nothing runs")
				return nil
			}
			defer c.Close()
			stopped, err := c.StopBox(cmd.Context(), "")
			if err != nil {
				return err
			}
			if !stopped.Gone {
				fmt.Fprintf(a.Stdout, "box %s ended\n", stopped.ID)
				a.summary(control.Stopped{Changed: stopped.Changed})
			}
			left, err := c.Boxes(cmd.Context())
			if err != nil {
				return err
			}
			if len(left) > 0 {
				a.say("%s of fy run still there; the supervisor stays for them", plural(len(left), "box"))
				return nil
			}
			return a.launch(p).Stop(cmd.Context(), false)
		}),
	}
}
