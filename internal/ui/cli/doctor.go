package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) doctor() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "doctor", Short: "Can this computer do it, and how to make it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("not wired yet")
		},
	})
}
