package main

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// originAddrs is where an origin listens.
type originAddrs struct{ TLS, Raw, DNS string }

// originMain is the origin: GET /N answers N bytes, POST reads all and says how many, over h1 or h2; the raw port sends or takes
// bytes; and every name ending in .test is this computer.
func originMain(arg string) error {
	var c certificates
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return err
	}
	pair, err := c.pair()
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", "127.0.0.1:443")
	if err != nil { // on another port fy first looks whether it is TLS at all, which costs
		if web, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	names, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}},
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerConnection: 8 << 20, MaxReceiveBufferPerStream: 4 << 20},
	}
	go s.ServeTLS(web, "", "")
	go acceptAll(raw, rawStream)
	go answerNames(names)
	if err := say(originAddrs{web.Addr().String(), raw.Addr().String(), names.LocalAddr().String()}); err != nil {
		return err
	}
	return untilTold()
}

func acceptAll(l net.Listener, serve func(*net.TCPConn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c.(*net.TCPConn))
	}
}

const chunk = 256 << 10

func answer(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		n, err := io.CopyBuffer(onlyWriter{io.Discard}, r.Body, make([]byte, chunk))
		if err == nil {
			io.WriteString(w, strconv.FormatInt(n, 10))
		}
		return
	}
	n, err := strconv.ParseInt(r.URL.Path[1:], 10, 64)
	if err != nil {
		http.Error(w, "want /BYTES", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	send(w, n)
}

// onlyWriter hides ReadFrom, so that CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

// zeros has no state: everybody sends it.
var zeros = make([]byte, chunk)

func send(w io.Writer, n int64) error {
	for n > 0 {
		m, err := w.Write(zeros[:min(n, chunk)])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

// A raw stream begins with nine bytes: what to do, and how many bytes of it.
const (
	rawDown = 'D' // the origin sends
	rawUp   = 'U' // the origin reads, and answers one byte at the end
	rawHold = 'H' // the origin answers one byte and keeps the connection
)

func rawStream(c *net.TCPConn) {
	defer c.Close()
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return
	}
	n := int64(binary.BigEndian.Uint64(head[1:]))
	switch head[0] {
	case rawDown:
		send(c, n)
	case rawUp:
		io.CopyBuffer(onlyWriter{io.Discard}, io.LimitReader(c, n), make([]byte, chunk))
		c.Write(head[:1])
	case rawHold:
		c.Write(head[:1])
		io.Copy(io.Discard, c)
	}
}

// answerNames is a DNS server for which every name is this computer.
func answerNames(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		var p dnsmessage.Parser
		h, err := p.Start(buf[:n])
		if err != nil {
			continue
		}
		q, err := p.Question()
		if err != nil {
			continue
		}
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true})
		b.StartQuestions()
		b.Question(q)
		b.StartAnswers()
		if q.Type == dnsmessage.TypeA {
			b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}, dnsmessage.AResource{A: netip.MustParseAddr("127.0.0.1").As4()})
		}
		if out, err := b.Finish(); err == nil {
			c.WriteTo(out, from)
		}
	}
}
