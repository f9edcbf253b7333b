package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"testing"

	"foldyard/internal/egress/capture"
)

// BenchmarkKeepAlive compares the engine, policy and record included, with the
// least that the standard library can do: http.Server, ReverseProxy and a
// pooled Transport, TLS on both sides. Only the ratio means something; client
// and origin are in both.
func BenchmarkKeepAlive(b *testing.B) {
	w := newWorld(b, func(c *Config) { c.Record = func(*capture.Record) {} })
	w.allow("a.test")
	body := make([]byte, 1024)
	w.web("a.test:443", webH1, func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(body) })
	b.Run("engine", func(b *testing.B) {
		load(b, func() net.Conn {
			c, err := w.dial(byConnect, "a.test:443")
			ok(b, err)
			return tls.Client(c, &tls.Config{RootCAs: w.trust, ServerName: "a.test"})
		})
	})
	b.Run("ReverseProxy", func(b *testing.B) {
		addr := w.reverseProxy()
		load(b, func() net.Conn {
			c, err := net.Dial("tcp", addr)
			ok(b, err)
			return tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "a.test"})
		})
	})
}

func load(b *testing.B, dial func() net.Conn) {
	const conns = 16
	var wg sync.WaitGroup
	jobs := make(chan struct{}, conns)
	for range conns {
		c := dial()
		wg.Go(func() {
			defer c.Close()
			br := bufio.NewReader(c)
			for range jobs {
				fmt.Fprint(c, "GET /x HTTP/1.1\r\nHost: a.test\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n")
				r, err := http.ReadResponse(br, nil)
				if err != nil || r.StatusCode != 200 {
					b.Error(r, err)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		jobs <- struct{}{}
	}
	close(jobs)
	wg.Wait()
}

// reverseProxy returns the address of the plain standard library's answer.
func (w *world) reverseProxy() string {
	l := listen(w.t)
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "a.test"}, MaxIdleConnsPerHost: 256, DisableCompression: true,
	}
	w.mu.Lock()
	origin := w.at[target("a.test:443")]
	w.mu.Unlock()
	srv := &http.Server{ErrorLog: quiet(), TLSConfig: &tls.Config{
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return w.origins.Get(h.Context(), "origin", target("a.test:443").Host)
		},
	}, Handler: &httputil.ReverseProxy{Transport: tr, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", origin, r.In.Host
	}}}
	w.t.Cleanup(func() { _ = srv.Close(); tr.CloseIdleConnections() })
	go func() { _ = srv.ServeTLS(l, "", "") }()
	return l.Addr().String()
}

// BenchmarkNewConnection is a CONNECT, a resumed handshake and one request.
func BenchmarkNewConnection(b *testing.B) {
	w := newWorld(b, func(c *Config) { c.Record = func(*capture.Record) {} })
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	cache := tls.NewLRUClientSessionCache(4)
	b.ReportAllocs()
	for b.Loop() {
		c, err := w.dial(byConnect, "a.test:443")
		ok(b, err)
		tc := tls.Client(c, &tls.Config{RootCAs: w.trust, ServerName: "a.test", ClientSessionCache: cache})
		if r, _ := ask(b, tc, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
			b.Fatal(r.Status)
		}
		tc.Close()
	}
}
