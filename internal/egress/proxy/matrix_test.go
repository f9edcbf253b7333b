package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
)

// byForward is the proxy port, asked in absolute form.
const byForward entry = "forward"

// Whatever the way in, the mode and the versions on both sides: what flows
// flows both ways at once, and ends with its trailers.
func TestEveryCombination(t *testing.T) {
	versions := map[bool]string{false: "h1", true: "h2"}
	for _, by := range append(ways(), byForward) {
		for _, url := range []string{"http://a.test/", "https://a.test/"} {
			for _, client := range []bool{false, true} {
				for _, origin := range []web{webH1, webH2} {
					for _, mode := range []capture.Mode{capture.ModeDecrypted, capture.ModeTunnel} {
						secure, tunnel := url[4] == 's', mode == capture.ModeTunnel
						switch {
						case !secure && (client || origin == webH2 || tunnel): // HTTP/2 in the clear has a test of its own
							continue
						case by == byForward && (client || tunnel): // there is neither
							continue
						case tunnel && client != (origin == webH2): // the same on both sides
							continue
						}
						t.Run(fmt.Sprintf("%s/%s/%s/client %s/origin %s", by, url[:5], mode, versions[client], versions[origin == webH2]), func(t *testing.T) {
							t.Parallel()
							w := newWorld(t)
							if w.allow("a.test"); tunnel {
								w.tunnel("a.test")
							}
							w.web("a.test:80", webPlain, both)
							w.web("a.test:443", origin, both)
							rt := w.trip(by, client, tunnel)
							flows(t, rt, url, map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[client])
							if tr, ok := rt.(*http.Transport); ok {
								tr.CloseIdleConnections() // a tunnel is recorded when it ends
							}
							w.saw("of it", func(r *capture.Record) bool {
								return r.Mode == mode && r.Verdict == capture.VerdictAllow && r.Via == capture.Via(by)
							})
						})
					}
				}
			}
		}
	}
}

// both echoes as it reads, and ends with a trailer.
func both(rw http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(rw)
	_ = c.EnableFullDuplex() // HTTP/2 is so anyway
	rw.Header().Set("Trailer", "X-End")
	rw.Header().Set("X-Proto", r.Proto)
	_ = c.Flush()
	if r.Method == http.MethodHead {
		return
	}
	b := make([]byte, 64)
	for {
		n, err := r.Body.Read(b)
		_, _ = rw.Write(b[:n])
		_ = c.Flush()
		if err != nil {
			break
		}
	}
	rw.Header().Set("X-End", "of "+r.Trailer.Get("X-Ask"))
}

func flows(t *testing.T, rt http.RoundTripper, url, proto string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	body, say := io.Pipe()
	req := must(http.NewRequestWithContext(ctx, http.MethodPost, url, body))
	req.Trailer = http.Header{"X-Ask": nil}
	go func() { _, _ = io.WriteString(say, "0") }() // some clients want a first byte before they send a head
	r, err := rt.RoundTrip(req)
	ok(t, err)
	defer r.Body.Close()
	if r.Proto != proto || r.StatusCode != http.StatusOK {
		t.Fatalf("%s %d", r.Proto, r.StatusCode)
	}
	for i := range 3 {
		if i > 0 {
			_, err := fmt.Fprint(say, i)
			ok(t, err)
		}
		var b [1]byte
		if _, err := io.ReadFull(r.Body, b[:]); err != nil || string(b[:]) != fmt.Sprint(i) {
			t.Fatalf("word %d: %q %v", i, b, err)
		}
	}
	req.Trailer.Set("X-Ask", "all")
	ok(t, say.Close())
	if rest, err := io.ReadAll(r.Body); len(rest) != 0 || err != nil || r.Trailer.Get("X-End") != "of all" {
		t.Errorf("the end: %q %v, trailers %v", rest, err, r.Trailer)
	}
	r, err = rt.RoundTrip(must(http.NewRequestWithContext(ctx, http.MethodHead, url, http.NoBody)))
	ok(t, err)
	if rest, err := io.ReadAll(r.Body); len(rest) != 0 || err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("HEAD: %d %q %v", r.StatusCode, rest, err)
	}
	_ = r.Body.Close()
}

// trip is a client in the box; one whose connections are tunnelled trusts the
// origins themselves.
func (w *world) trip(by entry, h2, tunnel bool) http.RoundTripper {
	if by == byForward {
		return absolute{w}
	}
	tr := w.client(by, h2).Transport.(*http.Transport)
	if tunnel {
		tr.TLSClientConfig = &tls.Config{RootCAs: w.roots}
	}
	return tr
}

// absolute asks the proxy port in absolute form, a connection a request.
type absolute struct{ w *world }

func (a absolute) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := net.Dial("tcp", a.w.proxy)
	if err != nil {
		return nil, err
	}
	a.w.t.Cleanup(func() { _ = c.Close() })
	go func() { _ = req.WriteProxy(c) }() // the answer shows what became of it
	return http.ReadResponse(bufio.NewReader(c), req)
}
