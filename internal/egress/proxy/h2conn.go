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
	x.streams.c = c
	x.in, x.out = inbound{r: conn, s: &x.streams, field: newStreamField()}, outbound{s: &x.streams}
	x.Gather()
	return x
}

// open waits for what the client says first.
func (x *h2conn) open() error {
	_ = x.SetReadDeadline(time.Now().Add(x.c.e.lim.HeaderTime)) // an error shows in the read
	defer x.SetReadDeadline(time.Time{})                        //nolint:errcheck // likewise
	err := x.in.open()
	if err == errPreface { //nolint:errorlint // it is ours
		x.refused(policy.ReasonBadRequest, err.Error())
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
	c *client

	mu     sync.Mutex // guards the fields that follow
	open   map[uint32]streamState
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

// streamEnd is by what a stream ends.
type streamEnd uint8

const (
	endedByClient streamEnd = iota
	endedByAnswer
	endedByReset
)

func (s *streams) opened(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[uint32]streamState)
	}
	if !s.closed {
		s.open[id] = streamOpen
	}
}

// claim is called by a handler for its stream. It reports whether the box may
// have one request more in flight.
func (s *streams) claim(id uint32) bool {
	counted := s.c.gauge.requests.take()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.open[id] | streamServed | streamClaimed
	if counted {
		st |= streamCounted
	}
	if s.open == nil {
		s.open = make(map[uint32]streamState)
	}
	s.open[id] = st
	return counted
}

// left is called when the handler has ended.
func (s *streams) left(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(id, s.open[id]&^streamServed)
}

// set settles what id is now. s.mu is held.
func (s *streams) set(id uint32, st streamState) {
	if st&(streamOpen|streamServed) != 0 {
		s.open[id] = st
		return
	}
	delete(s.open, id)
	if st&streamCounted != 0 {
		s.c.gauge.requests.give()
	}
}

// ended notes that a stream has, and reports whether that was net/http's doing
// alone: no handler was asked.
func (s *streams) ended(id uint32, by streamEnd) (alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.open[id]
	if st&streamOpen == 0 {
		return false
	}
	s.set(id, st&^streamOpen)
	return st&streamClaimed == 0 && by != endedByClient
}

func (s *streams) unclaimed(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.open[id]
	return st&streamOpen != 0 && st&streamClaimed == 0
}

// answered notes the end of an answer. Where net/http answers by itself, with
// 400 or 431, text says why.
func (s *streams) answered(id uint32, text string) {
	if !s.ended(id, endedByAnswer) {
		return
	}
	if strings.Contains(text, strconv.Itoa(http.StatusRequestHeaderFieldsTooLarge)) {
		s.c.e.meters.headers.Add(1)
		s.refused(policy.ReasonLimit, "the request head is too large")
		return
	}
	s.refused(policy.ReasonBadRequest, line(text))
}

// reset notes that a stream was, by us.
func (s *streams) reset(id uint32, code h2code) {
	if s.ended(id, endedByReset) && code != codeInternal {
		s.refused(code.reason(), "no request of HTTP/2: "+code.String())
	}
}

// goAway notes that the connection is given up.
func (s *streams) goAway(code h2code) {
	s.mu.Lock()
	first := !s.gone
	s.gone = true
	s.mu.Unlock()
	if first && code != codeNone {
		s.refused(code.reason(), "the connection broke the rules of HTTP/2: "+code.String())
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
	for id, st := range s.open {
		s.set(id, st&^streamOpen)
	}
	gone := s.gone
	s.mu.Unlock()
	if !failed && !gone && s.c.endedBy() == endNone && s.c.ctx.Err() == nil && s.c.e.ctx.Err() == nil {
		s.refused(policy.ReasonLimit, "HTTP/2 was given up: too much to tell the client that it does not take")
	}
}

// refused records what no handler was asked about.
func (s *streams) refused(why policy.Reason, detail string) {
	s.c.requests.Add(1)
	n := s.c.e.begin(s.c)
	n.Proto, n.Scheme = capture.ProtoHTTP2, s.c.scheme().String()
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
