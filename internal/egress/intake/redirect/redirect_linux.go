package redirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const ip6tSoOriginalDst = 80 // linux/netfilter_ipv6/ip6_tables.h

// OriginalDst returns where c was going before the kernel redirected it here
// (SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST). A connection that was not redirected
// returns its local address: that is where it was going.
func OriginalDst(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	local, _ := c.LocalAddr().(*net.TCPAddr)
	v4 := local != nil && local.IP.To4() != nil
	var dst netip.AddrPort
	var errno error
	if err := raw.Control(func(fd uintptr) {
		if v4 {
			var sa unix.RawSockaddrInet4
			if errno = getsockopt(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST, unsafe.Pointer(&sa), unsafe.Sizeof(sa)); errno == nil {
				dst = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), networkOrder(sa.Port))
			}
			return
		}
		var sa unix.RawSockaddrInet6
		if errno = getsockopt(fd, unix.SOL_IPV6, ip6tSoOriginalDst, unsafe.Pointer(&sa), unsafe.Sizeof(sa)); errno == nil {
			dst = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), networkOrder(sa.Port))
		}
	}); err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	if local != nil && (errors.Is(errno, unix.ENOENT) || errors.Is(errno, unix.ENOPROTOOPT) || errors.Is(errno, unix.EOPNOTSUPP)) {
		dst, errno = local.AddrPort(), nil // nothing redirects here: a kernel without nf_tables
	}
	if errno != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", errno)
	}
	return netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port()), nil
}

func gone(c *net.TCPConn) bool { return polled(c, unix.POLLRDHUP) }
func dead(c *net.TCPConn) bool { return polled(c, 0) } // POLLHUP and POLLERR are always reported
func ended(fd int) bool        { return poll(fd, unix.POLLRDHUP) }

func polled(c *net.TCPConn, events int16) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	yes := false
	if err := raw.Control(func(fd uintptr) { yes = poll(int(fd), events) }); err != nil {
		return true // closed by us
	}
	return yes
}

func poll(fd int, events int16) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}} //nolint:gosec // G115: descriptors are small
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents != 0
}

func quiet(c *net.TCPConn) (d time.Duration, known bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { // a closed socket is not quiet, it is gone
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			d, known = time.Duration(info.Last_data_recv)*time.Millisecond, true
		}
	})
	return d, known
}

func networkOrder(p uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], p)
	return binary.BigEndian.Uint16(b[:])
}

func getsockopt(fd uintptr, level, name int, p unsafe.Pointer, n uintptr) error {
	size := uint32(n)
	//nolint:gosec // G103: the kernel fills a struct whose size it is told
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(name), uintptr(p), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return nil
}
