package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// session serves the requests of one HTTP/1.1 connection in turn: decrypted,
// plain, or on the proxy port.
type session struct {
	e      *Engine
	c      *client
	conn   net.Conn       // over c: TLS, or c itself
	bound  dest.Target    // what the connection is for; zero on the proxy port
	scheme connect.Scheme // of the connection
	br     *bufio.Reader  // nil between requests
	bw     *bufio.Writer
	// The first byte of a request, read before there was a buffer to wait with.
	first [1]byte
	ahead bool

	req   http1.Request
	resp  http1.Response
	body  http1.Body // of the request
	reply http1.Body
	n     note
	held  []byte    // the body, where it had to be read first
	own   *upstream // set aside for this client, see personal
}

func (e *Engine) session(c *client, conn net.Conn, scheme connect.Scheme) *session {
	return &session{e: e, c: c, conn: conn, bound: c.target, scheme: scheme}
}

// Read gives the reader its input.
func (s *session) Read(p []byte) (int, error) {
	if s.ahead {
		s.ahead = false
		p[0] = s.first[0]
		return 1, nil
	}
	return s.conn.Read(p)
}

// serve returns when the connection has ended, with what the first read met if
// there was no request at all.
func (s *session) serve() error {
	defer s.part()
	defer s.release()
	for served := 0; ; served++ {
		err := s.await()
		if err == nil {
			err = s.req.Read(s.br, s.e.heads)
		}
		if err != nil {
			s.unread(err)
			if served > 0 {
				err = nil
			}
			return err
		}
		s.c.enter(phaseBusy)
		if s.bound.IsZero() && s.c.box.Token != nil {
			if !s.c.box.authorized(s.req.Header) {
				s.tokenless()
				return nil
			}
			s.req.Header.Del("Proxy-Authorization") // it has been where it belongs
		}
		if s.bound.IsZero() && s.req.Method == http.MethodConnect {
			s.connected()
			return nil
		}
		if !s.exchange() {
			return nil
		}
	}
}

// await waits for the next request, without a buffer while there is none.
func (s *session) await() error {
	if s.br != nil && s.br.Buffered() > 0 {
		s.c.enter(phaseHead)
		return nil
	}
	s.release()
	s.forget()
	s.c.enter(phaseIdle)
	if _, err := s.conn.Read(s.first[:]); err != nil {
		return err
	}
	s.c.enter(phaseHead)
	s.ahead = true
	s.br, s.bw = readers.get(s), writers.get(s.conn)
	_, _ = s.br.Peek(2) // the rest of what came with the first byte; an error is met again
	return nil
}

// forget lets go of the last exchange: an idle connection keeps no text of it.
func (s *session) forget() {
	clear(s.req.Header)
	clear(s.resp.Header)
	s.req = http1.Request{Header: s.req.Header[:0]}
	s.resp = http1.Response{Header: s.resp.Header[:0]}
	s.n = note{}
	s.held = nil
}

func (s *session) release() {
	if s.br != nil {
		readers.put(s.br)
		writers.put(s.bw)
		s.br, s.bw = nil, nil
	}
}

// unread ends a connection whose next request could not be read.
func (s *session) unread(err error) {
	var d *denial
	e, bad := errors.AsType[*http1.Error](err)
	switch {
	case bad:
		d = malformed(e.Status, policy.ReasonBadRequest, e.Why)
		if e.Status == http.StatusRequestHeaderFieldsTooLarge {
			d.reason = policy.ReasonLimit
			s.e.meters.headers.Add(1)
		}
	case errors.Is(err, os.ErrDeadlineExceeded) && s.c.phase.Load() == phaseHead:
		d = malformed(http.StatusRequestTimeout, policy.ReasonLimit, "the request head took too long")
	case errors.Is(err, io.EOF):
		_ = s.conn.Close() // close_notify, FIN; it has said its last, so nothing comes that would reset them away
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.e.meters.idle.Add(1)
		s.hangUp()
		return
	default:
		reset(s.c.Conn)
		return
	}
	n := s.open()
	defer s.e.finish(n)
	d.target = s.bound
	s.answer(n, d)
}

// open begins the record of a request.
func (s *session) open() *note {
	s.n.open(s.c, s.e.cfg.Now())
	s.n.Proto = capture.ProtoHTTP1
	s.n.Scheme = s.scheme.String()
	s.c.requests.Add(1)
	return &s.n
}

// exchange serves one request, and reports whether another may follow.
func (s *session) exchange() bool {
	n := s.open()
	defer s.e.finish(n)
	r := &s.req
	n.Method, n.Path = r.Method, r.Target
	n.UA = r.Header.Get("User-Agent")
	if !s.c.gauge.requests.take() {
		return s.refuse(n, crowded(s.bound))
	}
	defer s.c.gauge.requests.give()
	if s.c.sni != "" {
		return s.refuse(n, misaligned(s.bound, "SNI", s.c.sni))
	}
	a, d := place(r.Method, r.Target, r.Host, s.scheme, s.bound)
	if d != nil && (r.Method != http.MethodConnect || s.bound.IsZero()) {
		return s.refuse(n, d)
	}
	a.tls = a.scheme == connect.SchemeHTTPS
	if r.Host == "" { // RFC 9112 3.2.2: lest the origin takes the request for another of its hosts
		r.Host = strings.TrimSuffix(a.target.String(), ":"+strconv.Itoa(int(a.scheme.Default())))
	}
	n.to(a.target)
	n.Scheme, n.Path = a.scheme.String(), a.path
	if h := s.e.local(&a); h != nil {
		return s.control(n, &a, h)
	}
	for {
		act, snap, d := s.e.admit(s.c.ctx, s.c, n, &a)
		if d != nil {
			return s.refuse(n, d)
		}
		if websocket(r) {
			act.kind = socket
		}
		if s.c.begin(snap, act) {
			defer s.c.end()
			return s.relay(n, &a, act)
		}
	}
}

// connected reads a CONNECT on the proxy port. If it has a target, that is the
// connection's from now on.
func (s *session) connected() {
	c := s.c
	c.via = capture.ViaConnect
	t, err := connect.Tunnel(&s.req)
	if err == nil {
		t, err = c.box.named(t)
	}
	if r := s.e.cfg.Inject.Connect(c.box.ID, t, inject.H1{Header: &s.req.Header}); err == nil && r != nil {
		n := s.open()
		defer s.e.finish(n)
		n.Proto, n.Scheme, n.Method = "", "", http.MethodConnect
		d := stopped(r, t)
		d.connect, d.close = true, true
		s.answer(n, d)
		return
	}
	if err == nil {
		c.setTarget(t)
		c.accepts = acceptOf(s.req.Header.Get("Accept"))
		c.unread(s.br) // what was sent before our answer
		return
	}
	n := s.open()
	defer s.e.finish(n)
	n.Proto, n.Scheme, n.Method = "", "", http.MethodConnect
	d := badTarget(err)
	if _, ok := errors.AsType[*connect.Error](err); ok {
		d.reason, d.what = policy.ReasonBadRequest, reasonOf(err)
	}
	d.target, d.connect = t, true
	if t.IsZero() {
		n.host = cutText(s.req.Target)
	}
	s.answer(n, d)
}

// unread gives back what br has read of c and nobody took.
func (c *client) unread(br *bufio.Reader) {
	if k := br.Buffered(); k > 0 {
		b, _ := br.Peek(k) // it is buffered
		c.pre = append(append([]byte(nil), b...), c.pre...)
	}
}

// refuse answers a request, and reports whether another may follow.
func (s *session) refuse(n *note, d *denial) bool {
	if s.req.Length != 0 && !s.drained() {
		d.close = true
	}
	return s.answer(n, d)
}

// drained reads a small body to its end, so that the connection stays in step.
func (s *session) drained() bool {
	if s.req.Expect100 {
		return false
	}
	s.body.Reset(s.br, s.req.Length, s.e.heads)
	s.c.enter(phaseHead)
	defer s.c.enter(phaseBusy)
	return s.body.Drain(drainBytes) == nil
}

const drainBytes = 64 << 10

func (s *session) answer(n *note, d *denial) bool {
	n.denied(d)
	n.Status = d.status
	closing := d.close || s.req.Close
	if s.br == nil {
		closing = true
		s.br, s.bw = readers.get(s), writers.get(s.conn)
	}
	as := acceptOf(s.req.Header.Get("Accept"))
	if err := d.respond(s.bw, as, s.req.Method == http.MethodHead, closing); err != nil || !closing {
		return err == nil
	}
	s.e.finish(n)
	s.hangUp()
	return false
}

// hangUp closes in order: close_notify, FIN, and what the client still sends
// is read for a moment, lest it resets our last words away.
func (s *session) hangUp() {
	_ = s.c.SetDeadline(time.Now().Add(s.e.lim.Linger)) // TLS must not wait for a client that takes nothing
	if t, ok := s.conn.(interface{ CloseWrite() error }); ok && s.conn != net.Conn(s.c) {
		_ = t.CloseWrite() // it may be gone already
	}
	s.c.linger()
}

func websocket(r *http1.Request) bool {
	return r.Method == http.MethodGet && r.Length == 0 && strings.EqualFold(r.Upgrade, "websocket") && r.Header.Has("Sec-WebSocket-Key")
}
