package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/intake/dns"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/machine/lima"
	"foldyard/internal/machine/podman"
)

// vmName is who the VM itself is to the engine: pulls and builds, and the names that it asks for.
const vmName = "vm"

// vmStopTimeout bounds the end of a box in a VM, which an emulated one takes its time for.
const vmStopTimeout = 90 * time.Second

// inVM reports whether the box is a container in the project's machine.
func (b *sandbox) inVM() bool { return b.outURL != "" }

// vm is the project's virtual machine and what serves it on the host. The zero vm has none.
type vm struct {
	step  atomic.Pointer[string] // what it is waited for
	token atomic.Pointer[string] // of the engine's way out

	mu      sync.Mutex // guards what follows; held while the machine comes up or goes
	m       machine.Machine
	report  machine.Report
	band    uint16
	program string // our own, in the machine
	nonce   string // of the engine's token
	table   *dns.Table
	keepers map[string]*container.Keeper
	end     context.CancelFunc // of what serves it; nil: nothing does
}

// isVM reports whether boxes are made in a machine.
func isVM(cfg *config.Effective) bool {
	return cfg.Machine.Backend == config.Lima || cfg.Machine.Backend == config.Podman
}

// onBackend is cfg with the backend that a command names.
func onBackend(cfg *config.Effective, name string) (*config.Effective, error) {
	if name == "" || name == cfg.Machine.Backend {
		return cfg, nil
	}
	if name != config.Namespace && name != config.Lima && name != config.Podman {
		return nil, bad("--backend %s: want namespace, lima or podman", name)
	}
	c := *cfg
	c.Machine.Backend, c.Machine.Firewall = name, name == config.Lima
	return &c, nil
}

// newMachine is the backend's machine, or why this computer has none.
func (s *Supervisor) newMachine(ctx context.Context, backend string) (machine.Machine, error) {
	var m machine.Machine
	var err error
	h := s.opt.Host
	h.Getenv = s.opt.Getenv
	switch backend {
	case config.Lima:
		m, err = lima.New(ctx, limaOptions(h, s.opt.Project.Name))
	case config.Podman:
		m, err = podman.New(ctx, podmanOptions(h, s.opt.Project.Name))
	default:
		return nil, &control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("the %s backend has no machine", backend), Hint: `set [machine] backend = "lima"`}
	}
	var e *machine.Error
	if errors.As(err, &e) && strings.HasSuffix(e.Detail, " is not installed") {
		e.Fix += "; if it is there, fy supervisor restart: it looks in the PATH that it was started with"
	}
	return m, vmError(err)
}

// vmError gives an error of the machine's the form in which the API tells it.
func vmError(err error) error {
	var e *machine.Error
	if errors.As(err, &e) {
		return &control.Error{Code: control.CodeHost, Detail: err.Error(), Hint: e.Fix}
	}
	return err
}

// boxError is an error of the machine's engine, with what mends it where that can be told. What the engine says is the machine's word.
func boxError(err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch text := strings.ToLower(err.Error()); {
	case strings.Contains(text, "no space left on device"):
		hint = lima.RoomFix
	case strings.HasPrefix(text, "pull "):
		hint = "fy log --denied says what was refused, fy allow permits a registry; [box] rootfs needs none"
	default:
		return vmError(err)
	}
	return &control.Error{Code: control.CodeHost, Detail: err.Error(), Hint: hint}
}

// host is the machine as a box's container needs it.
func (v *vm) host() container.Host {
	return container.Host{
		Argv: func(argv []string) []string { return v.m.Argv(machine.Command{Argv: argv}) },
		Run: func(ctx context.Context, in io.Reader, argv ...string) ([]byte, error) {
			return v.m.Run(ctx, machine.Command{Argv: argv, Stdin: in})
		},
	}
}

// vmUp brings the machine up, and what it needs on the host. The caller holds s.vm.mu.
func (s *Supervisor) vmUp(ctx context.Context, cfg *config.Effective) error {
	v := &s.vm
	defer v.step.Store(nil)
	say := func(line string) {
		v.step.Store(&line)
		s.log.Info("machine", slog.String("step", line))
	}
	if err := s.vmChoose(ctx, cfg.Machine.Backend); err != nil {
		return err
	}
	band, err := s.opt.Host.Layout.Band(ctx, s.opt.Project.Name)
	if err != nil {
		return err
	}
	if band != v.band && v.end != nil { // what is served is on the ports of the old one
		v.end()
		v.end = nil
	}
	v.band = band
	share, name, err := s.share()
	if err != nil {
		return err
	}
	v.program = machine.SharePath + "/" + name
	spec := imageSpec(cfg)
	spec.Repo, spec.Share, spec.UID, spec.CA = s.opt.Dir, share, os.Geteuid(), string(s.authority.PEM())
	spec.Band, spec.Services, spec.DNS, spec.SSH = v.band, state.PortServices, v.band+state.PortDNS, v.band+state.PortSSH
	if v.end == nil {
		if err := s.vmServe(); err != nil {
			return err
		}
	}
	was := v.report
	report, err := v.m.Up(ctx, spec, say)
	if err != nil {
		if st, serr := v.m.State(context.WithoutCancel(ctx)); serr == nil && st.State != machine.Running {
			s.vmLost()
		}
		return vmError(err)
	}
	if v.report = report; report.BootID != was.BootID { // what ran before this boot is gone
		s.vmLost()
		v.report = report
	}
	if v.report != was {
		t := token(v.nonce, v.report.BootID)
		v.token.Store(&t)
		s.guardTokens()
		say("tells the VM's engine its way out")
		if err := container.Proxy(ctx, v.host(), v.wayOut(v.nonce, v.band+state.PortEngine)); err != nil {
			return err
		}
	}
	return nil
}

// vmChoose makes the backend's machine the project's. There is one at a time: what serves a box asks the project's machine for it. The
// caller holds s.vm.mu.
func (s *Supervisor) vmChoose(ctx context.Context, backend string) error {
	v := &s.vm
	if v.m != nil && v.m.Kind() == backend {
		return nil
	}
	if v.m != nil && slices.ContainsFunc(s.running(), (*sandbox).inVM) {
		return &control.Error{Code: control.CodeConflict, Detail: fmt.Sprintf("a box of the %s backend runs, and a project has one VM at a time", v.m.Kind()), Hint: "fy down"}
	}
	m, err := s.newMachine(ctx, backend)
	if err != nil {
		return err
	}
	if v.m != nil {
		if err := v.m.Stop(ctx); err != nil {
			return vmError(err)
		}
		s.vmLost()
	}
	v.m = m
	return nil
}

// vmLost gives up what ran in a machine that does not run any more. The caller holds s.vm.mu.
func (s *Supervisor) vmLost() {
	s.vm.report = machine.Report{}
	s.vm.token.Store(nil)
	for id, k := range s.vm.keepers {
		k.Gone()
		delete(s.vm.keepers, id)
	}
}

// vmStop ends the project's machine, also one that a supervisor before this one left running.
func (s *Supervisor) vmStop(ctx context.Context) error {
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	return s.vmEnd(ctx)
}

// vmIdle ends the machine if no box is in it. The caller holds s.vm.mu, as does who makes one: it is in the machine, or not begun.
func (s *Supervisor) vmIdle(ctx context.Context) error {
	if slices.ContainsFunc(s.running(), (*sandbox).inVM) {
		return nil
	}
	return s.vmEnd(ctx)
}

// vmEnd ends the machine. The caller holds s.vm.mu.
func (s *Supervisor) vmEnd(ctx context.Context) error {
	if s.vm.m == nil {
		cfg := s.cfg.Load()
		if !isVM(cfg) {
			return nil
		}
		m, err := s.newMachine(ctx, cfg.Machine.Backend)
		if err != nil {
			return nil //nolint:nilerr // a computer that cannot have one has none
		}
		s.vm.m = m
	}
	s.vm.report = machine.Report{}
	s.vm.token.Store(nil)
	err := s.vm.m.Stop(ctx)
	if err == nil { // nothing runs from an old program of ours any more
		old, _ := filepath.Glob(filepath.Join(s.opt.Project.Dir, "guest", "fy*")) // the pattern is ours
		for _, f := range old {
			_ = os.Remove(f) // one that stays costs space
		}
	}
	return vmError(err)
}
