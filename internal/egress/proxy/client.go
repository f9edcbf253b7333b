package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// client is a Flow: one accepted connection of a box, and what is known about
// it. It is also the net.Conn that TLS and HTTP run over.
type client struct {
	net.Conn              // as accepted
	tcp      *net.TCPConn // the same, where it is one: it can be peeked at and spliced
	pre      []byte       // read too early; Read returns it first

	e       *Engine
	box     BoxWay
	gauge   *gauge
	via     capture.Via
	target  dest.Target // zero on the proxy port until the box has named it
	host    string      // target.Host as text
	sni     string      // of the TLS connection, where it names another host
	secure  bool        // behind TLS of ours
	accepts accept      // of the CONNECT that opened it

	requests atomic.Int64 // that had a record of their own

	// owner waits for who opened the connection, nil if unknown.
	owner func() *capture.Process

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	closed sync.Once

	phase   atomic.Uint32 // what the sweeper watches, see sweep.go
	since   atomic.Uint32 // tick at which phase began
	writing atomic.Uint32 // tick at which the write in progress began; 0: none

	mu      sync.Mutex // guards the fields that follow
	doing   activity   // what policy may end, on anything but HTTP/2
	up      io.Closer  // the other side of it
	streams map[*stream]struct{}
	granted bool // policy let the connection itself through
	ended   ending
}

// ending says why we closed a connection before its time.
type ending uint8

const (
	endNone    ending = iota
	endPolicy         // policy would refuse now
	endAbort          // the box went away
	endStalled        // the box takes nothing any more
	endTime           // half-closed too long
	endQuiet          // silent too long
	endFlood          // asks for too much at once, and does not take the refusals
	endStopped        // the box or the engine stops
)

// activity is what a connection or stream does under a decision.
type activity struct {
	kind     activityKind
	query    policy.Query
	decision policy.Decision
}

type activityKind uint8

const (
	idle activityKind = iota
	request
	socket // a WebSocket
	passed // a tunnel of a passthrough target
	rawTCP // a tunnel of bytes that are neither TLS nor HTTP
)

func (e *Engine) accepted(ctx context.Context, box BoxWay, nc net.Conn, handle func(*client)) {
	g := e.live.gauge(box.ID)
	c := &client{Conn: nc, e: e, box: box, gauge: g, owner: nobody}
	c.tcp, _ = nc.(*net.TCPConn)
	full := !e.meters.conns.take()
	if !full && !g.conns.take() {
		e.meters.conns.give()
		full = true
	}
	if full {
		n := e.begin(c)
		n.refused(policy.ReasonLimit, "too many connections")
		reset(nc)
		e.finish(n)
		return
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	if !e.live.add(c) {
		_ = c.Close() // the engine has stopped
		return
	}
	if e.cfg.Attribute != nil {
		c.owner = sync.OnceValue(func() *capture.Process {
			return e.cfg.Attribute(box.ID, addrPort(nc.LocalAddr()), addrPort(nc.RemoteAddr()))
		})
		e.wg.Go(func() { c.owner() }) // at once: its socket may be short-lived
	}
	go func() {
		defer e.live.served(c)
		defer c.Close() //nolint:errcheck // nothing is left to be done about it
		defer e.recovered(c)
		handle(c)
	}()
}

// recovered keeps a fault of ours in the connection that met it: others, and
// other boxes, go on.
func (e *Engine) recovered(c *client) {
	p := recover()
	if p == nil {
		return
	}
	n := e.begin(c)
	n.Error = fmt.Sprintf("internal error: %v\n%s", p, debug.Stack())
	c.cut(endStopped)
	e.finish(n)
}

func nobody() *capture.Process { return nil }

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// Read implements net.Conn.
func (c *client) Read(p []byte) (int, error) {
	if len(c.pre) > 0 {
		n := copy(p, c.pre)
		if c.pre = c.pre[n:]; len(c.pre) == 0 {
			c.pre = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn. The sweeper sees one that does not end.
func (c *client) Write(p []byte) (int, error) {
	c.writing.Store(c.e.tick())
	n, err := c.Conn.Write(p)
	c.writing.Store(0)
	return n, err
}

// CloseWrite ends our half.
func (c *client) CloseWrite() error { return closeWrite(c.Conn) }

// Close implements net.Conn and gives back what the connection held.
func (c *client) Close() error {
	err := net.ErrClosed
	c.closed.Do(func() {
		err = c.Conn.Close()
		if c.cancel == nil {
			return
		}
		c.cancel()
		if c.e.live.remove(c) {
			c.gauge.conns.give()
			c.e.meters.conns.give()
		}
	})
	return err
}

// cut ends the connection and what it is doing. Its goroutine finds an error,
// and why in endedBy.
func (c *client) cut(why ending) {
	c.mu.Lock()
	if c.ended == endNone {
		c.ended = why
	}
	if c.up != nil {
		_ = c.up.Close() // under the lock: it may be another's a moment later
	}
	c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
	_ = c.Conn.Close() // wakes whoever reads or writes
}

// endedBy returns why the connection was cut, endNone if it was not.
func (c *client) endedBy() ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// begin registers what c does from now on. It reports whether the decision
// still stands: a policy that changed since snap was read would not have seen
// the activity when it looked for what to end.
func (c *client) begin(snap *policy.Snapshot, a activity) bool {
	c.mu.Lock()
	c.doing = a
	c.mu.Unlock()
	return c.e.cfg.Policy() == snap
}

func (c *client) end() {
	c.mu.Lock()
	c.doing = activity{}
	c.up = nil
	c.mu.Unlock()
}

// attach makes up end with c. If c was cut already it closes up.
func (c *client) attach(up io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != endNone {
		_ = up.Close() // never used
		return false
	}
	c.up = up
	return true
}

func (c *client) grant() {
	c.mu.Lock()
	c.granted = true
	c.mu.Unlock()
}

// setTarget fixes what the connection is for.
func (c *client) setTarget(t dest.Target) {
	c.target, c.host = t, t.Host.String()
}

// reset is what a refused connection feels when it speaks no protocol of ours.
// Whose it was must be known by then: the socket is gone afterwards.
func (c *client) reset() {
	c.owner()
	reset(c.Conn)
}

// reset closes nc with a RST, as a closed port would.
func reset(nc net.Conn) {
	if t, ok := nc.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only on a dead socket
	}
	_ = nc.Close() // nothing is left to be done about it
}
