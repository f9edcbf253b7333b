package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"foldyard/internal/box/container"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/wall/namespace"
)

// makeVM makes a box of the machine's, and starts the machine first. Nothing but the machine is left behind on an error.
func (s *Supervisor) makeVM(ctx context.Context, cfg *config.Effective, q control.BoxRequest, name string) (_ *sandbox, err error) {
	v := &s.vm
	v.mu.Lock()
	defer v.mu.Unlock()
	// A machine takes minutes to start: what cannot become a box is told before.
	u, err := s.who(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.boxable(cfg); err != nil {
		return nil, err
	}
	if err := s.vmUp(ctx, cfg); err != nil {
		return nil, err
	}
	image, err := s.vmImage(ctx, cfg)
	if err != nil {
		return nil, err
	}
	id, nonce := randomHex(4), randomHex(16)
	rec := state.Box{
		ID: id, Name: name, Nonce: nonce, Socket: s.opt.Project.BoxSocket(id), Created: s.now(), Oneshot: q.Oneshot,
		Backend: cfg.Machine.Backend, Home: q.Home || !q.Oneshot, RO: q.RO,
	}
	rec.Ports = ports(cfg, name)
	l, err := s.vmPort(&rec)
	if err != nil {
		return nil, err
	}
	spec := container.Spec{
		ID: id, Image: image, Repo: s.opt.Dir, ReadOnly: q.RO, User: u.Name, Home: u.Home, KeepHome: rec.Home,
		Root: cfg.Box.Root, Nested: cfg.Box.Nested, Engine: cfg.Box.Engine, UID: os.Geteuid(), Program: v.program,
	}
	var guard *repoGuard
	defer func() {
		if err != nil {
			guard.release(true)
		}
	}()
	if spec.Mounts, err = s.vmMounts(cfg); err == nil && !q.RO {
		if guard, err = guardRepo(s.opt.Dir, cfg.Box.Writable); err == nil {
			spec.Guarded = guard.paths
		}
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	if spec.Files, err = s.vmFiles(id, u, cfg); err != nil {
		_ = l.Close()
		return nil, err
	}
	rec.Boot, rec.Program = v.report.BootID, v.program
	rec.Digest = spec.Digest(v.report.Digest, v.report.Walled)
	defer func() {
		if err != nil {
			_ = l.Close()
			s.forget(context.WithoutCancel(ctx), id, rec.Socket)
		}
	}()
	if len(q.Allow) > 0 {
		if err := s.grantBox(ctx, id, q); err != nil {
			return nil, err
		}
	}
	if err := state.WriteBox(s.opt.Project, rec); err != nil {
		return nil, err
	}
	line := "starts the box's container"
	v.step.Store(&line)
	defer v.step.Store(nil)
	if err := container.Start(ctx, v.host(), spec); err != nil {
		return nil, boxError(err)
	}
	b, err := s.vmKeep(ctx, rec, u, l, guard)
	if err != nil {
		_ = container.Stop(context.WithoutCancel(ctx), v.host(), id) // the first error is the one that counts
		return nil, err
	}
	s.log.Info("box started", slog.String("box", id), slog.String("backend", rec.Backend))
	return b, nil
}

// vmKeep serves a container that runs as the box rec.
func (s *Supervisor) vmKeep(ctx context.Context, rec state.Box, u namespace.User, l *net.TCPListener, guard *repoGuard) (*sandbox, error) {
	v := &s.vm
	k := &container.Keeper{Host: v.host(), ID: rec.ID, Nonce: rec.Nonce, Digest: rec.Digest, Proxy: l}
	if rec.Oneshot && rec.Name != twinName {
		k.LaunchWithin = launchTime
	}
	if err := k.Serve(ctx, rec.Socket); err != nil {
		return nil, err
	}
	v.keepers[rec.ID] = k
	b := s.newSandbox(rec, u)
	b.guard = guard
	b.token, b.outURL, b.table = token(rec.Nonce, v.report.BootID), v.wayOut(rec.Nonce, rec.Port), v.table
	host := v.host()
	b.dial = func(ctx context.Context, port int) (halfCloser, error) {
		return container.Dial(ctx, host, rec.ID, port)
	}
	b.before = marks(s.opt.Dir)
	if err := s.serve(ctx, b); err != nil {
		k.Gone()
		return nil, err
	}
	s.guardTokens()
	return b, nil
}

// vmBack takes a box back that a supervisor before this one left running. One that cannot be is ended: nobody would hold what it must not
// write.
func (s *Supervisor) vmBack(ctx context.Context, rec state.Box) (_ *sandbox, err error) {
	v := &s.vm
	v.mu.Lock()
	defer v.mu.Unlock()
	cfg := s.cfg.Load()
	if rec.Backend != cfg.Machine.Backend {
		return nil, errors.New("the configuration names another backend by now")
	}
	if v.m == nil {
		m, err := s.newMachine(ctx, rec.Backend)
		if err != nil {
			return nil, err
		}
		v.m = m
	}
	host := v.host()
	later := func(f func(context.Context)) {
		s.serving.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), vmStopTimeout)
			defer cancel()
			f(ctx)
		})
	}
	defer func() {
		if err == nil {
			return
		}
		later(func(ctx context.Context) {
			if err := container.Stop(ctx, host, rec.ID); err != nil {
				s.log.Warn("box that was not taken back is not ended", slog.String("box", rec.ID), slog.String("error", err.Error()))
			}
		})
	}()
	// A supervisor must be there at once, and a machine takes its time: what its record says holds until it was looked at.
	if v.end == nil {
		if v.band, err = s.opt.Host.Layout.Band(ctx, s.opt.Project.Name); err != nil {
			return nil, err
		}
		if err := s.vmServe(); err != nil {
			return nil, err
		}
		v.report = machine.Report{BootID: rec.Boot}
		v.program = rec.Program
	}
	if v.report.BootID != rec.Boot {
		return nil, errors.New("its machine has booted since")
	}
	l, err := s.bandListener(rec.Port)
	if err != nil {
		return nil, err
	}
	u, err := s.who(cfg)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	var guard *repoGuard // held on: what it keeps read-only was mounted when the box was made
	if !rec.RO {
		if guard, err = guardRepo(s.opt.Dir, cfg.Box.Writable); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	b, err := s.vmKeep(ctx, rec, u, l, guard)
	if err != nil {
		guard.release(false)
		_ = l.Close()
		return nil, err
	}
	later(func(ctx context.Context) {
		if runs, err := container.Runs(ctx, host, rec.ID); err != nil || !runs {
			s.log.Info("box is gone", slog.String("box", rec.ID), slog.Bool("machine_answers", err == nil))
			s.vmForget(b)
		}
	})
	return b, nil
}

// stands is the long-lived box b if it goes on, nil if it ended. A machine is made what the configuration says first, which ends the
// box when the machine must be stopped for it.
func (s *Supervisor) stands(ctx context.Context, cfg *config.Effective, b *sandbox) (*sandbox, error) {
	if b.rec.Backend != cfg.Machine.Backend {
		return nil, &control.Error{
			Code: control.CodeConflict, Detail: fmt.Sprintf("the box that runs was made by the %s backend, and %s is configured", b.rec.Backend, cfg.Machine.Backend),
			Hint: "fy down, then fy up",
		}
	}
	if !b.inVM() {
		return b, nil
	}
	s.vm.mu.Lock()
	host := s.vm.host()
	// The machine and the container are asked at once: each takes its time to answer.
	var runs bool
	var asking error
	var asked sync.WaitGroup
	askCtx, cancel := context.WithTimeout(ctx, vmStopTimeout)
	defer cancel()
	asked.Go(func() { runs, asking = container.Runs(askCtx, host, b.id) })
	err := s.vmUp(ctx, cfg)
	goes := s.vm.keepers[b.id] != nil
	s.vm.mu.Unlock()
	if err != nil || !goes {
		cancel()
	}
	asked.Wait()
	if err != nil {
		return nil, err
	}
	if goes && asking != nil {
		return nil, asking
	}
	goes = goes && runs
	if goes {
		return b, nil
	}
	s.vmForget(b)
	<-b.ended
	return nil, nil
}

// vmForget gives up a box whose container, or machine, is no longer there.
func (s *Supervisor) vmForget(b *sandbox) {
	s.vm.mu.Lock()
	k := s.vm.keepers[b.id]
	delete(s.vm.keepers, b.id)
	s.vm.mu.Unlock()
	if k != nil {
		k.Gone()
	}
}
