package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *app) version() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{"version": a.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			fmt.Fprintf(a.Stdout, "fy %s (%s %s/%s)\n", a.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	})
}
