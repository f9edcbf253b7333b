package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"foldyard/internal/egress/dialer"
)

// corporate is an upstream proxy that counts what was asked of it and finds
// the world's origins.
type corporate struct {
	w     *world
	mu    sync.Mutex
	asked map[string]int // "CONNECT a.test:443", "GET a.test:80"
}

func (p *corporate) count(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[what]
}

func (p *corporate) serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	r, err := http.ReadRequest(br)
	if err != nil {
		return
	}
	at := r.Host
	if !strings.Contains(at, ":") {
		at += ":80"
	}
	p.mu.Lock()
	p.asked[r.Method+" "+at]++
	p.mu.Unlock()
	p.w.mu.Lock()
	addr := p.w.at[target(at)]
	p.w.mu.Unlock()
	up, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer up.Close()
	if r.Method == http.MethodConnect {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
	} else {
		r.Header.Set("Connection", "close")
		if r.Write(up) != nil {
			return
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, br)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	<-done
}

// B28: whatever a box does upstream goes through the operator's proxy: plain
// HTTP, decrypted requests of both versions, WebSockets with and without TLS,
// tunnels. Nothing is dialled beside it.
func TestEverythingGoesThroughTheUpstreamProxy(t *testing.T) {
	up := listen(t)
	var w *world
	w = newWorld(t, func(c *Config) {
		choose, err := dialer.ProxyFunc(dialer.ProxyOptions{URL: "http://" + up.Addr().String()})
		ok(t, err)
		c.Dialer = dialer.New(dialer.Config{Proxy: choose, Roots: c.Dialer.(*worldDialer).roots})
	})
	p := &corporate{w: w, asked: map[string]int{}}
	var conns sync.WaitGroup
	go func() {
		for {
			c, err := up.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { p.serve(c) })
		}
	}()
	w.tunnel("pinned.test")
	w.allow("plain.test", "h1.test", "h2.test", "ssh.test:22")
	w.web("plain.test:80", webPlain, echoSocket)
	w.web("h1.test:443", webH1, echoSocket)
	w.web("h2.test:443", webH2, greet)
	w.web("pinned.test:443", webH1, greet)
	w.raw("ssh.test:22", func(c net.Conn) { _, _ = io.WriteString(c, "banner\n"); _, _ = io.Copy(io.Discard, c) })
	const upgrade = "GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"

	for _, tt := range []struct {
		name, asked string
		do          func() string
		want        string
		conns       int
	}{
		{"plain HTTP", "GET plain.test:80", func() string { _, b := get(t, w.client(byRedirect, false), "http://plain.test/"); return b }, "hello from plain.test", 1},
		{"h1", "CONNECT h1.test:443", func() string { _, b := get(t, w.client(byConnect, false), "https://h1.test/"); return b }, "hello from h1.test", 1},
		{"h2", "CONNECT h2.test:443", func() string { _, b := get(t, w.client(byRedirect, true), "https://h2.test/"); return b }, "hello from h2.test HTTP/2", 1},
		{"WebSocket over TLS", "CONNECT h1.test:443", func() string {
			c := w.tls(bySocks, "h1.test:443", "h1.test")
			defer c.Close()
			fmt.Fprintf(c, upgrade, "h1.test")
			return must(readUntil(c, "first"))
		}, "first", 1},
		{"WebSocket", "CONNECT plain.test:80", func() string {
			c := must(w.dial(byRedirect, "plain.test:80"))
			defer c.Close()
			fmt.Fprintf(c, upgrade, "plain.test")
			return must(readUntil(c, "first"))
		}, "first", 1},
		{"passthrough", "CONNECT pinned.test:443", func() string {
			c := must(w.dial(byRedirect, "pinned.test:443"))
			defer c.Close()
			tc := tls.Client(c, &tls.Config{ServerName: "pinned.test", RootCAs: w.roots}) // the origin's own certificate
			_, body := ask(t, tc, "GET / HTTP/1.1\r\nHost: pinned.test\r\nConnection: close\r\n\r\n")
			return body
		}, "hello from pinned.test", 1},
		{"server-first tunnel", "CONNECT ssh.test:22", func() string {
			c := must(w.dial(byRedirect, "ssh.test:22"))
			defer c.Close()
			return must(readUntil(c, "\n"))
		}, "banner", 1},
	} {
		before := p.count(tt.asked)
		if got := tt.do(); !strings.Contains(got, tt.want) {
			t.Errorf("control: %s: %q, want %q", tt.name, got, tt.want)
		}
		if got := p.count(tt.asked); got != before+tt.conns {
			t.Errorf("%s: %d connections through the proxy, want %d", tt.name, got, before+tt.conns)
		}
	}
	w.e.Close()
	_ = up.Close()
	conns.Wait()
}
