package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"foldyard/internal/egress/intake/redirect"
)

type spoke uint8

const (
	spokeNothing spoke = iota // nothing in time
	spokeEnd                  // closed before a byte
	spokeOther                // neither TLS nor HTTP
	spokeTLS
	spokeHTTP
	spokeH2C // HTTP/2 by prior knowledge
)

// sniffed is what a client's first bytes are. They are still to be read.
type sniffed struct {
	kind spoke
	// The ClientHello, when it was there whole.
	hello bool
	sni   string
}

func (s sniffed) web() bool { return s.kind == spokeTLS || s.kind == spokeHTTP || s.kind == spokeH2C }

const (
	preface  = "PRI * HTTP/2.0\r\n"
	maxHello = 32 << 10 // bytes of a ClientHello that are waited for
	maxLine  = 8 << 10  // bytes of a request line that are looked at

	glanceTime = 25 * time.Millisecond
)

// glance looks whether the client has spoken TLS or HTTP at once.
func (e *Engine) glance(c *client, h hellos) sniffed {
	s := c.look(time.Now().Add(glanceTime), looking{hellos: h})
	if s.web() && (s.kind != spokeTLS || s.hello || h == headOnly) || s.kind == spokeEnd {
		return s
	}
	return sniffed{}
}

// sniff waits for the client's first bytes, where only TLS and HTTP may pass.
func (e *Engine) sniff(c *client, h hellos, wait time.Duration) sniffed {
	return c.look(time.Now().Add(wait), looking{hellos: h, strict: true})
}

// either waits for the first bytes of either side of a raw tunnel.
func (e *Engine) either(c *client, h hellos, up net.Conn) sniffed {
	until := time.Now().Add(e.lim.FirstBytes)
	how := looking{hellos: h}
	tcp, ok := up.(*net.TCPConn)
	if !ok {
		return c.look(until, how)
	}
	_ = tcp.SetReadDeadline(until) // a dead socket shows in the peek
	done := make(chan struct{})
	go func() {
		defer close(done)
		var one [1]byte
		if n, err := redirect.Peek(tcp, one[:], 0); n > 0 || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // the server spoke, or ended: stop waiting for the client
		}
	}()
	s := c.look(until, how)
	_ = tcp.SetReadDeadline(time.Unix(1, 0))
	<-done
	_ = tcp.SetReadDeadline(time.Time{})
	_ = c.SetReadDeadline(time.Time{})
	return s
}

// hellos says whether a ClientHello has to be read whole: its SNI is needed
// where it is not ours to answer.
type hellos bool

const (
	headOnly   hellos = false
	wholeHello hellos = true
)

// looking says how to look. strict means that nothing but TLS and HTTP may
// pass: then whatever begins like a request is left to the strict parser,
// which explains itself.
type looking struct {
	hellos hellos
	strict bool
}

// look peeks at the client's first bytes until it knows what they are.
func (c *client) look(until time.Time, how looking) sniffed {
	_ = c.SetReadDeadline(until)         // a dead socket shows in the peek
	defer c.SetReadDeadline(time.Time{}) //nolint:errcheck // likewise
	size := 512
	have := 0
	for {
		b := make([]byte, size)
		n, err := c.peek(b, have)
		s, more := classify(b[:n], how)
		if !more {
			return s
		}
		switch {
		case errors.Is(err, redirect.ErrClosed) && n == 0, errors.Is(err, io.EOF) && n == 0:
			return sniffed{kind: spokeEnd}
		case err != nil && n == 0 && !errors.Is(err, os.ErrDeadlineExceeded):
			return sniffed{kind: spokeEnd}
		case err != nil && n == 0:
			return sniffed{kind: spokeNothing}
		case err != nil && s.kind == spokeNothing:
			return sniffed{kind: spokeOther}
		case err != nil:
			return s
		}
		if have = n; n == size {
			size *= 4
		}
	}
}

// peek is redirect.Peek, or reading into pre where that is impossible.
func (c *client) peek(b []byte, have int) (int, error) {
	if c.tcp == nil {
		if len(c.pre) <= have {
			var p [4096]byte
			n, err := c.Conn.Read(p[:])
			c.pre = append(c.pre, p[:n]...)
			if n == 0 {
				return copy(b, c.pre), err
			}
		}
		return copy(b, c.pre), nil
	}
	if n := copy(b, c.pre); n == len(b) || n > have {
		return n, nil
	}
	n, err := redirect.Peek(c.tcp, b[len(c.pre):], max(0, have-len(c.pre)))
	return len(c.pre) + n, err
}

// classify says what b begins with, and whether more bytes could tell more.
func classify(b []byte, how looking) (s sniffed, more bool) {
	switch {
	case len(b) == 0:
		return sniffed{}, true
	case b[0] == 22 && (len(b) < 2 || b[1] == 3):
		if how.hellos == wholeHello {
			return hello(b)
		}
		return sniffed{kind: spokeTLS}, len(b) < 2
	case b[0] < 'A' || b[0] > 'Z' && b[0] < 'a' || b[0] > 'z':
		return sniffed{kind: spokeOther}, false
	case bytes.HasPrefix(b, []byte(preface)):
		return sniffed{kind: spokeH2C}, false
	}
	unsure := sniffed{}
	if how.strict {
		unsure.kind = spokeHTTP
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	switch {
	case !whole && bytes.HasPrefix([]byte(preface), b):
		return unsure, true
	case how.strict:
		return unsure, false
	case !requestLine(bytes.TrimSuffix(line, []byte("\r")), whole):
		return sniffed{kind: spokeOther}, false
	case whole:
		return sniffed{kind: spokeHTTP}, false
	}
	return unsure, len(b) < maxLine
}

// requestLine reports whether line is a request line, or the beginning of one.
func requestLine(line []byte, whole bool) bool {
	method, rest, spaced := bytes.Cut(line, []byte(" "))
	if len(method) > 24 {
		return false
	}
	for _, c := range method {
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	for _, c := range rest {
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	if !whole {
		return true
	}
	i := bytes.LastIndexByte(rest, ' ')
	return spaced && i > 0 && bytes.HasPrefix(rest[i+1:], []byte("HTTP/"))
}

// hello reads the ClientHello in b with crypto/tls itself, so that a tunnel's
// SNI is read as an intercepted one is.
func hello(b []byte) (s sniffed, more bool) {
	s.kind = spokeTLS
	r := &helloConn{b: b}
	err := tls.Server(r, &tls.Config{
		MinVersion: tls.VersionTLS10, //nolint:gosec // G402: nothing is negotiated, the hello is only read
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			s.hello, s.sni = true, h.ServerName
			return nil, errHello
		},
	}).Handshake()
	return s, !s.hello && errors.Is(err, errMore) && len(b) < maxHello
}

var (
	errHello = errors.New("client hello read")
	errMore  = errors.New("client hello incomplete")
)

// helloConn is a connection whose other end has sent b so far.
type helloConn struct {
	net.Conn
	b []byte
}

func (h *helloConn) Read(p []byte) (int, error) {
	if len(h.b) == 0 {
		return 0, errMore
	}
	n := copy(p, h.b)
	h.b = h.b[n:]
	return n, nil
}

func (h *helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (h *helloConn) Close() error                     { return nil }
func (h *helloConn) SetDeadline(time.Time) error      { return nil }
func (h *helloConn) SetReadDeadline(time.Time) error  { return nil }
func (h *helloConn) SetWriteDeadline(time.Time) error { return nil }
