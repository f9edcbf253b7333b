package supervisor

import (
	"context"
	"fmt"
	"reflect"

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
	if !reflect.DeepEqual(old.Box, next.Box) || old.Machine != next.Machine {
		out.Boxes = append(out.Boxes, "[box]", "[machine]")
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
