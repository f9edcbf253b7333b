package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/intake/connect"
)

// relay sends a permitted stream upstream and its answer back.
func (x *h2exchange) relay(a *asked, act activity) {
	g, d := x.credential(a, act)
	if d != nil {
		x.refuse(d)
		return
	}
	out, sent := x.outgoing(a)
	early := &interim{w: x.w, grip: g}
	out = out.WithContext(httptrace.WithClientTrace(x.ctx, &httptrace.ClientTrace{
		GotConn:        func(i httptrace.GotConnInfo) { early.dialled(addrPort(i.Conn.RemoteAddr())) },
		Got1xxResponse: early.pass,
	}))
	rt := route{internal: act.decision.Internal, cleartext: a.scheme == connect.SchemeHTTP}
	resp, err := x.f.transports[rt.index()].RoundTrip(out)
	if err == nil && g.Replay(x.ctx, resp.StatusCode, inject.H2{Header: x.r.Header}, x.r.ContentLength == 0 || x.held != nil) {
		_ = resp.Body.Close() // its connection may go with it
		again, _ := x.outgoing(a)
		setPath(again.URL, g.Path)
		resp, err = x.f.transports[rt.index()].RoundTrip(again.WithContext(out.Context()))
	}
	x.n.dialled(early.end())
	defer func() { x.n.ReqBytes = capture.N(sent.n.Load()) }()
	if err != nil {
		x.failed(err, a)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or given up
	x.n.TTFBMillis = capture.N(x.n.since(x.f.e))
	x.n.Status = resp.StatusCode
	x.answer(resp)
}

func (x *h2exchange) outgoing(a *asked) (*http.Request, *counted) {
	r := x.r
	sent := &counted{ReadCloser: through(x.n.grip, r.Body)}
	h := r.Header
	stripHop(h)
	h.Del("Expect") // the server answers it when the body is asked for
	h.Del("Host")
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = []string{""} // none, rather than net/http's own
	}
	out := &http.Request{
		Method: r.Method, Host: r.Host, Header: h, ContentLength: r.ContentLength, Trailer: r.Trailer,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		URL: &url.URL{Scheme: a.scheme.String(), Host: a.target.String()},
	}
	for _, v := range h["Authorization"] {
		out.Close = out.Close || bindingScheme(v) // nobody else's request follows on that connection
	}
	switch {
	case x.held != nil:
		out.Body, out.ContentLength, out.Trailer = io.NopCloser(bytes.NewReader(x.held)), int64(len(x.held)), nil
		sent.n.Store(out.ContentLength)
	case r.ContentLength != 0:
		out.Body = sent
	}
	setPath(out.URL, a.path)
	return out, sent
}

// setPath makes net/http send exactly path.
func setPath(u *url.URL, path string) {
	if strings.HasPrefix(path, "//") { // as Opaque it would be a host
		if p, err := url.ParseRequestURI("http://x" + path); err == nil {
			u.Path, u.RawPath, u.RawQuery, u.ForceQuery = p.Path, p.RawPath, p.RawQuery, p.ForceQuery
			return
		}
	}
	u.Opaque = path
}

func (x *h2exchange) answer(resp *http.Response) {
	h := x.w.Header()
	stripHop(resp.Header)
	g := x.n.grip
	recoded, refusal := g.Answer(resp.StatusCode, inject.H2{Header: resp.Header}, x.r.Method == http.MethodHead || resp.ContentLength == 0 || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified)
	if refusal != nil {
		x.refuse(stopped(refusal, x.c.target))
		return
	}
	if recoded {
		resp.ContentLength = -1
	}
	for k, v := range resp.Header {
		h[k] = v
	}
	h.Del("Alt-Svc")
	announced := len(resp.Trailer)
	for k := range resp.Trailer {
		h.Add("Trailer", k)
	}
	x.w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(x.w)
	flush := resp.ContentLength < 0 || resp.ContentLength > copySize
	if flush {
		_ = rc.Flush() // an error shows in the writes
	}
	got, err := x.copy(g.Body(resp.Body), rc, flush)
	x.n.RespBytes = capture.N(got)
	if err != nil {
		x.broken(err)
	}
	if len(resp.Trailer) > 0 {
		_ = rc.Flush() // trailers need a body that has begun
	}
	g.Header(inject.H2{Header: resp.Trailer})
	for k, v := range resp.Trailer {
		if len(resp.Trailer) != announced {
			k = http.TrailerPrefix + k
		}
		h[k] = v
	}
}

// copy passes the body on as it comes.
func (x *h2exchange) copy(body io.Reader, rc *http.ResponseController, flush bool) (int64, error) {
	if x.r.Method == http.MethodHead {
		return 0, nil
	}
	b := buffers.get()
	defer buffers.put(b)
	var total int64
	for {
		m, err := body.Read(b[:])
		if m > 0 {
			if _, werr := x.w.Write(b[:m]); werr != nil {
				return total, &clientError{werr}
			}
			total += int64(m)
			if flush {
				if ferr := rc.Flush(); ferr != nil {
					return total, &clientError{ferr}
				}
			}
		}
		if err == io.EOF { //nolint:errorlint // as io.Reader says
			return total, x.ctx.Err() // an origin that was told to stop may still end its answer in order
		}
		if err != nil {
			return total, err
		}
	}
}

// clientError is a failure to write to the box.
type clientError struct{ error }

func (e *clientError) Unwrap() error { return e.error }

// failed answers for a stream that broke before its answer began.
func (x *h2exchange) failed(err error, a *asked) {
	switch {
	case errors.Is(context.Cause(x.ctx), errPolicy):
		x.n.cut(endPolicy)
	case x.n.grip.Tripped() != nil:
		x.refuse(stopped(x.n.grip.Tripped(), a.target))
		return
	case x.ctx.Err() != nil:
		x.n.aborted(x.ctx.Err())
	default:
		x.refuse(x.f.e.unreachable(err, a.target))
		return
	}
	panic(http.ErrAbortHandler) // resets the stream
}

// broken ends a stream whose answer could not be passed on whole.
func (x *h2exchange) broken(err error) {
	_, client := errors.AsType[*clientError](err)
	switch {
	case errors.Is(context.Cause(x.ctx), errPolicy):
		x.n.cut(endPolicy)
	case client || x.ctx.Err() != nil:
		x.n.aborted(err)
	default:
		x.n.brokeOff(err)
	}
	panic(http.ErrAbortHandler) // resets the stream
}

// counted counts what was read of a request body.
type counted struct {
	io.ReadCloser
	n atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	m, err := c.ReadCloser.Read(p)
	c.n.Add(int64(m))
	return m, err
}

// interim passes 1xx answers on, from the transport's goroutine, until the
// final one is there.
type interim struct {
	mu   sync.Mutex // guards the fields that follow
	w    http.ResponseWriter
	addr netip.AddrPort
	over bool
	n    int
	grip *inject.Grip
}

func (i *interim) dialled(a netip.AddrPort) {
	i.mu.Lock()
	i.addr = a
	i.mu.Unlock()
}

func (i *interim) pass(code int, h textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over || code == http.StatusContinue {
		return nil
	}
	if i.n++; i.n > maxInterim {
		return errors.New("interim answers without end")
	}
	out := i.w.Header()
	for k, v := range h {
		out[k] = v
	}
	stripHop(out)
	i.grip.Header(inject.H2{Header: out})
	i.w.WriteHeader(code)
	clear(out)
	return nil
}

func (i *interim) end() netip.AddrPort {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	return i.addr
}

// stripHop removes what belongs to one hop, as http1.StripHop does.
func stripHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, k := range []string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade",
		"Proxy-Authenticate", "Proxy-Authorization", "Http2-Settings",
	} {
		delete(h, k)
	}
	if te, ok := h["Te"]; ok {
		delete(h, "Te")
		if strings.Contains(strings.ToLower(strings.Join(te, ",")), "trailers") {
			h["Te"] = []string{"trailers"}
		}
	}
}
