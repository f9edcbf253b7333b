package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// unbuilt are the verbs of the contract that this version does not have. They say so, and exit 2.
func unbuilt() []*cobra.Command {
	var out []*cobra.Command
	for _, v := range []struct{ name, short string }{
		{"tui", "Live view with grants"},
		{"web", "Live view in a browser"},
	} {
		out = append(out, &cobra.Command{
			Use: v.name, Short: v.short + " (not built yet)", Hidden: true,
			DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
					return cmd.Help()
				}
				return &exit{exitUsage, fmt.Errorf("fy %s is not built yet", v.name)}
			},
		})
	}
	return out
}
