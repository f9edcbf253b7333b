package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
)

// relay sends a permitted request upstream and its answer back, and reports
// whether another request may follow.
func (s *session) relay(n *note, a *asked, act activity) bool {
	r := &s.req
	ws := act.kind == socket
	r.Header = http1.StripHop(r.Header, ws)
	if !ws {
		r.Header.Del("Upgrade")
	}
	closing := r.Close
	g, d := s.e.credential(s.c.ctx, s.c, n, a, act, inject.Request{Header: inject.H1{Header: &r.Header}, Host: r.Host, Body: r.Length != 0, Length: r.Length})
	if d == nil {
		d = s.hold(g)
	}
	if d != nil {
		return s.refuse(n, d)
	}
	r.Target = a.path
	if g != nil {
		r.Target = g.Path // signed over the body
	}
	r.Close = false
	defer func() { r.Close = closing }()
	k := poolKey{target: a.target, tls: a.tls, internal: act.decision.Internal, socket: ws}
	for try := 0; ; try++ {
		var u *upstream
		var err error
		if try == 0 {
			u = s.take(k)
		}
		if u == nil {
			u, err = s.e.connect(s.c.ctx, k, try > 0 || ws)
		}
		if err != nil {
			if n.cut(s.c.endedBy()) {
				return false
			}
			return s.refuse(n, s.e.unreachable(err, a.target))
		}
		n.dialled(u.addr)
		if !s.c.attach(u.bare()) {
			n.cut(s.c.endedBy())
			return false
		}
		x := exchange{s: s, n: n, u: u, closing: closing}
		if ws {
			return x.upgrade()
		}
		keep, again := x.run()
		if !again || try > 0 && !x.replayed {
			return keep
		}
	}
}

// exchange is one request and its answer on one upstream connection.
type exchange struct {
	s       *session
	n       *note
	u       *upstream
	up      *upload
	closing bool // the client wants the connection closed after it
	sent    int64

	continued bool // the client was told to send the body it holds back
	withheld  bool // the client holds the body back, and will not send it

	replayed bool // it is to be sent again with another credential
}

// upload is a request body on its way while the answer is awaited.
type upload struct {
	done chan struct{}
	n    int64
	err  error
}

// run reports whether the client's connection may go on, or whether the
// request should be sent again: only on a pooled connection that turns out to
// be closed, and only what may be sent twice.
func (x *exchange) run() (keep, again bool) {
	s, r := x.s, &x.s.req
	s.c.enter(phaseWaiting)
	defer s.c.enter(phaseBusy)
	err := x.send()
	if err == nil {
		err = x.head()
	}
	if err != nil {
		x.u.abort()
		x.settle()
		if x.u.used && x.sent == 0 && r.Length == 0 && idempotent(r.Method) && s.c.endedBy() == endNone && !answered(err) {
			return false, true
		}
		return x.fail(err), false
	}
	if x.replayed = x.replays(); x.replayed {
		return false, true
	}
	return x.answer(), false
}

func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// answered reports whether upstream said something, if wrong.
func answered(err error) bool {
	_, bad := errors.AsType[*http1.Error](err)
	_, client := errors.AsType[*clientError](err)
	return bad || client
}

// send writes the head and what is at hand of the body. The rest follows while
// the answer is awaited: it may come first.
func (x *exchange) send() error {
	s, r, u := x.s, &x.s.req, x.u
	if err := u.writeHead(r); err != nil {
		return err
	}
	if r.Length == 0 {
		return u.bw.Flush()
	}
	if s.held != nil {
		n, err := u.bw.Write(s.held)
		x.sent = int64(n)
		if err == nil {
			err = u.bw.Flush()
		}
		return err
	}
	s.body.Reset(s.br, r.Length, s.e.heads)
	if !r.Expect100 && r.Length > 0 && int64(s.br.Buffered()) >= r.Length {
		var err error
		x.sent, err = x.copyUp()
		return err
	}
	if err := u.bw.Flush(); err != nil {
		return err
	}
	up := &upload{done: make(chan struct{})}
	x.up = up
	go func() {
		defer close(up.done)
		up.n, up.err = x.copyUp()
		if _, write := errors.AsType[*http1.WriteError](up.err); up.err != nil && !write {
			u.abort() // the client broke off: nothing to answer
		}
	}()
	return nil
}

// writeHead writes the head of r, in absolute form to an upstream proxy.
func (u *upstream) writeHead(r *http1.Request) error {
	if u.via == nil {
		return r.WriteHead(u.bw)
	}
	out := *r
	out.Target = "http://" + u.key.target.String()
	if u.key.target.Port == 80 {
		out.Target = "http://" + strings.TrimSuffix(u.key.target.String(), ":80")
	}
	if r.Target != "*" {
		out.Target += r.Target
	}
	if u.via.auth != "" {
		out.Header = append(out.Header.Clone(), http1.Field{Name: "Proxy-Authorization", Value: u.via.auth})
	}
	return out.WriteHead(u.bw)
}

// head reads up to the head of the final answer and passes interim ones on.
func (x *exchange) head() error {
	s := x.s
	for range maxInterim {
		if err := s.resp.Read(x.u.br, s.req.Method, s.e.heads); err != nil {
			return err
		}
		if s.resp.Status >= 200 {
			x.n.TTFBMillis = capture.N(x.n.since(s.e))
			return nil
		}
		if s.resp.Status == http.StatusSwitchingProtocols {
			return &http1.Error{Status: http.StatusBadGateway, Why: "a change of protocol that nobody asked for"}
		}
		if s.req.Minor == 0 {
			continue
		}
		s.resp.Header = http1.StripHop(s.resp.Header, false)
		x.n.grip.Header(inject.H1{Header: &s.resp.Header})
		s.resp.Text = x.n.grip.Text(s.resp.Text)
		if err := s.resp.WriteHead(s.bw); err != nil {
			return &clientError{err}
		}
		if err := s.bw.Flush(); err != nil {
			return &clientError{err}
		}
		x.continued = x.continued || s.resp.Status == http.StatusContinue
	}
	return &http1.Error{Status: http.StatusBadGateway, Why: "interim answers without end"}
}

const maxInterim = 32

// answer passes the final answer on.
func (x *exchange) answer() (keep bool) {
	s, p := x.s, &x.s.resp
	x.n.Status = p.Status
	reusable, length := !p.Close, p.Length
	x.u.bound = x.u.bound || personal(s.req.Header, p.Header)
	p.Header = http1.StripHop(p.Header, false)
	p.Header.Del("Alt-Svc")
	p.Text = x.n.grip.Text(p.Text)
	recoded, refusal := x.n.grip.Answer(p.Status, inject.H1{Header: &p.Header}, p.NoBody)
	if refusal != nil {
		x.u.abort()
		x.settle()
		d := stopped(refusal, x.u.key.target)
		d.close = true
		return s.answer(x.n, d)
	}
	if recoded {
		p.Length = http1.Chunked
	}
	x.withheld = x.up != nil && s.req.Expect100 && !x.continued && !x.up.over()
	p.Close = x.closing || x.withheld
	switch {
	case p.Length == http1.UntilClose && s.req.Minor > 0 && !p.NoBody:
		p.Length = http1.Chunked
	case p.Length == http1.Chunked && s.req.Minor == 0:
		p.Length = http1.UntilClose
	}
	closing := p.Close || p.Length == http1.UntilClose && !p.NoBody
	err := p.WriteHead(s.bw)
	var got int64
	if err == nil && p.NoBody {
		err = s.bw.Flush()
	} else if err == nil {
		s.reply.Reset(x.u.br, length, s.e.heads)
		got, err = x.copyDown(p.Length == http1.Chunked)
	}
	x.n.RespBytes = capture.N(got)
	if err != nil {
		x.u.abort()
		x.settle()
		x.broken(err)
		return false
	}
	if !x.finishUpload() {
		reusable, closing = false, true
	}
	x.n.ReqBytes = capture.N(x.sent)
	if reusable {
		s.c.end() // nothing that ends the client may end what others will use
		if x.u.bound {
			s.keep(x.u)
		} else {
			s.e.pool.put(x.u)
		}
	} else {
		x.u.abort()
	}
	if closing {
		s.e.finish(x.n)
		s.hangUp()
	}
	return !closing
}

func (u *upload) over() bool {
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

// finishUpload waits a moment for a body that outlives its answer, and reports
// whether it went out whole.
func (x *exchange) finishUpload() bool {
	if x.up == nil {
		return true
	}
	if !x.up.over() && !x.withheld {
		t := time.NewTimer(afterAnswer)
		defer t.Stop()
		select {
		case <-x.up.done:
		case <-t.C:
		}
	}
	if !x.up.over() {
		x.u.abort()
		x.settle()
		return false
	}
	x.sent = x.up.n
	return x.up.err == nil
}

const afterAnswer = time.Second

// settle ends an upload: no goroutine outlives its exchange.
func (x *exchange) settle() {
	if x.up == nil {
		return
	}
	if !x.up.over() {
		_ = x.s.c.SetReadDeadline(time.Unix(1, 0)) // wakes its read from the client
		<-x.up.done
		_ = x.s.c.SetReadDeadline(time.Time{})
	}
	x.sent = x.up.n
	x.n.ReqBytes = capture.N(x.sent)
}

// fail answers for an exchange that broke before its answer began.
func (x *exchange) fail(err error) (keep bool) {
	s := x.s
	if x.n.cut(s.c.endedBy()) {
		return false
	}
	if r := x.n.grip.Tripped(); r != nil {
		d := stopped(r, x.u.key.target)
		d.close = true
		return s.answer(x.n, d)
	}
	if x.up != nil && x.up.err != nil {
		if bad, ok := errors.AsType[*http1.Error](x.up.err); ok { // of the client's chunks
			d := malformed(bad.Status, policy.ReasonBadRequest, bad.Why)
			d.target, d.sent = x.u.key.target, true
			return s.answer(x.n, d)
		}
		if _, write := errors.AsType[*http1.WriteError](x.up.err); !write && !errors.Is(x.up.err, os.ErrDeadlineExceeded) {
			x.n.aborted(x.up.err)
			reset(s.c.Conn)
			return false
		}
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("closed before it answered: %w", err)
	}
	d := s.e.unreachable(err, x.u.key.target)
	d.close = s.req.Length != 0
	return s.answer(x.n, d)
}

// broken notes an answer that could not be passed on whole. The client must
// see that it was cut short.
func (x *exchange) broken(err error) {
	if !x.n.cut(x.s.c.endedBy()) {
		if _, write := errors.AsType[*http1.WriteError](err); write {
			x.n.aborted(err)
		} else {
			x.n.brokeOff(err)
		}
	}
	if x.s.resp.Length == http1.UntilClose {
		reset(x.s.c.Conn) // an ordinary end would look like the answer's
	} else {
		_ = x.s.c.Conn.Close() // no close_notify, and less than was announced
	}
}
