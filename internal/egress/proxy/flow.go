package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// redirected takes a connection whose target the box's kernel knows.
func (e *Engine) redirected(c *client) {
	c.via = capture.ViaRedirect
	n := e.begin(c)
	defer e.finish(n)

	to, err := e.cfg.originalDst(c.Conn)
	if err != nil {
		n.refused(policy.ReasonBadTarget, err.Error())
		c.reset()
		return
	}
	t := dest.Target{Host: dest.HostFromAddr(to.Addr()), Port: to.Port()}
	if t, err = c.box.named(t); err != nil {
		n.host, n.port = to.Addr().String(), to.Port()
		n.refused(policy.ReasonBadTarget, err.Error())
		c.reset()
		return
	}
	c.setTarget(t)
	e.carry(c, n)
}

// named returns t with the name that a synthetic address stands for. One that
// this box was never given is an error.
func (b *BoxWay) named(t dest.Target) (dest.Target, error) {
	a := t.Host.Addr()
	if !t.Host.IsIP() || !dest.SyntheticV4().Contains(a) && !dest.SyntheticV6().Contains(a) {
		return t, nil
	}
	if b.Resolve != nil {
		if h, ok := b.Resolve(a); ok {
			return dest.Target{Host: h, Port: t.Port}, nil
		}
	}
	return t, errors.New("a synthetic address that this box was never given")
}

// carry takes a connection whose target is known to its end: refuse, tunnel or
// intercept. n is the connection's record; where requests are seen each has
// its own, and n is dropped.
func (e *Engine) carry(c *client, n *note) {
	n.to(c.target)
	// What takes long is called from here, with little stack below it.
	switch r := e.settle(c, n); r.way {
	case wayTunnel:
		e.tunnel(c, n, r)
	case wayTLS:
		e.intercept(c, n)
	case wayHTTP:
		n.silent = true
		_ = e.session(c, c, connect.SchemeHTTP).serve() // it has recorded what there was to
	case wayH2C:
		n.silent = true
		_ = e.front.serve(c, c) // it has recorded what there was to
	case wayEnded:
	}
}

// road is how a connection goes on once it is settled what it is.
type road struct {
	way   way
	kind  activityKind // of a tunnel
	first sniffed
	d     policy.Decision
	up    net.Conn // dialled already, or nil
}

type way uint8

const (
	wayEnded way = iota // refused, or gone
	wayTunnel
	wayTLS
	wayHTTP
	wayH2C
)

// road is that of a client that has spoken TLS or HTTP: each request will
// be judged by itself, so that a refused host explains itself here too.
func (s sniffed) road() road {
	switch s.kind {
	case spokeTLS:
		return road{way: wayTLS}
	case spokeHTTP:
		return road{way: wayHTTP}
	case spokeH2C:
		return road{way: wayH2C}
	case spokeNothing, spokeEnd, spokeOther:
	}
	return road{}
}

// settle decides about a connection, tells the client, and finds out what it
// speaks.
func (e *Engine) settle(c *client, n *note) road {
	if c.controlled() {
		n.silent = true
		if c.proceed() != nil {
			return road{}
		}
		return e.sniff(c, headOnly, e.lim.Sniff).road()
	}
	d := e.connects(c, n)
	switch {
	case d.Verdict.Permits():
		if c.via != capture.ViaRedirect {
			if no := prohibited(c.target, d); no != nil {
				c.refuse(n, no)
				return road{}
			}
		}
		return e.permitted(c, n, d)
	case c.via != capture.ViaRedirect:
		c.refuse(n, denied(d, c.target))
		return road{}
	}
	return e.explain(c, n, d)
}

// explain ends a refused connection that came without a word: TLS and HTTP are
// served, for each request is refused in HTTP's own terms; others are reset.
func (e *Engine) explain(c *client, n *note, d policy.Decision) road {
	wait, how := refusedTime, looking{}
	if c.target.Port == 443 || c.target.Port == 80 {
		wait, how.strict = e.lim.Sniff, true
	}
	if first := c.look(time.Now().Add(wait), how); first.web() {
		return first.road()
	}
	if d.Reason == policy.ReasonNotGranted && e.hold(c.ctx, c, Ask{Box: c.box.ID, Target: c.target, Process: c.owner()}) == "" {
		if d = e.cfg.Policy().Connect(e.query(c)); d.Verdict.Permits() {
			n.decided(d)
			return e.permitted(c, n, d)
		}
	}
	n.decided(d)
	c.reset()
	return road{}
}

// refusedTime is how long a refused connection may take to say that it speaks
// TLS or HTTP, where it need not: most of those have by then.
const refusedTime = 100 * time.Millisecond

// permitted settles a connection that policy let through. Bytes that are
// neither TLS nor HTTP pass only where a grant names the port: there upstream
// is dialled first, for it may be the one to speak first.
func (e *Engine) permitted(c *client, n *note, d policy.Decision) (r road) {
	raw := e.cfg.Policy().RawFallback(e.query(c))
	whole := hellos(d.Mode == policy.Tunnel)
	var up net.Conn
	defer func() {
		if up != nil && r.way != wayTunnel {
			_ = up.Close() // nothing was sent on it
		}
	}()
	var first sniffed
	if raw && c.via == capture.ViaRedirect {
		first = e.glance(c, whole) // most clients that speak first have done so already: no need to dial
	}
	if first.kind == spokeNothing && (raw || d.Mode == policy.Tunnel && c.via != capture.ViaRedirect) {
		var err error
		if up, err = e.dialTunnel(c, n, d); err != nil {
			c.refuse(n, e.unreachable(err, c.target))
			return road{}
		}
	}
	if d.Mode != policy.Tunnel && c.target.Port == 443 {
		e.foresee(c)
	}
	if err := c.proceed(); err != nil {
		n.aborted(err)
		return road{}
	}
	switch {
	case first.kind != spokeNothing:
	case raw:
		first = e.either(c, whole, up)
	default:
		first = e.sniff(c, whole, e.lim.Sniff)
	}
	switch {
	case first.kind == spokeTLS && d.Mode == policy.Tunnel:
		return road{way: wayTunnel, kind: passed, first: first, d: d, up: up}
	case first.web():
		c.grant()
		return first.road()
	case raw && first.kind != spokeEnd:
		return road{way: wayTunnel, kind: rawTCP, first: first, d: d, up: up}
	}
	c.mute(n, first)
	return road{}
}

// foresee begins what the first request to a granted host will wait for, while
// the client turns to its handshake: the leaf, and the host's addresses.
// Nobody is dialled for it.
func (e *Engine) foresee(c *client) {
	if e.cfg.Leaves.Prepare(c.ctx, c.box.ID, c.target.Host) {
		e.cfg.Dialer.LookAhead(c.ctx, c.target)
	}
}

// mute ends a permitted connection on which nothing was said that may pass.
func (c *client) mute(n *note, first sniffed) {
	switch first.kind {
	case spokeEnd:
		n.silent = true // opened and closed: no outcome to speak of
	case spokeNothing:
		c.e.meters.silences.Add(1)
		n.refused(policy.ReasonLimit, "neither TLS nor HTTP was spoken in time")
	case spokeOther, spokeTLS, spokeHTTP, spokeH2C:
		n.refused(policy.ReasonBadRequest, "neither TLS nor HTTP")
	}
	c.reset()
}

// connects judges host and port. On the way in by proxy it also holds for the
// operator; a redirected connection is held when its request is known.
func (e *Engine) connects(c *client, n *note) policy.Decision {
	d := e.cfg.Policy().Connect(e.query(c))
	if d.Verdict == policy.Refuse && d.Reason == policy.ReasonNotGranted && c.via != capture.ViaRedirect && e.cfg.Hold != nil {
		if d.Reason = e.hold(c.ctx, c, Ask{Box: c.box.ID, Target: c.target, Process: c.owner()}); d.Reason == "" {
			d = e.cfg.Policy().Connect(e.query(c))
		}
	}
	n.decided(d)
	return d
}

func (e *Engine) query(c *client) policy.Query {
	return policy.Query{Box: c.box.ID, Target: c.target, Now: e.cfg.Now()}
}

// hold waits for the operator's answer. It returns why the request stays
// refused, "" if it need not.
func (e *Engine) hold(ctx context.Context, c *client, a Ask) policy.Reason {
	if e.cfg.Hold == nil || !e.meters.held.take() {
		return policy.ReasonNotGranted // and not held
	}
	defer e.meters.held.give()
	c.enter(phaseWaiting) // a client that gives up ends the wait
	defer c.enter(phaseBusy)
	return e.cfg.Hold(ctx, a)
}

// proceed tells the client that the way is free.
func (c *client) proceed() error {
	switch c.via {
	case capture.ViaConnect:
		if _, err := c.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
			return fmt.Errorf("answer CONNECT: %w", err)
		}
	case capture.ViaSOCKS:
		return connect.WriteReply(c, connect.Succeeded)
	}
	return nil
}

// refuse ends a connection before anything passed, in the words of its intake.
func (c *client) refuse(n *note, d *denial) {
	n.denied(d)
	switch c.via {
	case capture.ViaConnect:
		d.connect, n.Status = true, d.status
		_ = d.write(c, c.accepts) // it may be gone: the record says what matters
		c.e.finish(n)
		c.linger()
	case capture.ViaSOCKS:
		_ = connect.WriteReply(c, d.socks()) // likewise
		c.e.finish(n)
		c.linger()
	default:
		c.reset()
	}
}

// linger closes so that what was written arrives: a close with unread input
// would reset it away.
func (c *client) linger() {
	if c.tcp == nil {
		_ = c.Close()
		return
	}
	_ = c.tcp.CloseWrite() // an error shows in the reads below
	_ = c.SetReadDeadline(time.Now().Add(c.e.lim.Linger))
	drain(c.Conn, lingerBytes)
	_ = c.Close()
}

const lingerBytes = 1 << 20

// drain reads and drops until an error or n bytes.
func drain(r net.Conn, n int) {
	b := buffers.get()
	defer buffers.put(b)
	for n > 0 {
		m, err := r.Read(b[:])
		if err != nil {
			return
		}
		n -= m
	}
}
