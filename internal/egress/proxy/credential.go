package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// credential asks about a request that was admitted: it may get a credential,
// for which it may have to wait, or be stopped for what it carries. What it
// does to the request and its answer is the Grip's; a nil one does nothing.
func (e *Engine) credential(ctx context.Context, c *client, n *note, a *asked, act activity, q inject.Request) (*inject.Grip, *denial) {
	if e.cfg.Inject == nil {
		return nil, nil
	}
	q.Box, q.Target, q.Method, q.Path = c.box.ID, a.target, a.method, a.path
	q.TLS, q.Granted = a.scheme == connect.SchemeHTTPS, act.decision.Verdict == policy.Allow
	phase := c.phase.Load()
	c.enter(phaseWaiting)
	g, refusal := e.cfg.Inject.Head(ctx, q)
	c.enter(phase)
	if refusal != nil {
		return nil, stopped(refusal, a.target)
	}
	n.grip = g
	if g != nil {
		a.path = g.Path
	}
	return g, nil
}

// stopped is the refusal of package inject.
func stopped(r *inject.Refusal, t dest.Target) *denial {
	return &denial{status: r.Status, reason: r.Reason, err: "http_request_denied", what: line(r.What), fix: line(r.Fix), detail: r.Detail, target: t}
}

// line makes a text fit for one line of ASCII without quotes: it may name what
// a configuration says.
func line(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 400)]
}

// credited notes what was done with credentials, and masks those that a record
// would show.
func (e *Engine) credited(n *note) {
	o := n.grip.Outcome()
	n.Injected, n.Replayed = o.Injected, o.Replayed
	if o.Query != "" {
		n.Path = capture.RedactPath(n.Path, o.Query)
	}
	if o.Redacted {
		n.Reason = string(policy.ReasonRedacted)
	}
	if o.Note != "" && n.Error == "" {
		n.Error = o.Note
	}
	if r := n.grip.Tripped(); r != nil {
		n.Verdict, n.Reason, n.Error = capture.VerdictDeny, string(r.Reason), r.Detail
	}
	in := e.cfg.Inject
	n.Path, n.Error, n.UA, n.Host = in.Scrub(n.Path), in.Scrub(n.Error), in.Scrub(n.UA), in.Scrub(n.Host)
	if p := n.Process; p != nil {
		if exe, cmd := in.Scrub(p.Exe), in.Scrub(p.Cmd); exe != p.Exe || cmd != p.Cmd {
			n.Process = &capture.Process{PID: p.PID, Exe: exe, Cmd: cmd}
		}
	}
}

// local returns what answers a request in process, nil if nothing does: the
// supervisor's own name, a metadata server, a token endpoint that has dummies.
func (e *Engine) local(a *asked) http.Handler {
	switch {
	case e.controlled(a.target):
		if a.target.Host.Name() == dest.ControlName {
			return e.cfg.Control
		}
		return e.cfg.Inject.Local(a.target)
	case a.scheme == connect.SchemeHTTPS:
		return e.cfg.Inject.Endpoint(a.target, a.method, a.path)
	}
	return nil
}

// copyThrough writes r, which reads body, to dst as it comes, and then body's
// trailer.
func copyThrough(dst *bufio.Writer, r io.Reader, body *http1.Body, chunked bool, trailer func(*http1.Header)) (int64, error) {
	b := buffers.get()
	defer buffers.put(b)
	if err := dst.Flush(); err != nil {
		return 0, &http1.WriteError{Err: err}
	}
	var total int64
	for {
		n, rerr := r.Read(b[:])
		if n > 0 {
			var err error
			if chunked {
				err = http1.WriteChunk(dst, b[:n])
			} else {
				_, err = dst.Write(b[:n])
			}
			if err == nil {
				err = dst.Flush()
			}
			if err != nil {
				return total, &http1.WriteError{Err: err}
			}
			total += int64(n)
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			return total, rerr
		}
	}
	if chunked {
		fields := body.Trailer()
		trailer(&fields)
		if err := http1.EndChunks(dst, fields); err != nil {
			return total, err
		}
	}
	if err := dst.Flush(); err != nil {
		return total, &http1.WriteError{Err: err}
	}
	return total, nil
}

// holdBody reads the body of a request that has to be known, or may have to be sent
// twice, before its head is sent. It returns nil for one that streams.
func (e *Engine) holdBody(g *inject.Grip, length int64, body io.Reader) ([]byte, *inject.Refusal, error) {
	most := g.Holds()
	if most == 0 {
		if most = g.Keeps(); length <= 0 || length > most {
			return nil, nil, nil
		}
	}
	held, err := io.ReadAll(io.LimitReader(g.Request(body), most+1))
	if r := g.Tripped(); r != nil {
		return nil, r, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if int64(len(held)) > most {
		e.meters.bodies.Add(1)
		return nil, g.TooLarge(), nil
	}
	if g.Holds() > 0 {
		if r := g.Hold(held); r != nil {
			return nil, r, nil
		}
	}
	return held, nil, nil
}

// hold is hold for HTTP/1.1.
func (s *session) hold(g *inject.Grip) *denial {
	r := &s.req
	s.held = nil
	if g == nil || r.Length == 0 {
		return nil
	}
	if g.Holds() == 0 && (r.Length < 0 || r.Expect100) {
		return nil
	}
	if r.Expect100 {
		if _, err := s.bw.WriteString("HTTP/1.1 100 Continue\r\n\r\n"); err != nil || s.bw.Flush() != nil {
			return malformed(http.StatusBadRequest, policy.ReasonClientAbort, "the client went away")
		}
		r.Expect100 = false
	}
	if g.Holds() == 0 && r.Length > g.Keeps() {
		return nil
	}
	r.Header.Del("Expect")
	s.body.Reset(s.br, r.Length, s.e.heads)
	s.c.enter(phaseHead) // it is bounded in time as a head is
	held, refusal, err := s.e.holdBody(g, r.Length, &s.body)
	s.c.enter(phaseBusy)
	switch {
	case refusal != nil:
		d := stopped(refusal, s.bound)
		d.close = true
		return d
	case err != nil:
		if bad, ok := errors.AsType[*http1.Error](err); ok {
			return malformed(bad.Status, policy.ReasonBadRequest, bad.Why)
		}
		return malformed(http.StatusBadRequest, policy.ReasonClientAbort, "the body broke off")
	}
	if held != nil {
		s.held, r.Length = held, int64(len(held))
	}
	return nil
}

// copyUp sends the body of the request.
func (x *exchange) copyUp() (int64, error) {
	s, r := x.s, &x.s.req
	if x.n.grip.Reads() {
		return copyThrough(x.u.bw, x.n.grip.Request(&s.body), &s.body, r.Length == http1.Chunked, func(*http1.Header) {})
	}
	return http1.CopyBody(x.u.bw, &s.body, r.Length == http1.Chunked, nil)
}

// copyDown passes the body of the answer on.
func (x *exchange) copyDown(chunked bool) (int64, error) {
	g := x.n.grip
	if g.Searches() {
		return copyThrough(x.s.bw, g.Body(&x.s.reply), &x.s.reply, chunked, func(h *http1.Header) { g.Header(inject.H1{Header: h}) })
	}
	return http1.CopyBody(x.s.bw, &x.s.reply, chunked, nil)
}

// replays reports whether the answer, whose head was read, asks for another
// credential and the request can be sent with one. It leaves the connection
// behind.
func (x *exchange) replays() bool {
	s, r := x.s, &x.s.req
	can := r.Length == 0 || s.held != nil
	if !x.n.grip.Replay(s.c.ctx, s.resp.Status, inject.H1{Header: &r.Header}, can) {
		return false
	}
	r.Target = x.n.grip.Path
	x.settle()
	x.u.abort()
	return true
}

// credential is credential for HTTP/2; the body is read where it has to be.
func (x *h2exchange) credential(a *asked, act activity) (*inject.Grip, *denial) {
	r := x.r
	stripHop(r.Header)
	r.Header.Del("Expect") // the server answers it when the body is asked for
	r.Header.Del("Host")
	g, d := x.f.e.credential(x.ctx, x.c, x.n, a, act, inject.Request{Header: inject.H2{Header: r.Header}, Host: r.Host, Body: r.ContentLength != 0, Length: r.ContentLength})
	if d != nil || g == nil || r.ContentLength == 0 {
		return g, d
	}
	held, refusal, err := x.f.e.holdBody(g, r.ContentLength, r.Body)
	switch {
	case refusal != nil:
		return nil, stopped(refusal, a.target)
	case err != nil:
		return nil, malformed(http.StatusBadRequest, policy.ReasonClientAbort, "the body broke off")
	}
	x.held, a.path = held, g.Path
	return g, nil
}

// through is the body of a request as it is to be sent.
func through(g *inject.Grip, body io.ReadCloser) io.ReadCloser {
	if !g.Reads() {
		return body
	}
	return struct {
		io.Reader
		io.Closer
	}{g.Request(body), body}
}
