package namespace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxCommand bounds what is kept of a command line, in bytes.
const maxCommand = 512

// maxOwners bounds the descriptors that are looked at for one question.
const maxOwners = 4_000

// who finds the process whose socket has this local address: what the box says of itself, for the record only. The newest processes
// are asked first, since one that has just connected is mostly one that has just started.
func who(local netip.AddrPort) (*Process, error) {
	inode, err := socketInode(local)
	if err != nil {
		return nil, err
	}
	d, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("find the process of %s: %w", local, err)
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return nil, fmt.Errorf("find the process of %s: %w", local, err)
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid != 1 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	slices.Reverse(pids)
	want := "socket:[" + strconv.FormatUint(uint64(inode), 10) + "]"
	left := maxOwners
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		f, err := os.Open(dir + "/fd")
		if err != nil {
			continue
		}
		fds, _ := f.Readdirnames(-1)
		f.Close()
		for _, fd := range fds {
			if left--; left < 0 {
				return nil, fmt.Errorf("find the process of %s: too many descriptors", local)
			}
			if to, err := os.Readlink(dir + "/fd/" + fd); err == nil && to == want {
				return describe(pid, dir), nil
			}
		}
	}
	return nil, fmt.Errorf("find the process of %s: no descriptor of socket %d", local, inode)
}

func describe(pid int, dir string) *Process {
	p := &Process{Pid: pid}
	p.Exe, _ = os.Readlink(dir + "/exe")
	if f, err := os.Open(dir + "/cmdline"); err == nil {
		b := make([]byte, maxCommand)
		n, _ := f.Read(b)
		f.Close()
		p.Cmd = strings.TrimRight(strings.ReplaceAll(string(b[:n]), "\x00", " "), " ")
	}
	return p
}

func socketInode(local netip.AddrPort) (uint32, error) {
	family := uint8(unix.AF_INET)
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	// A socket that listens on both families sees IPv4 as IPv6: it is listed there.
	for _, f := range []uint8{family, unix.AF_INET6} {
		socks, err := netlink.SocketDiagTCP(f)
		if err != nil {
			return 0, fmt.Errorf("list sockets: %w", err)
		}
		for _, s := range socks {
			a, ok := netip.AddrFromSlice(s.ID.Source)
			if ok && a.Unmap() == local.Addr() && s.ID.SourcePort == local.Port() && s.INode != 0 {
				return s.INode, nil
			}
		}
	}
	return 0, errors.New("no such socket")
}
