package cli

import "github.com/spf13/cobra"

func (a *app) shell() *cobra.Command {
	var env []string
	var id string
	var raw bool
	c := &cobra.Command{
		Use: "shell", Short: "A terminal in the running box", Args: cobra.NoArgs,
		Annotations: map[string]string{"relays": "yes"},
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			return a.execIn(cmd.Context(), id, env, nil, raw)
		}),
	}
	c.Flags().StringArrayVar(&env, "env", nil, "set `NAME[=VALUE]`; NAME alone passes yours")
	c.Flags().StringVar(&id, "box", "", "the box `ID` instead of the long-lived one")
	c.Flags().BoolVar(&raw, "raw-terminal", false, "do not filter what the box prints on the terminal")
	return c
}
