package proxy

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// front serves HTTP/2 with net/http's server, one for all connections, and
// sends with its transports: to an HTTP/2 origin where there is one, else
// HTTP/1.1.
type front struct {
	e    *Engine
	srv  *http.Server
	in   chan net.Conn
	done chan struct{}
	once sync.Once

	mu       sync.RWMutex // guards closed, and orders it before handlers.Wait
	closed   bool
	handlers sync.WaitGroup

	transports [4]*http.Transport // by route.index
}

// route says which transport a request takes: connections are never shared
// between them.
type route struct{ internal, cleartext bool }

func (r route) index() int {
	i := 0
	if r.internal {
		i |= 1
	}
	if r.cleartext {
		i |= 2
	}
	return i
}

func newFront(e *Engine) *front {
	f := &front{e: e, in: make(chan net.Conn), done: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true) // TLS ends below what it is handed
	f.srv = &http.Server{
		Handler: f, Protocols: protocols, MaxHeaderBytes: e.lim.HeaderBytes + streamFieldRoom, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: e.lim.HeaderTime, IdleTimeout: e.lim.Idle,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: e.lim.Streams},
		ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, nc)
		},
	}
	for _, r := range []route{{}, {internal: true}, {cleartext: true}, {internal: true, cleartext: true}} {
		f.transports[r.index()] = f.transport(r)
	}
	return f
}

type connKey struct{}

func (f *front) transport(r route) *http.Transport {
	protocols := new(http.Protocols)
	if r.cleartext {
		protocols.SetUnencryptedHTTP2(true)
	} else {
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
	}
	e := f.e
	return &http.Transport{
		Protocols: protocols, DisableCompression: true, MaxResponseHeaderBytes: int64(e.lim.HeaderBytes),
		MaxIdleConns: e.lim.Pooled, MaxIdleConnsPerHost: e.lim.Pooled, IdleConnTimeout: e.lim.IdleUpstream,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return dialled(ctx, e, addr, func(ctx context.Context, t dest.Target) (net.Conn, error) {
				nc, _, err := e.cfg.Dialer.Dial(ctx, t, r.internal)
				return nc, err
			})
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return dialled(ctx, e, addr, func(ctx context.Context, t dest.Target) (net.Conn, error) {
				nc, _, err := e.cfg.Dialer.DialTLS(ctx, t, r.internal, "h2", "http/1.1")
				if err != nil {
					return nil, err
				}
				return nc, nil
			})
		},
	}
}

func dialled(ctx context.Context, e *Engine, addr string, dial func(context.Context, dest.Target) (net.Conn, error)) (net.Conn, error) {
	t, err := dest.Parse(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.lim.Dial)
	defer cancel()
	return dial(ctx, t)
}

// serve hands conn, which runs over c, to the server and returns when it has
// ended, with what the first read met if it was no HTTP/2.
func (f *front) serve(c *client, conn net.Conn) error {
	f.once.Do(func() {
		f.e.wg.Go(func() { _ = f.srv.Serve(f) }) // always ErrServerClosed
	})
	x := newH2(c, conn)
	if err := x.open(); err != nil {
		return err
	}
	select {
	case f.in <- x:
		<-c.ctx.Done() // Close of c ends it
	case <-f.done:
	case <-c.ctx.Done():
	}
	return nil
}

// Accept, Close and Addr make front the server's listener.
func (f *front) Accept() (net.Conn, error) {
	select {
	case c := <-f.in:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close is called by the server when it stops.
func (f *front) Close() error { return nil }

// Addr names nothing: there is no socket.
func (f *front) Addr() net.Addr { return &net.TCPAddr{} }

func (f *front) close() {
	f.mu.Lock()
	closed := f.closed
	f.closed = true
	f.mu.Unlock()
	if !closed {
		close(f.done)
	}
	_ = f.srv.Close() // the connections are cut already
	f.handlers.Wait()
	for _, t := range f.transports {
		t.CloseIdleConnections()
	}
}

// enter counts a handler in, unless the front is closed.
func (f *front) enter() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !f.closed {
		f.handlers.Add(1)
	}
	return !f.closed
}

// ServeHTTP serves one stream.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, ok := r.Context().Value(connKey{}).(*h2conn)
	if !ok || !f.enter() {
		panic(http.ErrAbortHandler)
	}
	defer f.handlers.Done()
	c := conn.c
	c.requests.Add(1)
	n := f.e.begin(c)
	defer f.e.finish(n)
	x := h2exchange{f: f, c: c, n: n, w: w, r: r}
	n.Proto, n.Scheme, n.Method, n.Path, n.UA = capture.ProtoHTTP2, c.scheme().String(), r.Method, r.RequestURI, r.UserAgent()
	id, ok := conn.in.field.take(r.Header)
	if !ok { // its header block swallowed the number
		n.refused(policy.ReasonBadRequest, "a header block that does not end where it says")
		panic(http.ErrAbortHandler)
	}
	defer conn.left(id)
	if !conn.claim(id) {
		x.crowded()
		return
	}
	x.serve()
}

// crowded refuses a stream beyond what its box may have in flight. A client
// that does not take the refusals, by its flow control, loses the connection:
// those streams would be held instead.
func (x *h2exchange) crowded() {
	d := crowded(x.c.target)
	if x.c.gauge.refusing.take() {
		defer x.c.gauge.refusing.give()
		x.say(d)
		_ = http.NewResponseController(x.w).Flush() // it may be gone
		return
	}
	x.n.denied(d)
	x.c.cut(endFlood)
	panic(http.ErrAbortHandler)
}

// h2exchange is one stream and its answer.
type h2exchange struct {
	f   *front
	c   *client
	n   *note
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context

	held []byte // the body, where it had to be read first
}

func (x *h2exchange) serve() {
	c, n, r := x.c, x.n, x.r
	scheme := c.scheme()
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		n.Proto = capture.ProtoGRPC
	}
	if c.sni != "" {
		x.refuse(misaligned(c.target, "SNI", c.sni))
		return
	}
	a := asked{method: r.Method, target: c.target, scheme: scheme, path: r.RequestURI}
	if r.Method != http.MethodConnect {
		var d *denial
		if a, d = place(r.Method, r.RequestURI, r.Host, scheme, c.target); d != nil {
			x.refuse(d)
			return
		}
	}
	if h, ok := r.Header["Host"]; ok && (len(h) != 1 || !named(h[0], c.target)) {
		x.refuse(misaligned(c.target, "Host", strings.Join(h, ", ")))
		return
	}
	n.Path = a.path
	if h := x.f.e.local(&a); h != nil {
		n.silent = c.target.Host.Name() == dest.ControlName
		n.Verdict = capture.VerdictAllow
		h.ServeHTTP(x.w, r)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	x.ctx = ctx
	for {
		act, snap, d := x.f.e.admit(ctx, c, n, &a)
		if d != nil {
			x.refuse(d)
			return
		}
		st := &stream{doing: act, cancel: cancel}
		if c.join(snap, st) {
			defer c.leave(st)
			x.relay(&a, act)
			return
		}
		c.leave(st)
	}
}

// join is begin for a stream.
func (c *client) join(snap *policy.Snapshot, s *stream) bool {
	c.mu.Lock()
	if c.streams == nil {
		c.streams = make(map[*stream]struct{})
	}
	c.streams[s] = struct{}{}
	c.mu.Unlock()
	return c.e.cfg.Policy() == snap
}

func (c *client) leave(s *stream) {
	c.mu.Lock()
	delete(c.streams, s)
	c.mu.Unlock()
}

func (x *h2exchange) refuse(d *denial) {
	x.say(d)
	x.linger()
}

func (x *h2exchange) say(d *denial) {
	x.n.denied(d)
	x.n.Status = d.status
	d.ServeHTTP(x.w, x.r)
}

// linger gives a client whose body has not come time to read the answer:
// net/http resets such a stream when its handler ends, and there are clients
// to whom an answer is lost that comes together with its reset.
func (x *h2exchange) linger() {
	if x.r.ContentLength == 0 {
		return
	}
	x.f.e.finish(x.n)
	rc := http.NewResponseController(x.w)
	_ = rc.Flush() // the client may be gone, which shows in the reads
	_ = rc.SetReadDeadline(time.Now().Add(x.f.e.lim.Linger))
	_, _ = io.CopyN(io.Discard, x.r.Body, lingerBytes)
}
