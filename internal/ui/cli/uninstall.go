package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
	"foldyard/internal/ui/term"
)

func (a *app) uninstall() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "uninstall", Short: "List what foldyard left on this computer, and remove it after asking", Args: cobra.NoArgs,
		RunE: hostOnly(func(cmd *cobra.Command, _ []string) error {
			h, err := a.layout()
			if err != nil {
				return err
			}
			var rows [][]string
			var dirs []string
			for _, d := range append(h.Layout.Dirs(), h.Layout.RuntimeDir) {
				if info, err := os.Lstat(d); err == nil && info.IsDir() {
					dirs = append(dirs, d)
					rows = append(rows, []string{d, size(used(d))})
				}
			}
			if len(dirs) == 0 {
				fmt.Fprintln(a.Stdout, "foldyard left nothing on this computer")
				return nil
			}
			table(a.Stdout, "", rows, nil)
			fmt.Fprintf(a.Stdout, "the program itself is %s\n", a.Program)
			if !yes {
				if !term.IsTerminal(a.Stdin) {
					a.say("nothing removed: fy uninstall --yes removes it")
					return nil
				}
				if yes, err = a.confirm("remove these directories, with grants, logs, secrets, homes and virtual machines?"); err != nil || !yes {
					return err
				}
			}
			projects, _ := filepath.Glob(filepath.Join(h.Layout.ProjectsDir(), "*")) // the pattern is ours
			for _, dir := range projects {
				p, err := h.Layout.Project(filepath.Base(dir))
				if err != nil {
					continue
				}
				l := control.Launch{Socket: p.ControlSocket(), Lock: p.SupervisorLock()}
				if err := l.Stop(cmd.Context(), false); err != nil && !control.NotRunning(err) {
					return fmt.Errorf("stop the supervisor of %s: %w", p.Name, err)
				}
			}
			if a.RemoveMachines != nil {
				if err := a.RemoveMachines(cmd.Context(), h, func(line string) { a.say("%s", line) }); err != nil {
					return fmt.Errorf("remove virtual machines: %w", err)
				}
			}
			for _, d := range dirs {
				if err := os.RemoveAll(d); err != nil {
					return err
				}
				fmt.Fprintf(a.Stdout, "removed %s\n", d)
			}
			return nil
		}),
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove without asking")
	return c
}

// used adds up the files below dir, as far as they can be seen.
func used(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // what cannot be read is not counted
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}
