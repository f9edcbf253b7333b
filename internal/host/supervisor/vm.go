package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/dns"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/machine/lima"
	"foldyard/internal/machine/podman"
	"foldyard/internal/wall/ruleset"
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

// token is what a box shows on its way out. It holds for one box and one boot of its machine.
func token(nonce, boot string) string {
	sum := sha256.Sum256([]byte("foldyard box token\x00" + nonce + "\x00" + boot))
	return hex.EncodeToString(sum[:20])
}

// wayOut is the URL of a box's proxy, as the box uses it.
func (v *vm) wayOut(nonce string, port uint16) string {
	return "http://" + proxy.TokenUser + ":" + token(nonce, v.report.BootID) + "@" + netip.AddrPortFrom(v.m.Gateway(), port).String()
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

// share is the directory that the machine sees read-only, and our program for it in there. Another fy has another name: the machine
// would go on with what it read of the old one.
func (s *Supervisor) share() (dir, name string, err error) {
	data := s.opt.Programs.Guest
	if len(data) == 0 {
		if runtime.GOOS != "linux" {
			return "", "", &control.Error{Code: control.CodeHost, Detail: "this fy was built without its program for Linux, which a VM needs", Hint: "build it with make build"}
		}
		if data, err = os.ReadFile(s.opt.Program); err != nil {
			return "", "", fmt.Errorf("read our own program: %w", err)
		}
	}
	dir = filepath.Join(s.opt.Project.Dir, "guest")
	if err := state.EnsureDir(dir); err != nil {
		return "", "", err
	}
	sum := sha256.Sum256(data)
	name = "fy-" + hex.EncodeToString(sum[:6])
	path := filepath.Join(dir, name)
	if old, err := os.Stat(path); err == nil && old.Size() == int64(len(data)) {
		return dir, name, nil
	}
	return dir, name, state.WriteAtomic(path, data, 0o755)
}

// vmServe opens what the machine reaches on this computer: names, and its engine's way out.
func (s *Supervisor) vmServe() (err error) {
	v := &s.vm
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	engine, err := s.bandListener(v.band + state.PortEngine)
	if err != nil {
		return err
	}
	stream, err := s.bandListener(v.band + state.PortDNS)
	if err != nil {
		_ = engine.Close()
		return err
	}
	packet, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(loopback(v.band+state.PortDNS)))
	if err != nil {
		_, _ = engine.Close(), stream.Close()
		return &control.Error{
			Code: control.CodeHost, Detail: fmt.Sprintf("UDP port %d of this project's band is taken: %v", v.band+state.PortDNS, err),
			Hint: fmt.Sprintf("end the process that ss -ulnp (macOS: lsof -iUDP:%d) shows there; the band is in %s", v.band+state.PortDNS, s.opt.Host.Layout.PortsFile()),
		}
	}
	if v.table == nil {
		v.table = dns.NewTable(0)
	}
	v.nonce = randomHex(16)
	if v.keepers == nil {
		v.keepers = map[string]*container.Keeper{}
	}
	run := func(what string, f func() error) {
		s.serving.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				s.log.Error("machine is not served", slog.String("what", what), slog.String("error", err.Error()))
			}
		})
	}
	names := &dns.Server{
		Table: v.table, Box: vmName, Record: s.recordName, OnAssign: func() {},
		Granted: func(h dest.Host) bool { return s.effective.Snapshot().Granted(h, vmName, s.now()) },
	}
	run("names", func() error { return names.ServeUDP(ctx, packet) })
	run("names", func() error { return names.ServeTCP(ctx, stream) })
	run("engine", func() error {
		// The token changes with each boot: it is asked for when a connection comes.
		return s.engine.ServeProxy(ctx, proxy.BoxWay{ID: vmName, Resolve: v.table.Lookup, Token: v.engineToken}, engine)
	})
	v.end = cancel
	return nil
}

// guardTokens tells the tripwire which tokens there are now. They are for our own ports alone.
func (s *Supervisor) guardTokens() {
	var tokens []string
	if t := s.vm.engineToken(); t != "" {
		tokens = append(tokens, t)
	}
	for _, b := range s.running() {
		if b.token != "" {
			tokens = append(tokens, b.token)
		}
	}
	s.creds.in.Guard(tokens)
}

func (v *vm) engineToken() string {
	if t := v.token.Load(); t != nil {
		return *t
	}
	return ""
}

func loopback(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// bandListener listens on one of the project's own ports. Someone else's listener there is named.
func (s *Supervisor) bandListener(port uint16) (*net.TCPListener, error) {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(loopback(port)))
	if err == nil {
		return l, nil
	}
	detail := fmt.Sprintf("port %d of this project's band is taken", port)
	if who := listener(port); who != "" {
		return nil, &control.Error{Code: control.CodeHost, Detail: detail + " by " + who, Hint: "end that process; the band is in " + s.opt.Host.Layout.PortsFile()}
	}
	return nil, &control.Error{ // Linux gives such ports to connections that go out
		Code: control.CodeHost, Detail: detail + ", and nobody listens there: a connection may go out from it",
		Hint: fmt.Sprintf("try again; to keep it free on Linux: sudo sysctl net.ipv4.ip_local_reserved_ports=%d", port),
	}
}

// vmRelease gives the keepers up; their containers go on.
func (s *Supervisor) vmRelease() {
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	for _, k := range s.vm.keepers {
		k.Gone()
	}
	if s.vm.end != nil {
		s.vm.end()
		s.vm.end = nil
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
