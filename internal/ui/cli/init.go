package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"foldyard/internal/host/config"
)

func (a *app) initialise() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "init", Short: "Write a commented foldyard.toml", Args: cobra.NoArgs,
		RunE: hostOnly(func(*cobra.Command, []string) error {
			_, dir, err := a.discover()
			if err != nil {
				return err
			}
			path, err := config.Init(dir, force)
			if errors.Is(err, fs.ErrExist) {
				return hint(err, "fy init --force replaces it")
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Stdout, "wrote %s\n", path)
			fmt.Fprintln(a.Stdout, a.style.dim("edit it, then: fy config adopt"))
			return nil
		}),
	}
	c.Flags().BoolVar(&force, "force", false, "replace one that is there")
	return c
}
