package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"foldyard/internal/box/container"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// ResetHome empties the kept home. It must be in no box's hands: none that would use it is made meanwhile.
func (s *Supervisor) ResetHome(ctx context.Context) error {
	s.homes.Lock()
	defer s.homes.Unlock()
	if b := s.longLived(); b != nil {
		return &control.Error{Code: control.CodeConflict, Detail: "the box that runs uses the home", Hint: "fy down"}
	}
	if slices.ContainsFunc(s.running(), func(b *sandbox) bool { return b.rec.Home }) {
		return &control.Error{Code: control.CodeConflict, Detail: "a box that runs uses the home", Hint: "wait for its fy run to end"}
	}
	if cfg := s.cfg.Load(); isVM(cfg) {
		return s.resetVMHome(ctx, cfg)
	}
	return emptyHome(s.opt.Project.Home())
}

// resetVMHome removes the volume in the machine that is the kept home there. The machine is started for it, and stopped again.
func (s *Supervisor) resetVMHome(ctx context.Context, cfg *config.Effective) error {
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	err := s.vmUp(ctx, cfg)
	if err == nil {
		err = vmError(container.ResetHome(ctx, s.vm.host()))
	}
	return errors.Join(err, s.vmIdle(context.WithoutCancel(ctx)))
}

// emptyHome removes a home that boxes wrote, and makes it anew. No link in it is followed.
func emptyHome(home string) error {
	err := os.RemoveAll(home)
	if errors.Is(err, fs.ErrPermission) { // tools make directories that not even their owner may write
		openDirs(home)
		err = os.RemoveAll(home)
	}
	if err != nil {
		return fmt.Errorf("empty home: %w", err)
	}
	return state.EnsureDir(home)
}

// openDirs gives the owner back every directory below home.
func openDirs(home string) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return
	}
	defer root.Close()
	var walk func(dir string)
	walk = func(dir string) {
		if err := root.Chmod(dir, 0o700); err != nil {
			return
		}
		f, err := root.Open(dir)
		if err != nil {
			return
		}
		entries, _ := f.ReadDir(-1) // as far as it can be read
		f.Close()
		for _, e := range entries {
			if e.IsDir() {
				walk(filepath.Join(dir, e.Name()))
			}
		}
	}
	walk(".")
}
