package dialer

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"foldyard/internal/egress/dest"
)

// ownNetwork moves the test into a network namespace of its own and returns
// what runs ip(8) there.
func ownNetwork(t *testing.T) func(args ...string) {
	t.Helper()
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("no iproute2 here")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace without root: %v", err)
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), ip, args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run("link", "set", "lo", "up")
	return run
}

// A20: an address that the computer gets and loses between two dials.
func TestOwnAddressComesAndGoes(t *testing.T) {
	run := ownNetwork(t)
	d := New(Config{})
	for _, s := range []string{"203.0.113.9", "2001:db8:1::9"} {
		a := netip.MustParseAddr(s)
		check := func() error {
			g := d.guard(dest.Target{Host: dest.HostFromAddr(a), Port: 8080}, false)
			return g.check(a)
		}
		if err := check(); err != nil {
			t.Fatalf("control: %v", err)
		}
		run("addr", "add", s, "dev", "lo")
		if e := wantKind(t, check(), KindClass); e.Class != dest.ClassOwn {
			t.Errorf("%s: class %v", s, e.Class)
		}
		run("addr", "del", s, "dev", "lo")
		if err := check(); err != nil {
			t.Errorf("%s after it went: %v", s, err)
		}
	}
}

// A20: a whole prefix is local, though no interface has the address.
func TestLocalRouteIsOurselves(t *testing.T) {
	run := ownNetwork(t)
	run("route", "add", "local", "203.0.113.0/24", "dev", "lo")
	run("addr", "add", "192.0.2.9", "dev", "lo")
	l, err := net.Listen("tcp", "0.0.0.0:0") // on this thread, hence in this namespace
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	d := New(Config{Own: none, Limits: Limits{Addrs: 1}})
	for _, s := range []string{"203.0.113.5", "192.0.2.9"} {
		x := dest.Target{Host: dest.HostFromAddr(netip.MustParseAddr(s)), Port: port}
		_, _, err := d.Dial(t.Context(), x, false)
		if e := wantKind(t, err, KindClass); e.Class != dest.ClassOwn {
			t.Errorf("%s: class %v", s, e.Class)
		}
		c, _, err := d.Dial(t.Context(), x, true)
		if err != nil {
			t.Fatalf("control, an internal grant: %v", err)
		}
		c.Close()
	}
}
