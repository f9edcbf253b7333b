package proxy

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // G505: RFC 6455 says so
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/inject"
)

// upgrade carries a WebSocket: after a proper 101 its bytes pass unread, both
// ways, for as long as both sides want.
func (x *exchange) upgrade() (keep bool) {
	s, u := x.s, x.u
	s.c.enter(phaseWaiting)
	defer s.c.enter(phaseBusy)
	key := s.req.Header.Get("Sec-WebSocket-Key")
	err := s.req.WriteHead(u.bw)
	if err == nil {
		err = u.bw.Flush()
	}
	for err == nil {
		if err = s.resp.Read(u.br, s.req.Method, s.e.heads); err != nil || s.resp.Status >= 200 || s.resp.Status == http.StatusSwitchingProtocols {
			break
		}
	}
	switch {
	case err != nil:
		u.abort()
		return x.fail(err)
	case s.resp.Status != http.StatusSwitchingProtocols:
		x.n.TTFBMillis = capture.N(x.n.since(s.e))
		return x.answer()
	case !strings.EqualFold(s.resp.Upgrade, "websocket") || s.resp.Header.Get("Sec-WebSocket-Accept") != acceptKey(key):
		u.abort()
		return x.fail(&http1.Error{Status: http.StatusBadGateway, Why: "a 101 that accepts no WebSocket"})
	}
	x.n.Proto, x.n.Status = capture.ProtoWebSocket, s.resp.Status
	x.n.TTFBMillis = capture.N(x.n.since(s.e))
	s.resp.Header = http1.StripHop(s.resp.Header, true)
	x.n.grip.Header(inject.H1{Header: &s.resp.Header})
	s.resp.Text = x.n.grip.Text(s.resp.Text)
	s.resp.Close = false
	if err = s.resp.WriteHead(s.bw); err == nil {
		err = s.bw.Flush()
	}
	if err != nil {
		u.abort()
		x.n.aborted(err)
		return false
	}
	s.c.enter(phaseOpen)
	var back atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err := flow(s.conn, u.br, u.Conn)
		back.Store(n)
		s.c.half(err)
	}()
	sent, err := flow(u.Conn, s.br, s.conn)
	s.c.half(err)
	<-done
	x.n.ReqBytes, x.n.RespBytes = capture.N(sent), capture.N(back.Load())
	x.n.cut(s.c.endedBy())
	u.abort()
	s.e.finish(x.n)
	s.hangUp()
	return false
}

func acceptKey(key string) string {
	h := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // G401: RFC 6455, 4.2.2
	return base64.StdEncoding.EncodeToString(h[:])
}

// flow copies src, of which br may hold some already, to dst until it ends,
// then ends dst. It waits in br's small buffer, and takes a large one only
// while there is much.
func flow(dst net.Conn, br *bufio.Reader, src net.Conn) (int64, error) {
	var total int64
	for {
		if _, err := br.Peek(1); err != nil {
			return total, ended(err, dst)
		}
		p, _ := br.Peek(br.Buffered()) // it is buffered
		many := len(p) == br.Size()
		n, err := dst.Write(p)
		total += int64(n)
		if err != nil {
			return total, err
		}
		_, _ = br.Discard(len(p)) // likewise
		if many {
			n, err := bulk(dst, src)
			total += n
			if err != nil {
				return total, ended(err, dst)
			}
		}
	}
}

// bulk copies while reads fill more than a small buffer.
func bulk(dst, src net.Conn) (int64, error) {
	b := buffers.get()
	defer buffers.put(b)
	var total int64
	for {
		n, err := src.Read(b[:])
		if n > 0 {
			m, werr := dst.Write(b[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
		}
		if err != nil || n < 4<<10 {
			return total, err
		}
	}
}

// ended passes the end of a stream on to dst.
func ended(err error, dst net.Conn) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	return closeWrite(dst)
}
