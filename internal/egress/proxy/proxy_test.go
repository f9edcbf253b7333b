package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// matrix runs f for every way in and both protocols of the client.
func matrix(t *testing.T, f func(t *testing.T, by entry, h2 bool)) {
	for _, by := range ways() {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/h2=%v", by, h2), func(t *testing.T) { f(t, by, h2) })
		}
	}
}

func proto(h2 bool) string {
	if h2 {
		return "HTTP/2.0"
	}
	return "HTTP/1.1"
}

func TestGrantedHostIsReached(t *testing.T) {
	matrix(t, func(t *testing.T, by entry, h2 bool) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", webH2, greet)
		r, body := get(t, w.client(by, h2), "https://a.test/hi?x=%2F")
		if want := "hello from a.test " + proto(h2) + " GET /hi?x=%2F"; r.StatusCode != 200 || body != want {
			t.Fatalf("got %d %q, want %q", r.StatusCode, body, want)
		}
		rec := w.saw("of the request", func(r *capture.Record) bool { return r.Path == "/hi?x=%2F" })
		if rec.Verdict != capture.VerdictAllow || rec.Mode != capture.ModeDecrypted || rec.Status != 200 || rec.Host != "a.test" ||
			rec.Port != 443 || string(rec.Via) != string(by) || rec.Rule != "a.test" || rec.Upstream == "" || rec.UA == "" {
			t.Errorf("record %+v", rec)
		}
	})
}

func TestRefusedHostExplainsItself(t *testing.T) {
	matrix(t, func(t *testing.T, by entry, h2 bool) {
		w := newWorld(t)
		w.web("b.test:443", webH2, greet)
		r, err := w.client(by, h2).Get("https://b.test/")
		switch {
		case by != byRedirect && errors.Is(err, errRefused):
			if by == byConnect && !strings.Contains(err.Error(), "403 not_granted") {
				t.Errorf("refused with %v", err)
			}
		case by == byRedirect && err == nil:
			defer r.Body.Close()
			if r.StatusCode != 403 || r.Header.Get("Foldyard-Reason") != "not_granted" || !strings.HasPrefix(r.Header.Get("Proxy-Status"), "foldyard; error=") {
				t.Errorf("got %d %v", r.StatusCode, r.Header)
			}
		default:
			t.Fatalf("got %v, %v", r, err)
		}
		if w.dialled("b.test:443") != 0 {
			t.Error("a refused host was dialled")
		}
		rec := w.sawReason("b.test", policy.ReasonNotGranted)
		if rec.Verdict != capture.VerdictDeny || string(rec.Via) != string(by) {
			t.Errorf("record %+v", rec)
		}
		// The control: a grant works on the next request.
		w.allow("b.test")
		if r, _ := get(t, w.client(by, h2), "https://b.test/"); r.StatusCode != 200 {
			t.Errorf("granted: %d", r.StatusCode)
		}
	})
}

func TestGrantWorksOnTheSameConnection(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newWorld(t)
		w.web("a.test:443", webH2, greet)
		c := w.client(byRedirect, h2)
		if r, _ := get(t, c, "https://a.test/"); r.StatusCode != 403 {
			t.Fatalf("ungranted: %d", r.StatusCode)
		}
		w.allow("a.test")
		if r, _ := get(t, c, "https://a.test/"); r.StatusCode != 200 {
			t.Fatalf("granted: %d", r.StatusCode)
		}
		w.edit(func(f *policy.File) { f.Allow = nil })
		if r, _ := get(t, c, "https://a.test/"); r.StatusCode != 403 {
			t.Fatalf("revoked: %d", r.StatusCode)
		}
	}
}

func TestH1Upstream(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", webH1, greet)
		if _, body := get(t, w.client(byConnect, h2), "https://a.test/"); !strings.Contains(body, "HTTP/1.1") {
			t.Errorf("h2=%v: %q", h2, body)
		}
	}
}

func TestPlainHTTP(t *testing.T) {
	for _, by := range ways() {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:80", webPlain, greet)
		w.web("b.test:80", webPlain, greet)
		if _, body := get(t, w.client(by, false), "http://a.test/x"); body != "hello from a.test HTTP/1.1 GET /x" {
			t.Errorf("%s: %q", by, body)
		}
		if r, err := w.client(by, false).Get("http://b.test/x"); err == nil {
			r.Body.Close()
			if r.StatusCode != http.StatusForbidden {
				t.Errorf("%s: ungranted %d", by, r.StatusCode)
			}
		} else if by == byRedirect || !errors.Is(err, errRefused) {
			t.Errorf("%s: %v", by, err)
		}
		w.sawReason("b.test", policy.ReasonNotGranted)
		if w.dialled("b.test:80") != 0 {
			t.Error("a refused host was dialled")
		}
	}
}

// What is looked up ahead of a request is a granted name that is new, and
// nobody is dialled for it.
func TestOnlyGrantedNamesAreLookedUpAhead(t *testing.T) {
	for _, by := range ways() {
		t.Run(string(by), func(t *testing.T) {
			w := newWorld(t)
			w.allow("a.test")
			w.tunnel("tunnel.test")
			for _, host := range []string{"a.test", "tunnel.test"} {
				w.web(host+":443", webH1, func(http.ResponseWriter, *http.Request) {})
			}
			for range 2 {
				w.tls(by, "a.test:443", "a.test").Close()
			}
			if n := w.dialled("a.test:443"); n != 0 {
				t.Errorf("dialled %d times for handshakes", n)
			}
			if c, err := w.dial(by, "refused.test:443"); err == nil {
				_ = tls.Client(c, &tls.Config{RootCAs: w.trust, ServerName: "refused.test"}).Handshake()
				c.Close()
			}
			if c, err := w.dial(by, "tunnel.test:443"); err == nil {
				_ = tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "tunnel.test"}).Handshake()
				c.Close()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if want := map[dest.Target]int{target("a.test:443"): 1}; !maps.Equal(w.ahead, want) {
				t.Errorf("looked up %v, want %v", w.ahead, want)
			}
		})
	}
}
