package supervisor

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"

	"foldyard/internal/host/control"
)

// Reload reads the configuration again.
func (s *Supervisor) Reload(ctx context.Context) (control.Reloaded, error) {
	checkout, err := s.opt.Host.Resolve(s.opt.Dir)
	if err != nil {
		return control.Reloaded{}, err
	}
	if checkout.Project.Name != s.opt.Project.Name {
		return control.Reloaded{}, &control.Error{Code: control.CodeConflict, Detail: fmt.Sprintf("this checkout belongs to project %s now", checkout.Project.Name), Hint: "fy down"}
	}
	next, err := s.opt.Host.Load(checkout)
	if err != nil {
		return control.Reloaded{}, err
	}
	old := s.cfg.Load()
	out := control.Reloaded{Changed: next.Digest != old.Digest}
	if !out.Changed {
		s.loadCredentials() // a secret may have been set
		return out, nil
	}
	if !reflect.DeepEqual(old.Upstream, next.Upstream) {
		out.Restart = append(out.Restart, "[upstream]")
	}
	if old.Metrics != next.Metrics {
		out.Restart = append(out.Restart, "[metrics]")
	}
	if old.Log != next.Log {
		out.Restart = append(out.Restart, "[log]")
	}
	if old.Proxy.Ask != next.Proxy.Ask {
		out.Restart = append(out.Restart, "[proxy] ask")
	}
	box := !reflect.DeepEqual(old.Box, next.Box)
	if box {
		out.Boxes = append(out.Boxes, "[box]")
	}
	switch {
	case old.Machine == next.Machine:
	case box || old.Machine.Backend != next.Machine.Backend:
		out.Boxes = append(out.Boxes, "[machine]")
	default:
		out.Machine = isVM(next)
	}
	s.mu.Lock()
	s.checkout = checkout
	s.mu.Unlock()
	s.cfg.Store(next)
	s.loadCredentials()
	s.audit("config", next.Digest)
	if err := s.seed(ctx, next); err != nil {
		return out, err
	}
	return out, s.apply()
}

// operatorFile is config.toml as it was when it was last read.
type operatorFile struct {
	mu   sync.Mutex
	seen os.FileInfo // nil: there was none
}

// look returns the file as it is now, nil if there is none, and whether it is another one than was seen.
func (f *operatorFile) look(path string) (now os.FileInfo, changed bool) {
	now, err := os.Lstat(path)
	if err != nil {
		now = nil // what is wrong with it shows when it is read
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil || now == nil {
		return now, f.seen != now
	}
	return now, !os.SameFile(f.seen, now) || !f.seen.ModTime().Equal(now.ModTime()) || f.seen.Size() != now.Size()
}

func (f *operatorFile) saw(now os.FileInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = now
}

// follow obeys config.toml as it is now, and returns what the operator should know of that.
func (s *Supervisor) follow(ctx context.Context) ([]string, error) {
	now, changed := s.operator.look(s.opt.Host.Layout.OperatorConfig())
	if !changed {
		return nil, nil
	}
	got, err := s.Reload(ctx)
	if err != nil {
		return nil, err
	}
	s.operator.saw(now)
	if len(got.Restart) == 0 {
		return nil, nil
	}
	return []string{strings.Join(got.Restart, " and ") + " of config.toml changed: fy supervisor restart makes it hold"}, nil
}
