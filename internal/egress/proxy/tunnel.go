package proxy

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// dialTunnel connects upstream for a tunnel.
func (e *Engine) dialTunnel(c *client, n *note, d policy.Decision) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, e.lim.Dial)
	defer cancel()
	up, addr, err := e.cfg.Dialer.Dial(ctx, c.target, d.Internal)
	n.dialled(addr)
	return up, err
}

// tunnel passes bytes that are not decrypted. It owns r.up, which may still be
// to dial.
func (e *Engine) tunnel(c *client, n *note, r road) {
	up := e.open(c, n, r)
	if up == nil {
		c.reset()
		return
	}
	defer up.Close() //nolint:errcheck // both directions have ended
	if !c.gauge.tunnels.take() {
		n.refused(policy.ReasonLimit, "too many tunnels")
		c.reset()
		return
	}
	defer c.gauge.tunnels.give()
	if !e.stands(c, r.kind) {
		n.refused(policy.ReasonNotGranted, errPolicy.Error())
		c.reset()
		return
	}
	defer c.end()
	n.Mode = capture.ModeTunnel
	if !c.attach(up) {
		n.cut(c.endedBy())
		return
	}
	c.enter(phaseOpen)
	sent, got, err := c.splice(up)
	n.ReqBytes, n.RespBytes = capture.N(sent), capture.N(got)
	if !n.cut(c.endedBy()) && err != nil && sent == 0 && got == 0 {
		n.Error = err.Error()
	}
}

// open returns the upstream connection of a tunnel, nil if it is refused.
func (e *Engine) open(c *client, n *note, r road) net.Conn {
	n.Proto = capture.ProtoTCP
	if r.first.kind == spokeTLS {
		n.Proto, n.Scheme = capture.ProtoTLS, "https"
	}
	if r.kind == passed && !e.aligned(c, r.first) {
		n.denied(misaligned(c.target, "SNI", r.first.sni))
		if r.up != nil {
			_ = r.up.Close() // nothing was sent on it
		}
		return nil
	}
	if r.up != nil {
		return r.up
	}
	up, err := e.dialTunnel(c, n, r.d)
	if err != nil {
		n.denied(e.unreachable(err, c.target))
		return nil
	}
	return up
}

// stands registers the tunnel, under the policy of now: it may have changed
// while we dialled.
func (e *Engine) stands(c *client, kind activityKind) bool {
	for {
		snap, q := e.cfg.Policy(), e.query(c)
		a := activity{kind: kind, query: q, decision: snap.Connect(q)}
		if a.over(snap, q.Now) {
			return false
		}
		if c.begin(snap, a) {
			return true
		}
	}
}

// aligned reports whether a tunnelled TLS connection names its target. None is
// named only by an address or where a grant names the port.
func (e *Engine) aligned(c *client, first sniffed) bool {
	if !first.hello {
		return false
	}
	if first.sni == "" {
		return c.target.Host.IsIP() || e.cfg.Policy().RawFallback(e.query(c))
	}
	h, err := dest.ParseHost(first.sni)
	return err == nil && h == c.target.Host
}

// splice copies both ways until both have ended, in the kernel where both ends
// are sockets. One half may end before the other.
func (c *client) splice(up net.Conn) (sent, got int64, err error) {
	if len(c.pre) > 0 {
		n, err := up.Write(c.pre)
		sent = int64(n)
		if err != nil {
			return sent, 0, err
		}
		c.pre = nil
	}
	var back atomic.Int64
	done := make(chan error, 1)
	go func() {
		n, err := pipe(c.bare(), up)
		back.Store(n)
		c.half(err)
		done <- err
	}()
	n, err := pipe(up, c.bare())
	c.half(err)
	if back := <-done; err == nil {
		err = back
	}
	return sent + n, back.Load(), err
}

// half notes that one direction has ended: the other is bounded from now on,
// and over at once if this one broke.
func (c *client) half(err error) {
	c.enter(phaseHalf)
	if err != nil {
		_ = c.Conn.Close() // wakes the other direction
		c.mu.Lock()
		if c.up != nil {
			_ = c.up.Close()
		}
		c.mu.Unlock()
	}
}

// bare returns the connection as the kernel knows it.
func (c *client) bare() net.Conn {
	if c.tcp != nil {
		return c.tcp
	}
	return c
}

// pipe copies one direction and passes its end on.
func pipe(dst, src net.Conn) (int64, error) {
	var n int64
	var err error
	if _, ok := src.(*net.TCPConn); ok {
		n, err = io.Copy(dst, src) // spliced, or a buffer of its own where that is impossible
	} else {
		b := buffers.get()
		n, err = io.CopyBuffer(onlyWriter{dst}, onlyReader{src}, b[:])
		buffers.put(b)
	}
	if err == nil {
		err = closeWrite(dst)
	}
	return n, err
}

type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.SetReadDeadline(time.Now()) // no half-close: the other direction ends too
}
