package testkit

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// marker is set in the process that runs in a lab.
const marker = "FY_TESTKIT_LAB"

// Main runs setup and then the tests of m, in a network namespace of their own
// that has nothing but loopback until Open: nothing that they do can reach a
// real network. It needs no root: an ordinary user gets a user namespace around
// it. done, if not nil, is called at the end.
func Main(m *testing.M, setup func() (done func(), err error)) int {
	if os.Getenv(marker) != "" {
		return Run(m, setup)
	}
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_ADMIN}
	}
	err := cmd.Run()
	if cmd.ProcessState != nil {
		return cmd.ProcessState.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "testkit: start the lab:", err)
	return 1
}

// Lab is a computer on a small internet. The computer is the namespace that the
// test runs in: loopback, and one link. At the link's other end is a second
// namespace, where every address of the world is the test's.
type Lab struct {
	calls chan func()
	far   int // the far namespace
}

// Open makes the lab. It lasts as long as the test process.
func Open() (*Lab, error) {
	l := &Lab{calls: make(chan func())}
	made := make(chan error)
	go l.serve(made)
	if err := <-made; err != nil {
		return nil, err
	}
	if err := l.link(); err != nil {
		return nil, fmt.Errorf("link the lab: %w", err)
	}
	if err := l.Far(world); err != nil {
		return nil, fmt.Errorf("make the far end: %w", err)
	}
	// What the test starts is an ordinary user's: no capability passes on.
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); e != 0 {
		return nil, fmt.Errorf("clear ambient capabilities (with cgo it cannot be: CGO_ENABLED=0): %w", e)
	}
	return l, nil
}

// serve is the thread that stays in the far namespace.
func (l *Lab) serve(made chan<- error) {
	runtime.LockOSThread() // for good
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		made <- fmt.Errorf("unshare the network: %w", err)
		return
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	l.far = fd
	made <- err
	for call := range l.calls {
		call()
	}
}

// Far calls f in the far namespace. A socket that it opens stays there; a
// goroutine that it starts does not.
func (l *Lab) Far(f func() error) error {
	done := make(chan error)
	l.calls <- func() { done <- f() }
	return <-done
}

// Addresses of the two ends, all from documentation ranges.
const (
	near4, far4 = "198.51.100.1", "198.51.100.2"
	near6, far6 = "2001:db8:ffff::1", "2001:db8:ffff::2"
)

func (l *Lab) link() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "down0", PeerNamespace: netlink.NsFd(l.far)}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := up("lo"); err != nil {
		return err
	}
	if err := up("up0", near4+"/30", near6+"/64"); err != nil {
		return err
	}
	for _, gw := range []string{far4, far6} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Gw: net.ParseIP(gw), Dst: everywhere(gw)}); err != nil {
			return fmt.Errorf("route by %s: %w", gw, err)
		}
	}
	return nil
}

// world makes every address local, as the last resort.
func world() error {
	if err := up("lo", "203.0.113.53/32"); err != nil { // the Resolver binds it
		return err
	}
	if err := up("down0", far4+"/30", far6+"/64"); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	// Without rules of its own, IPv4's tables local and main are one, of which
	// the longest prefix wins; IPv6 wants a table after both.
	const last = 100
	for addr, table := range map[string]int{far4: unix.RT_TABLE_LOCAL, far6: last} {
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere(addr), Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: table}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route the world of %s: %w", addr, err)
		}
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = unix.AF_INET6, last, 40000
	if err := netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("rule for the world: %w", err)
	}
	return nil
}

func everywhere(addr string) *net.IPNet {
	if strings.Contains(addr, ":") {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
}

func up(name string, addrs ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, s := range addrs {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		if netip.MustParsePrefix(s).Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("give %s %s: %w", name, s, err)
		}
	}
	return netlink.LinkSetUp(link)
}
