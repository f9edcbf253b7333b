package proxy

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/gather"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// h2conn is a connection on which net/http serves HTTP/2, above TLS. It follows
// the frames for what net/http keeps to itself: when the client has taken an
// answer, and what was refused without a handler.
type h2conn struct {
	*gather.Conn
	streams
	in  inbound
	out outbound

	failed atomic.Bool // reading or writing did: not net/http ended it
	once   sync.Once
}

func newH2(c *client, conn net.Conn) *h2conn {
	x := &h2conn{Conn: gather.New(conn)}
	x.streams = streams{c: c, most: c.e.lim.Streams, open: make(map[uint32]openStream)}
	x.in, x.out = newInbound(conn, &x.streams, c.e.lim.HeaderBytes), outbound{s: &x.streams}
	x.Gather()
	return x
}

// open waits for what the client says first.
func (x *h2conn) open() error {
	_ = x.SetReadDeadline(time.Now().Add(x.c.e.lim.HeaderTime)) // an error shows in the read
	defer x.SetReadDeadline(time.Time{})                        //nolint:errcheck // likewise
	err := x.in.open()
	if err == errPreface { //nolint:errorlint // it is ours
		x.refused(policy.ReasonBadRequest, err.Error(), headline{})
	}
	return err
}

// Read implements net.Conn.
func (x *h2conn) Read(p []byte) (int, error) {
	n, err := x.in.read(p)
	if err != nil {
		x.failed.Store(true)
	}
	return n, err
}

// Write implements net.Conn.
func (x *h2conn) Write(p []byte) (int, error) {
	x.out.follow(p)
	n, err := x.Conn.Write(p)
	if err != nil {
		x.failed.Store(true)
	}
	return n, err
}

// Close implements net.Conn.
func (x *h2conn) Close() error {
	x.once.Do(func() { x.streams.close(x.failed.Load()) })
	return x.Conn.Close()
}

// streams are those of one connection.
type streams struct {
	c    *client
	most int // that a client may have

	mu     sync.Mutex // guards the fields that follow
	open   map[uint32]openStream
	gone   bool // the client was told to go away
	closed bool
}

type streamState uint8

const (
	streamOpen    streamState = 1 << iota // neither answered to its end nor reset
	streamServed                          // a handler is at it
	streamClaimed                         // one was
	streamCounted                         // among the requests in flight of its box, until neither of the first two holds
)

// openStream is one that is not over.
type openStream struct {
	streamState
	head headline // until a handler claims it
}

func (o openStream) has(st streamState) bool { return o.streamState&st != 0 }

// streamEnd is by what a stream ends.
type streamEnd uint8

const (
	endedByClient streamEnd = iota
	endedByUs
)

func (s *streams) opened(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.open[id] = openStream{streamState: streamOpen}
	}
}

// asked notes what the stream asks for. Of more streams than a client may have
// that would be held until each is told so.
func (s *streams) asked(id uint32, h headline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.open[id]; ok && len(s.open) <= s.most {
		o.head = h
		s.open[id] = o
	}
}

// claim is called by a handler for its stream. It reports whether the box may
// have one request more in flight.
func (s *streams) claim(id uint32) bool {
	counted := s.c.gauge.requests.take()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.open[id].streamState | streamServed | streamClaimed
	if counted {
		st |= streamCounted
	}
	s.open[id] = openStream{streamState: st}
	return counted
}

// left is called when the handler has ended.
func (s *streams) left(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id, streamServed)
}

// drop takes one thing away that holds a stream. s.mu is held.
func (s *streams) drop(id uint32, what streamState) {
	o := s.open[id]
	o.streamState &^= what
	if o.has(streamOpen | streamServed) {
		s.open[id] = o
		return
	}
	delete(s.open, id)
	if o.has(streamCounted) {
		s.c.gauge.requests.give()
	}
}

// ended notes that a stream has, and reports whether that was net/http's doing
// alone: no handler was asked.
func (s *streams) ended(id uint32, by streamEnd) (h headline, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[id]
	if !o.has(streamOpen) {
		return headline{}, false
	}
	s.drop(id, streamOpen)
	return o.head, by == endedByUs && !o.has(streamClaimed)
}

func (s *streams) unclaimed(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[id]
	return o.has(streamOpen) && !o.has(streamClaimed)
}

// answered notes the end of an answer. Where net/http answers by itself, with
// 400 or 431, text says why.
func (s *streams) answered(id uint32, text string) {
	switch h, alone := s.ended(id, endedByUs); {
	case !alone:
	case strings.Contains(text, strconv.Itoa(http.StatusRequestHeaderFieldsTooLarge)):
		s.c.e.meters.headers.Add(1)
		s.refused(policy.ReasonLimit, "the request head is too large", h)
	default:
		s.refused(policy.ReasonBadRequest, line(text), h)
	}
}

// reset notes that a stream was, by us.
func (s *streams) reset(id uint32, code h2code) {
	if h, alone := s.ended(id, endedByUs); alone && code != codeInternal {
		s.refused(code.reason(), "no request of HTTP/2: "+code.String(), h)
	}
}

// goAway notes that the connection is given up.
func (s *streams) goAway(code h2code) {
	s.mu.Lock()
	first := !s.gone
	s.gone = true
	s.mu.Unlock()
	if first && code != codeNone {
		s.refused(code.reason(), "the connection broke the rules of HTTP/2: "+code.String(), headline{})
	}
}

func (c h2code) reason() policy.Reason {
	if c == codeRefused || c == codeCalm {
		return policy.ReasonLimit
	}
	return policy.ReasonBadRequest
}

// close ends what is open. failed says that the connection did first.
func (s *streams) close(failed bool) {
	s.mu.Lock()
	s.closed = true
	for id := range s.open {
		s.drop(id, streamOpen)
	}
	gone := s.gone
	s.mu.Unlock()
	if !failed && !gone && s.c.endedBy() == endNone && s.c.ctx.Err() == nil && s.c.e.ctx.Err() == nil {
		s.refused(policy.ReasonLimit, "HTTP/2 was given up: too much to tell the client that it does not take", headline{})
	}
}

// refused records what no handler was asked about.
func (s *streams) refused(why policy.Reason, detail string, h headline) {
	s.c.requests.Add(1)
	n := s.c.e.begin(s.c)
	n.Proto, n.Scheme = capture.ProtoHTTP2, s.c.scheme().String()
	n.Method, n.Path, n.UA = h.method, h.path, h.ua
	n.refused(why, detail)
	s.c.e.finish(n)
}

// scheme is that of an HTTP/2 connection.
func (c *client) scheme() connect.Scheme {
	if c.secure {
		return connect.SchemeHTTPS
	}
	return connect.SchemeHTTP
}
