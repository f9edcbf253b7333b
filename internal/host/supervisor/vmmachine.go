package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// Machine answers for the project's machine; see control.Service.
func (s *Supervisor) Machine(ctx context.Context, q control.MachineRequest) (control.Machine, error) {
	cfg := s.cfg.Load()
	if !isVM(cfg) {
		return control.Machine{}, &control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("the %s backend has no machine", cfg.Machine.Backend), Hint: `set [machine] backend = "lima"`}
	}
	if q.Op == control.MachineHostFirewall {
		return s.hostFirewall(ctx, cfg)
	}
	if step := s.vm.step.Load(); step != nil {
		if q.Op == "" {
			return control.Machine{Backend: cfg.Machine.Backend, State: "starting", Step: *step}, nil
		}
		return control.Machine{}, &control.Error{Code: control.CodeConflict, Detail: "the machine comes up: " + *step, Hint: "wait for it"}
	}
	if q.Op != "" && q.Op != control.MachineShell {
		for _, b := range s.running() {
			if b.inVM() {
				s.mustEnd(ctx, b)
			}
		}
	}
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	if s.vm.m == nil {
		m, err := s.newMachine(ctx, cfg.Machine.Backend)
		if err != nil {
			return control.Machine{}, err
		}
		s.vm.m = m
	}
	var err error
	out := control.Machine{Backend: cfg.Machine.Backend}
	switch q.Op {
	case "":
	case control.MachineStop:
		s.vm.report = machine.Report{}
		s.vm.token.Store(nil)
		err = s.vm.m.Stop(ctx)
	case control.MachineRemove:
		s.vm.report = machine.Report{}
		s.vm.token.Store(nil)
		err = s.vm.m.Remove(ctx)
	case control.MachineShell:
		out.Argv = s.vm.m.Argv(machine.Command{Argv: []string{"bash", "-l"}, TTY: true})
	default:
		return control.Machine{}, bad("machine: unknown request %q", q.Op)
	}
	if err != nil {
		return control.Machine{}, vmError(err)
	}
	st, err := s.vm.m.State(ctx)
	if err != nil {
		return control.Machine{}, vmError(err)
	}
	out.State, out.Why, out.Walled = string(st.State), st.Why, s.vm.report.Walled
	if q.Op == control.MachineShell && st.State != machine.Running {
		return control.Machine{}, &control.Error{Code: control.CodeNoBox, Detail: "the machine is " + out.State, Hint: "fy up"}
	}
	return out, nil
}

// hostFirewall renders the host's table for the machine. The operator applies it: foldyard never elevates itself.
func (s *Supervisor) hostFirewall(ctx context.Context, cfg *config.Effective) (control.Machine, error) {
	if runtime.GOOS != "linux" || cfg.Machine.Backend != config.Lima {
		return control.Machine{}, &control.Error{Code: control.CodeBad, Detail: "the host firewall is for lima on Linux", Hint: "fy doctor"}
	}
	band, err := s.opt.Host.Layout.Band(ctx, s.opt.Project.Name)
	if err != nil {
		return control.Machine{}, err
	}
	uid := strconv.Itoa(os.Geteuid())
	name := instanceName(s.opt.Project.Name)
	h := ruleset.Host{
		Name: name, UID: os.Geteuid(), Slice: "user.slice/user-" + uid + ".slice/user@" + uid + ".service/" + ruleset.SliceUnit(name),
		Services: ruleset.Ports{First: band, Last: band + state.PortServices - 1}, DNS: band + state.PortDNS,
	}
	r, err := h.Render()
	if err != nil {
		return control.Machine{}, bad("%v", err)
	}
	dir := s.opt.Project.HostFirewallDir()
	if err := state.EnsureDir(dir); err != nil {
		return control.Machine{}, err
	}
	out := control.Machine{Backend: cfg.Machine.Backend, Dir: dir, Install: r.Install, Uninstall: r.Uninstall}
	for _, f := range r.Files {
		if err := state.WriteAtomic(filepath.Join(dir, f.Name), []byte(f.Text), 0o644); err != nil {
			return control.Machine{}, err
		}
		out.Files = append(out.Files, control.MachineFile{Name: f.Name, Path: f.Path, Text: f.Text})
	}
	return out, nil
}
