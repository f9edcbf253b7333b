package battery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"foldyard/internal/proof/probe"
)

// ears are listeners of the host at which a run's nonce must not arrive. Each
// was heard to work before it counts.
type ears struct {
	nonce    string
	tcp, udp []netip.AddrPort
	abstract string           // name of an abstract unix socket; "" where there are none
	files    []probe.HostFile // files of ours that the box must not see

	mu      sync.Mutex
	arrived map[string]string // row → where its nonce arrived

	closers []func() error
	wg      sync.WaitGroup
	once    sync.Once
}

// maxAddrs bounds the host's addresses that are listened at.
const maxAddrs = 24

// self is the row of our own knock at a listener.
const self = "self"

func listen(ctx context.Context, nonce string) (*ears, error) {
	e := &ears{nonce: nonce, arrived: map[string]string{}}
	addrs, err := ownAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if at, ok := e.listenTCP(ctx, a); ok {
			e.tcp = append(e.tcp, at)
		}
		if at, ok := e.listenUDP(ctx, a); ok {
			e.udp = append(e.udp, at)
		}
	}
	if runtime.GOOS == "linux" {
		e.listenAbstract(ctx)
	}
	if err := e.plant(); err != nil {
		e.close()
		return nil, err
	}
	if len(e.tcp) == 0 || len(e.udp) == 0 {
		e.close()
		return nil, errors.New("the host cannot listen on its own loopback, so nothing would show that the box cannot reach it")
	}
	return e, nil
}

// ownAddrs returns the host's addresses, loopback first.
func ownAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the host's addresses: %w", err)
	}
	addrs := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	for _, n := range all {
		prefix, err := netip.ParsePrefix(n.String())
		if err != nil {
			continue
		}
		a := prefix.Addr().Unmap()
		if a.IsLoopback() || a.IsLinkLocalUnicast() && a.Is6() || len(addrs) >= maxAddrs || slices.Contains(addrs, a) {
			continue
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// heard notes a nonce that arrived, and reports whether there was one.
func (e *ears) heard(where string, data []byte) bool {
	id, ok := probe.ParseTag(data, e.nonce)
	if !ok {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.arrived) < 256 {
		e.arrived[id] = where
	}
	return true
}

// knocked takes our own knock back, and reports whether it arrived.
func (e *ears) knocked(row string) bool {
	for range 2000 { // 10 s: a busy computer must not turn our own knock into a probe that got out
		e.mu.Lock()
		_, ok := e.arrived[row]
		delete(e.arrived, row)
		e.mu.Unlock()
		if ok {
			return true
		}
		wait(5 * time.Millisecond)
	}
	return false
}

// wait lets the listener's goroutine work.
func wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

func (e *ears) knock(ctx context.Context, network, addr string) bool {
	row := fmt.Sprintf("%s-%s-%d", self, network, len(e.closers))
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return false
	}
	_, err = conn.Write([]byte(probe.Tag(e.nonce, row)))
	return errors.Join(err, conn.Close()) == nil && e.knocked(row)
}

func (e *ears) listenTCP(ctx context.Context, a netip.Addr) (netip.AddrPort, bool) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(a, 0).String())
	if err != nil {
		return netip.AddrPort{}, false // an address that is being set up, or gone again
	}
	e.closers = append(e.closers, l.Close)
	e.wg.Go(func() { e.accept(l) })
	at := l.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // a TCP listener's
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	return at, e.knock(ctx, "tcp", at.String())
}

func (e *ears) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		e.wg.Go(func() {
			defer conn.Close() //nolint:errcheck // only read from
			if conn.SetReadDeadline(time.Now().Add(2*time.Second)) != nil {
				return
			}
			buf := make([]byte, 2048)
			n := 0
			for n < len(buf) {
				got, err := conn.Read(buf[n:])
				n += got
				if e.heard(l.Addr().String(), buf[:n]) || err != nil {
					return
				}
			}
		})
	}
}

func (e *ears) listenUDP(ctx context.Context, a netip.Addr) (netip.AddrPort, bool) {
	var lc net.ListenConfig
	l, err := lc.ListenPacket(ctx, "udp", netip.AddrPortFrom(a, 0).String())
	if err != nil {
		return netip.AddrPort{}, false // as for TCP
	}
	e.closers = append(e.closers, l.Close)
	e.wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := l.ReadFrom(buf)
			if err != nil {
				return
			}
			e.heard(l.LocalAddr().String(), buf[:n])
		}
	})
	at := l.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // a UDP socket's
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	return at, e.knock(ctx, "udp", at.String())
}

func (e *ears) listenAbstract(ctx context.Context) {
	name := "foldyard-probe-" + e.nonce
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", "@"+name)
	if err != nil {
		return // then the row has the well-known names alone
	}
	e.closers = append(e.closers, l.Close)
	e.wg.Go(func() { e.accept(l) })
	if e.knock(ctx, "unix", "@"+name) {
		e.abstract = name
	}
}

// plant makes a file in the host's temporary directory: the box has a /tmp of
// its own.
func (e *ears) plant() error {
	f, err := os.CreateTemp("", "foldyard-probe-*")
	if err != nil {
		return fmt.Errorf("make a file that the box must not see: %w", err)
	}
	e.closers = append(e.closers, func() error { return os.Remove(f.Name()) })
	if _, err := f.WriteString("the host's own\n"); err != nil {
		return errors.Join(fmt.Errorf("make a file that the box must not see: %w", err), f.Close())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("make a file that the box must not see: %w", err)
	}
	path, err := filepath.Abs(f.Name())
	if err != nil {
		return fmt.Errorf("make a file that the box must not see: %w", err)
	}
	e.files = append(e.files, hostFile("secrets", path))
	return nil
}

// close ends all listeners and returns the rows whose nonce arrived.
func (e *ears) close() map[string]string {
	e.once.Do(func() {
		for _, c := range e.closers {
			_ = c() // nothing was written to any of them
		}
		e.wg.Wait()
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.arrived
}
