package supervisor

import (
	"errors"
	"net"
	"strings"
	"testing"

	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// A token holds for one box and one boot of its machine.
func TestTokenIsOfOneBoxAndOneBoot(t *testing.T) {
	a := token("nonce-a", "boot-1")
	if a != token("nonce-a", "boot-1") || len(a) != 40 {
		t.Errorf("token %q is not stable, or short", a)
	}
	for _, other := range []string{token("nonce-b", "boot-1"), token("nonce-a", "boot-2"), token("nonce-aboot-1", ""), token("", "nonce-aboot-1")} {
		if other == a {
			t.Error("another box or boot has the same token")
		}
	}
	if strings.Contains(a, "nonce") || proxy.TokenUser == "" {
		t.Error("the token shows what it is made of")
	}
}

func TestForeignListenerOnTheBandIsNamed(t *testing.T) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	s := &Supervisor{}
	_, err = s.bandListener(port)
	var e *control.Error
	if !errors.As(err, &e) || e.Hint == "" || !strings.Contains(e.Detail, "process ") {
		t.Errorf("got %v, want the process that listens there", err)
	}
	_ = l.Close()
	got, err := s.bandListener(port)
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	_ = got.Close()
	// A connection that goes out from the port is no listener: what keeps such ports free is told instead.
	far, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	c, err := net.Dial("tcp4", far.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := s.bandListener(uint16(c.LocalAddr().(*net.TCPAddr).Port)); !errors.As(err, &e) || !strings.Contains(e.Hint, "ip_local_reserved_ports") {
		t.Errorf("a connection goes out from it: %v", err)
	}
}

func TestMachineOfAnotherBackendIsRefused(t *testing.T) {
	s := &Supervisor{}
	cfg := &config.Effective{}
	cfg.Machine.Backend = config.Namespace
	s.cfg.Store(cfg)
	if _, err := s.Machine(t.Context(), control.MachineRequest{}); err == nil {
		t.Error("a namespace has a machine")
	}
	if _, err := onBackend(cfg, "docker"); err == nil {
		t.Error("an unknown backend was taken")
	}
	c, err := onBackend(cfg, config.Lima)
	if err != nil || c.Machine.Backend != config.Lima || !c.Machine.Firewall || cfg.Machine.Backend != config.Namespace {
		t.Errorf("--backend lima: %+v, %v", c.Machine, err)
	}
	if state.PortEngine == state.PortProxy {
		t.Error("two services share a port")
	}
}

func TestProcessThatLsofNames(t *testing.T) {
	for out, want := range map[string]string{
		"p123\ncnginx\nf6\n":             `"nginx", process 123`,
		"p1\nca\"b\x1b[1m\np2\ncother\n": `"a\"b\x1b[1m", process 1`,
		"":                               "", "pnone\ncx\n": "",
	} {
		if got := lsofName(out); got != want {
			t.Errorf("%q: %s, want %s", out, got, want)
		}
	}
}
