package namespace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"foldyard/internal/egress/dest"
)

// network brings up the box's network namespace, that of the calling process: loopback, and every address of the world local to it.
// Without a route, connect would fail before any rule could explain; with this one, no packet needs a device that is not there.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	for _, own := range []netip.Addr{dest.OwnV4(), dest.OwnV6()} {
		bits := own.BitLen()
		ip := net.IP(own.AsSlice())
		// As the routes' source: with only 127.0.0.1 and ::1, resolvers that ask for configured families find none.
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			if own.Is6() && noIPv6(err) {
				continue
			}
			return fmt.Errorf("add %s to loopback: %w", own, err)
		}
		world := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: world, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_MAIN, Src: ip}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("make every address local (%s): %w", own, err)
		}
	}
	// Any port may be served inside: port 80 of a dev server is no privilege where there is no network.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil && !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("open low ports: %w", err)
	}
	return nil
}

// noIPv6 tells the errors of a kernel that has IPv6 off, where there is then nothing to wall.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// fallbackPorts are listened on where the kernel has no nf_tables: without a redirect a connection ends where it was sent.
var fallbackPorts = []int{22, 80, 443, 3000, 5432, 6379, 8000, 8080, 8443, 9418}

// links opens the sockets that the supervisor gets, each with a name that says what it is for.
func links(redirect bool) (names []string, files []*os.File, err error) {
	ctx := context.Background()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // one path is all there is
	keep := func(name string, c interface{ File() (*os.File, error) }, closer func() error) error {
		f, err := c.File()
		if err != nil {
			return fmt.Errorf("listen %s: %w", name, err)
		}
		names, files = append(names, name), append(files, f)
		return closer()
	}
	tcp := func(name, host string, port int) error {
		l, err := lc.Listen(ctx, "tcp"+family4or6(host), net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			if family4or6(host) == "6" && noIPv6(errors.Unwrap(errors.Unwrap(err))) {
				return nil
			}
			return fmt.Errorf("listen %s: %w", name, err)
		}
		t := l.(*net.TCPListener)
		return keep(name, t, t.Close)
	}
	udp := func(name, host string, port int) error {
		l, err := lc.ListenPacket(ctx, "udp"+family4or6(host), net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			if family4or6(host) == "6" && noIPv6(errors.Unwrap(errors.Unwrap(err))) {
				return nil
			}
			return fmt.Errorf("listen %s: %w", name, err)
		}
		u := l.(*net.UDPConn)
		return keep(name, u, u.Close)
	}
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		errs = append(errs, tcp(linkProxy, host, PortProxy))
		if redirect {
			errs = append(errs, tcp(linkRedirect, host, PortRedirect), tcp(linkDNSStream, host, PortDNS), udp(linkDNSPacket, host, PortDNS))
		}
	}
	if !redirect {
		for _, host := range []string{"0.0.0.0", "::"} {
			for _, p := range fallbackPorts {
				errs = append(errs, tcp(linkRedirect, host, p))
			}
		}
		for _, host := range []string{dest.OwnV4().String(), dest.OwnV6().String()} {
			errs = append(errs, tcp(linkDNSStream, host, 53), udp(linkDNSPacket, host, 53))
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	return names, files, nil
}

func family4or6(host string) string {
	if netip.MustParseAddr(host).Is6() {
		return "6"
	}
	return "4"
}
