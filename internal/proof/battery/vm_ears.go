package battery

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// vmEars listen on ports of the host's loopback that the machine must not reach, and know what came.
type vmEars struct {
	at  []netip.AddrPort
	ls  []net.Listener
	mu  sync.Mutex // guards got
	got map[netip.AddrPort]bool
}

// listenVM listens on a port that is free, over IPv4 and IPv6, and then on ports. Without IPv6 there is no ear for it.
func listenVM(ports []uint16, nonce string) (*vmEars, error) {
	e := &vmEars{got: map[netip.AddrPort]bool{}}
	v4 := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, port := range append([]uint16{0}, ports...) {
		if err := e.listen(netip.AddrPortFrom(v4, port), nonce); err != nil {
			e.close()
			return nil, fmt.Errorf("listen for what must not come: %w", err)
		}
	}
	_ = e.listen(netip.AddrPortFrom(netip.IPv6Loopback(), 0), nonce) // its rows are left out then
	return e, nil
}

func (e *vmEars) listen(at netip.AddrPort, nonce string) error {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return err
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		_ = l.Close() // the error says enough
		return errors.New("no TCP address")
	}
	at = netip.AddrPortFrom(at.Addr(), uint16(tcp.Port)) //nolint:gosec // G115: a port
	e.at, e.ls = append(e.at, at), append(e.ls, l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // the read shows it
				line, _ := bufio.NewReader(io.LimitReader(c, 256)).ReadString('\n')
				if strings.Contains(line, nonce) {
					e.mu.Lock()
					e.got[at] = true
					e.mu.Unlock()
				}
			}()
		}
	}()
	return nil
}

// heard reports whether something came there. The zero address is no ear.
func (e *vmEars) heard(at netip.AddrPort) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got[at]
}

func (e *vmEars) close() {
	for _, l := range e.ls {
		_ = l.Close() // ends its loop
	}
}

// socketWatch looks at this computer's own sockets while probes run: the machine's packets leave as sockets of its process.
type socketWatch struct {
	stop, done chan struct{}
	want       map[string]netip.Addr // by what /proc/net calls it
	old        map[string]bool       // sockets that were there before and are not the machine's: the operator's own, or one that closes
	seen       map[netip.Addr]bool
	ok         bool
}

// watchSockets begins to look. Processes whose command line names a path below dir are the machine's: what they hold already counts too.
func watchSockets(addrs []netip.Addr, dir string) *socketWatch {
	w := &socketWatch{stop: make(chan struct{}), done: make(chan struct{}), want: map[string]netip.Addr{}, old: map[string]bool{}, seen: map[netip.Addr]bool{}}
	for _, a := range addrs {
		w.want[procAddr(a)] = a
	}
	held := map[string]netip.Addr{} // by what /proc/PID/fd calls it
	w.look(func(socket, inode string, to netip.Addr) { w.old[socket], held["socket:["+inode+"]"] = true, to })
	for _, to := range heldBelow(dir, held) {
		w.seen[to] = true
	}
	go func() {
		defer close(w.done)
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		for ended := false; !ended; {
			select {
			case <-w.stop:
				ended = true
			case <-t.C:
			}
			w.ok = w.look(func(socket, _ string, to netip.Addr) {
				if !w.old[socket] {
					w.seen[to] = true
				}
			})
		}
	}()
	return w
}

// heldBelow returns where those sockets lead that are open in processes whose command line names a path below dir.
func heldBelow(dir string, sockets map[string]netip.Addr) (to []netip.Addr) {
	if dir == "" || len(sockets) == 0 {
		return nil
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is ours
	for _, fd := range fds {
		name, err := os.Readlink(fd)
		a, ok := sockets[name]
		if err != nil || !ok {
			continue
		}
		line, err := os.ReadFile("/proc/" + strings.Split(fd, "/")[2] + "/cmdline")
		if err == nil && strings.Contains(string(line), dir+"/") {
			to = append(to, a)
		}
	}
	return to
}

// look reads the kernel's tables, tells of each socket toward what is watched, and reports whether it could.
func (w *socketWatch) look(tell func(socket, inode string, to netip.Addr)) bool {
	read := 0
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		b, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue
		}
		read++
		for line := range strings.Lines(string(b)) {
			col := strings.Fields(line)
			if len(col) < 10 {
				continue
			}
			remote, _, _ := strings.Cut(col[2], ":")
			if a, ok := w.want[remote]; ok {
				tell(table+" "+col[1]+" "+col[2], col[9], a)
			}
		}
	}
	return read > 0
}

// end stops looking. It returns the addresses that a socket was seen toward, and whether anything could be seen.
func (w *socketWatch) end() (seen map[netip.Addr]bool, ok bool) {
	close(w.stop)
	<-w.done
	return w.seen, w.ok
}

// procAddr writes an address as /proc/net does: words of four bytes, each backwards.
func procAddr(a netip.Addr) string {
	b := a.AsSlice()
	var s strings.Builder
	for i := 0; i+4 <= len(b); i += 4 {
		fmt.Fprintf(&s, "%02X%02X%02X%02X", b[i+3], b[i+2], b[i+1], b[i])
	}
	return s.String()
}
