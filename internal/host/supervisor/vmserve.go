package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/dns"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// token is what a box shows on its way out. It holds for one box and one boot of its machine.
func token(nonce, boot string) string {
	sum := sha256.Sum256([]byte("foldyard box token\x00" + nonce + "\x00" + boot))
	return hex.EncodeToString(sum[:20])
}

// wayOut is the URL of a box's proxy, as the box uses it.
func (v *vm) wayOut(nonce string, port uint16) string {
	return "http://" + proxy.TokenUser + ":" + token(nonce, v.report.BootID) + "@" + netip.AddrPortFrom(v.m.Gateway(), port).String()
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
