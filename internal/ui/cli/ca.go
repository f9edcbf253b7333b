package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"foldyard/internal/egress/ca"
)

func (a *app) ca() *cobra.Command {
	c := &cobra.Command{
		Use: "ca", Short: "The certificate that boxes trust", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("want fy ca path, pem or rotate") },
	}
	load := func() (*ca.Authority, string, error) {
		h, err := a.layout()
		if err != nil {
			return nil, "", err
		}
		dir := h.Layout.CADir()
		auth, err := ca.LoadOrCreate(dir, a.Now())
		return auth, dir, err
	}
	c.AddCommand(
		a.jsonFlag(&cobra.Command{Use: "path", Short: "Print where it is", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			_, dir, err := load()
			if err != nil {
				return err
			}
			return a.printPath(filepath.Join(dir, "ca.pem"))
		}}),
		&cobra.Command{Use: "pem", Short: "Print it", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			auth, _, err := load()
			if err != nil {
				return err
			}
			_, err = a.Stdout.Write(auth.PEM())
			return err
		}},
		&cobra.Command{Use: "rotate", Short: "Make a new one; running boxes trust the old one until they are made anew", Args: cobra.NoArgs, RunE: hostOnly(func(*cobra.Command, []string) error {
			_, dir, err := load()
			if err != nil {
				return err
			}
			if _, err := ca.Rotate(dir, a.Now()); err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "new certificate made")
			fmt.Fprintln(a.Stdout, a.style.dim("fy down && fy up, in each project, makes boxes use it"))
			return nil
		})},
	)
	return c
}
