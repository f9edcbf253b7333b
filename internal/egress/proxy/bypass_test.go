package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// reached counts the requests that an origin saw.
func reached(n *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		greet(w, r)
	}
}

// A8: SNI, Host, request target and CONNECT target each name another.
func TestMisalignedRequestIs421(t *testing.T) {
	for _, by := range ways() {
		for _, c := range []struct{ name, sni, request string }{
			{"Host", "a.test", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"},
			{"Host with another port", "a.test", "GET / HTTP/1.1\r\nHost: a.test:8443\r\n\r\n"},
			{"empty Host", "a.test", "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
			{"SNI", "evil.test", "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"},
			{"SNI and Host", "evil.test", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"},
			{"absolute form", "a.test", "GET https://evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"},
			{"absolute form with Host", "a.test", "GET https://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"},
			{"scheme", "a.test", "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"},
		} {
			t.Run(string(by)+"/"+c.name, func(t *testing.T) {
				w := newWorld(t)
				var n atomic.Int64
				w.allow("a.test", "evil.test:8443")
				w.web("a.test:443", webH1, reached(&n))
				w.web("evil.test:443", webH1, reached(&n))
				r, _ := ask(t, w.tls(by, "a.test:443", c.sni), c.request)
				if r.StatusCode != http.StatusMisdirectedRequest || r.Header.Get("Foldyard-Reason") != "misaligned" || !r.Close {
					t.Errorf("got %d %v close=%v", r.StatusCode, r.Header, r.Close)
				}
				if n.Load() != 0 {
					t.Error("a misaligned request arrived")
				}
				if rec := w.sawReason("a.test", policy.ReasonMisaligned); rec.Verdict != capture.VerdictDeny {
					t.Errorf("record %+v", rec)
				}
				r, _ = ask(t, w.tls(by, "a.test:443", "a.test"), "GET / HTTP/1.1\r\nHost: A.Test.:443\r\nConnection: close\r\n\r\n")
				if r.StatusCode != 200 || n.Load() != 1 {
					t.Errorf("control: %d", r.StatusCode)
				}
			})
		}
	}
}

func TestMisalignedOnAReusedConnection(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "b.test")
	w.web("a.test:443", webH1, greet)
	w.web("b.test:443", webH1, greet)
	c := w.tls(byConnect, "a.test:443", "a.test")
	br := bufio.NewReader(c)
	for i, host := range []string{"a.test", "a.test", "b.test"} {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		r, err := http.ReadResponse(br, nil)
		ok(t, err)
		_, _ = io.Copy(io.Discard, r.Body)
		if want := map[bool]int{true: 421, false: 200}[i == 2]; r.StatusCode != want {
			t.Errorf("request %d: %d, want %d", i, r.StatusCode, want)
		}
	}
	if n := w.dialled("b.test:443"); n != 0 {
		t.Errorf("the other host was dialled %d times", n)
	}
}

func TestMisalignedAuthorityOnHTTP2(t *testing.T) {
	for _, by := range ways() {
		w := newWorld(t)
		var n atomic.Int64
		w.allow("a.test", "evil.test")
		w.web("a.test:443", webH2, reached(&n))
		c := w.client(by, true)
		for _, host := range []string{"evil.test", "a.test:444", "", "a.test"} {
			req := must(http.NewRequest(http.MethodGet, "https://a.test/", nil))
			req.Host = host
			r, err := c.Do(req)
			ok(t, err)
			r.Body.Close()
			if want := map[bool]int{true: 200, false: 421}[host == "a.test" || host == ""]; r.StatusCode != want {
				t.Errorf("%s %q: %d, want %d", by, host, r.StatusCode, want)
			}
		}
		if n.Load() != 2 {
			t.Errorf("%d requests arrived, want 2", n.Load())
		}
	}
}

// A raw address never takes the name of its SNI or Host.
func TestRawAddressIsNotItsSNI(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	w.web("192.0.2.7:443", webH1, greet)
	r, _ := ask(t, w.tls(byRedirect, "192.0.2.7:443", "a.test"), "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
	if r.StatusCode != 421 && r.StatusCode != 403 {
		t.Errorf("got %d", r.StatusCode)
	}
	if w.dialled("192.0.2.7:443")+w.dialled("a.test:443") != 0 {
		t.Error("something was dialled")
	}
	w.allow("192.0.2.7")
	r, body := ask(t, w.tls(byRedirect, "192.0.2.7:443", ""), "GET / HTTP/1.1\r\nHost: 192.0.2.7\r\nConnection: close\r\n\r\n")
	if r.StatusCode != 200 {
		t.Errorf("control: a granted address: %d %s", r.StatusCode, body)
	}
}

func TestUnknownSyntheticAddressIsBadTarget(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) { f.Enforce = false })
	for _, a := range []string{"198.18.9.9", "fd5b:7d1e:9c04::99"} {
		c, err := net.Dial("tcp", w.toAddr(netip.AddrPortFrom(netip.MustParseAddr(a), 443)))
		if err == nil {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("read from a connection that goes nowhere")
			}
			c.Close()
		}
		w.sawReason(a, policy.ReasonBadTarget)
	}
	if _, head, _ := w.connect("198.18.9.9:443"); !strings.HasPrefix(head, "HTTP/1.1 400 bad_target") {
		t.Errorf("CONNECT: %q", head)
	}
}

// A10: plain port 80 with a forged Host.
func TestForgedHostOnPlaintext(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "b.test")
	w.web("a.test:80", webPlain, greet)
	c, err := w.dial(byRedirect, "a.test:80")
	ok(t, err)
	defer c.Close()
	if r, _ := ask(t, c, "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"); r.StatusCode != 421 {
		t.Errorf("got %d", r.StatusCode)
	}
	if w.dialled("a.test:80")+w.dialled("b.test:80") != 0 {
		t.Error("something was dialled")
	}
}

// A24 and A25: what two parties could read differently.
func TestMalformedRequestsAreRefusedAndRecorded(t *testing.T) {
	const host = "Host: a.test\r\n"
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"CL and TE":              {"POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n" + host + "\r\n", 400},
		"two CL":                 {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0\r\nContent-Length: 40\r\n\r\nGET /smuggled HTTP/1.1\r\n" + host + "\r\n", 400},
		"two equal CL":           {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
		"TE not chunked":         {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
		"TE in HTTP/1.0":         {"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"two Host":               {"GET / HTTP/1.1\r\n" + host + "Host: evil.test\r\n\r\n", 400},
		"no Host":                {"GET / HTTP/1.1\r\n\r\n", 400},
		"folded":                 {"GET / HTTP/1.1\r\n" + host + " X: folded\r\n\r\n", 400},
		"space before colon":     {"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", 400},
		"bare LF":                {"GET / HTTP/1.1\n" + host + "\r\n", 400},
		"NUL":                    {"GET / HTTP/1.1\r\n" + host + "X: a\x00b\r\n\r\n", 400},
		"control byte":           {"GET / HTTP/1.1\r\n" + host + "User-Agent: a\x1b[31mred\r\n\r\n", 400},
		"userinfo":               {"GET https://a.test@evil.test/ HTTP/1.1\r\n" + host + "\r\n", 400},
		"userinfo, granted last": {"GET https://evil.test@a.test/ HTTP/1.1\r\n" + host + "\r\n", 400},
		"backslash in target":    {"GET https://a.test\\@evil.test/ HTTP/1.1\r\n" + host + "\r\n", 400},
		"backslash in path":      {"GET /a\\..\\b HTTP/1.1\r\n" + host + "\r\n", 400},
		"tab in target":          {"GET /a\tb HTTP/1.1\r\n" + host + "\r\n", 400},
		"fragment":               {"GET /a#b HTTP/1.1\r\n" + host + "\r\n", 400},
		"CRLF in authority":      {"GET https://a.test%0d%0aX:1/ HTTP/1.1\r\n" + host + "\r\n", 400},
		"other scheme":           {"GET ftp://a.test/ HTTP/1.1\r\n" + host + "\r\n", 400},
		"unknown version":        {"GET / HTTP/2.0\r\n" + host + "\r\n", 505},
		"TRACE":                  {"TRACE / HTTP/1.1\r\n" + host + "\r\n", 405},
		"CONNECT inside":         {"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", 405},
		"CONNECT to itself":      {"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", 405},
		"bad chunk":              {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400},
		"header too large":       {"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("a", 70<<10) + "\r\n\r\n", 431},
		"too many headers":       {"GET / HTTP/1.1\r\n" + host + strings.Repeat("X: a\r\n", 101) + "\r\n", 431},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var seen atomic.Value
			seen.Store("")
			w.allow("a.test", "evil.test")
			w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					seen.Store(r.Method + " " + r.RequestURI)
				}
				greet(rw, r)
			})
			tc := w.tls(byConnect, "a.test:443", "a.test")
			_, err := io.WriteString(tc, c.request)
			ok(t, err)
			b, err := io.ReadAll(tc) // the connection must end by itself
			if err != nil {
				t.Errorf("after %q: %v", b, err)
			}
			if want := fmt.Sprintf("HTTP/1.1 %d ", c.status); !strings.HasPrefix(string(b), want) || strings.Count(string(b), "HTTP/1.1 ") != 1 {
				t.Errorf("got %q, want one %q", b, want)
			}
			if s := seen.Load(); s != "" {
				t.Errorf("the origin saw %v", s)
			}
			w.saw("of the refusal", func(r *capture.Record) bool {
				return r.Status == c.status && r.Reason != "" && (r.Verdict == capture.VerdictDeny || name == "bad chunk") // which had begun
			})
		})
	}
	t.Run("control", func(t *testing.T) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", webH1, greet)
		r, _ := ask(t, w.tls(byConnect, "a.test:443", "a.test"), "POST / HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
		if r.StatusCode != 200 {
			t.Errorf("got %d", r.StatusCode)
		}
	})
}

// A7 and A26: a path rule cannot be dodged by tunnel, spelling or method.
func TestPathRuleIsNotDodged(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newWorld(t)
		var n atomic.Int64
		w.edit(func(f *policy.File) {
			f.Allow = []policy.Entry{{Rule: "GET https://api.test/pub/*", Level: policy.Permanent}}
			f.Passthrough = []string{"other.test"}
		})
		w.web("api.test:443", webH2, reached(&n))
		c := w.client(byConnect, h2)
		do := func(method, path string) int {
			req := must(http.NewRequest(method, "https://api.test/", nil))
			req.URL.Opaque = path
			r, err := c.Do(req)
			if err != nil {
				return 0 // HTTP/2 servers reset what is no path
			}
			r.Body.Close()
			return r.StatusCode
		}
		if got := do("GET", "/pub/x"); got != 200 {
			t.Fatalf("h2=%v control: %d", h2, got)
		}
		for _, p := range []string{
			"/admin", "/pub/../admin", "/pub/%2e%2e/admin", "/pub/..%2fadmin", "/pub/%2e%2e%2fadmin", "/pub/%252e%252e/admin",
			"/pub/..;/admin", "/pub\\..\\admin", "/pub/x/../../admin", "/%70ub/../admin",
		} {
			if got := do("GET", p); got != 403 && got != 400 && !(h2 && got == 0) {
				t.Errorf("h2=%v %s: %d", h2, p, got)
			}
		}
		if got := do("POST", "/pub/x"); got != 403 {
			t.Errorf("h2=%v POST: %d", h2, got)
		}
		if n.Load() != 1 {
			t.Errorf("h2=%v: %d requests arrived, want 1", h2, n.Load())
		}
		w.sawReason("api.test", policy.ReasonMethodOrPath)
		// Nor by speaking something else.
		raw, err := w.dial(byConnect, "api.test:443")
		ok(t, err)
		_, _ = raw.Write([]byte("\x00\x01binary"))
		if b, _ := io.ReadAll(raw); len(b) != 0 {
			t.Errorf("a raw tunnel answered %q", b)
		}
		raw.Close()
	}
}

// B16: without a path rule the path passes byte for byte.
func TestPathBytesAreKept(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, up := range []web{webH1, webH2} {
			w := newWorld(t)
			w.allow("a.test")
			w.web("a.test:443", up, greet)
			c := w.client(byConnect, h2)
			for _, p := range []string{
				"/@scope%2fname", "/a%20b?x=%2F&y=a+b", "/%E2%82%AC", "/a//b", "//a//b", "/x;y=1", "/?q=a%26b", "/a/./b/../c", "/?", "/%2e%2e/x", "/a?x=\\",
				"/a?b?c", "//x.test/y?z", "/%2F%2f",
			} {
				req := must(http.NewRequest(http.MethodGet, "https://a.test/", nil))
				setPath(req.URL, p)
				r, err := c.Do(req)
				ok(t, err)
				b, _ := io.ReadAll(r.Body)
				r.Body.Close()
				if !strings.HasSuffix(string(b), " GET "+p) {
					t.Errorf("h2=%v up=%v %s: %d %q", h2, up, p, r.StatusCode, b)
				}
			}
		}
	}
}

// A35: only websocket is upgraded to.
func TestOtherUpgradesAreRemoved(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:80", webPlain, func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%q %q %q", r.Header["Upgrade"], r.Header["Connection"], r.Header["Http2-Settings"])
	})
	c, err := w.dial(byRedirect, "a.test:80")
	ok(t, err)
	defer c.Close()
	r, body := ask(t, c, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	if r.StatusCode != 200 || body != "[] [] []" {
		t.Errorf("got %d %s", r.StatusCode, body)
	}
}

// An origin that changes the protocol although nobody asked.
func TestUnaskedProtocolChangeIsRefused(t *testing.T) {
	const upgrade = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
	wrongSwitch(t, upgrade, upgrade)
}

// A36: extended CONNECT and CONNECT on HTTP/2.
func TestConnectInsideHTTP2(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "evil.test")
	w.web("a.test:443", webH2, greet)
	c := w.client(byConnect, true)
	req := must(http.NewRequest(http.MethodConnect, "https://a.test/", nil))
	req.URL.Path, req.Host = "", "evil.test:443"
	r, err := c.Do(req)
	ok(t, err)
	r.Body.Close()
	if r.StatusCode != 405 || r.Header.Get("Foldyard-Reason") != "inner_connect" {
		t.Errorf("got %d %v", r.StatusCode, r.Header)
	}
	w.sawReason("a.test", policy.ReasonInnerConnect)
	if r, _ := get(t, c, "https://a.test/"); r.StatusCode != 200 {
		t.Errorf("control: %d", r.StatusCode)
	}
}

// A37: silence, then anything, on a port where only TLS and HTTP may pass.
func TestSilenceOpensNothing(t *testing.T) {
	t.Parallel()
	for _, by := range ways() {
		for name, late := range map[string]string{"silence": "", "garbage": "\x00\x01\x02late", "banner": "\x80\x80\x80"} {
			t.Run(string(by)+"/"+name, func(t *testing.T) {
				w := newWorld(t, func(c *Config) {
					if late == "" {
						c.Limits.Sniff = 60 * time.Millisecond
					}
				})
				w.edit(func(f *policy.File) {
					f.Allow = []policy.Entry{{Rule: "a.test", Level: policy.Permanent}, {Rule: "p.test:*", Level: policy.Permanent}}
					f.Passthrough = []string{"p.test"}
				})
				var got atomic.Int64
				for _, h := range []string{"a.test:443", "p.test:443"} {
					w.raw(h, func(c net.Conn) {
						n, _ := io.Copy(io.Discard, c)
						got.Add(n)
					})
					c, err := w.dial(by, h)
					if late == "" && errors.Is(err, syscall.ECONNRESET) {
						continue // before dial had looked: this computer is busy
					}
					ok(t, err)
					_ = c.SetDeadline(time.Now().Add(5 * time.Second))
					if late != "" {
						_, _ = io.WriteString(c, late)
					}
					if b, err := io.ReadAll(c); len(b) != 0 || errors.Is(err, net.ErrClosed) {
						t.Errorf("%s: %q %v", h, b, err)
					}
					c.Close()
				}
				why := policy.ReasonBadRequest
				if late == "" {
					why = policy.ReasonLimit
				}
				w.sawReason("a.test", why)
				w.sawReason("p.test", why)
				if got.Load() != 0 {
					t.Errorf("%d bytes passed", got.Load())
				}
			})
		}
	}
}

// Passthrough: the tunnel's SNI must be its target.
func TestTunnelSNI(t *testing.T) {
	for _, by := range ways() {
		for _, sni := range []string{"evil.test", "", "p.test"} {
			t.Run(string(by)+"/"+sni, func(t *testing.T) {
				w := newWorld(t)
				w.tunnel("p.test")
				w.web("p.test:443", webH1, greet)
				c, err := w.dial(by, "p.test:443")
				ok(t, err)
				defer c.Close()
				tc := tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: sni, InsecureSkipVerify: sni == ""}) //nolint:gosec // a test
				err = tc.Handshake()
				if (err == nil) != (sni == "p.test") {
					t.Fatalf("handshake: %v", err)
				}
				if err != nil {
					w.sawReason("p.test", policy.ReasonMisaligned)
					return
				}
				// The certificate is the origin's own: nothing was decrypted.
				if r, _ := ask(t, tc, "GET / HTTP/1.1\r\nHost: p.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
					t.Errorf("got %d", r.StatusCode)
				}
				tc.Close()
				rec := w.saw("of the tunnel", func(r *capture.Record) bool { return r.Mode == capture.ModeTunnel })
				req, _ := rec.ReqBytes.Get()
				resp, _ := rec.RespBytes.Get()
				if rec.Verdict != capture.VerdictAllow || rec.Proto != capture.ProtoTLS || req < 200 || resp < 500 || rec.Upstream == "" {
					t.Errorf("record %+v", rec)
				}
			})
		}
	}
}

// A path grant beside a passthrough entry is judged by path, never tunnelled.
func TestPathGrantIsNeverTunnelled(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) {
		f.Allow = []policy.Entry{{Rule: "https://p.test/pub/*", Level: policy.Permanent}}
		f.Passthrough = []string{"p.test"}
	})
	w.web("p.test:443", webH2, greet)
	c := w.client(byConnect, false)
	if r, _ := get(t, c, "https://p.test/pub/x"); r.StatusCode != 200 { // trusts our CA: it was decrypted
		t.Errorf("got %d", r.StatusCode)
	}
	if r, _ := get(t, c, "https://p.test/admin"); r.StatusCode != 403 {
		t.Errorf("got %d", r.StatusCode)
	}
}

// A32: what a CONNECT or a proxy request carries for the proxy stays here.
func TestProxyHeadersAreNotForwarded(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	var got atomic.Value
	see := func(rw http.ResponseWriter, r *http.Request) { got.Store(fmt.Sprint(r.Header)) }
	w.web("a.test:80", webPlain, see)
	c, err := net.Dial("tcp", w.proxy)
	ok(t, err)
	defer c.Close()
	r, _ := ask(t, c, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nX: 1\r\nConnection: X\r\n\r\n")
	if s, _ := got.Load().(string); r.StatusCode != 200 || s != "map[]" {
		t.Errorf("got %d, headers %s", r.StatusCode, s)
	}
	w.raw("t.test:9999", func(c net.Conn) {
		b := make([]byte, 100)
		n, _ := c.Read(b)
		got.Store(string(b[:n]))
	})
	w.allow("t.test:9999")
	c2, err := net.Dial("tcp", w.proxy)
	ok(t, err)
	defer c2.Close()
	fmt.Fprintf(c2, "CONNECT t.test:9999 HTTP/1.1\r\nHost: t.test:9999\r\nProxy-Authorization: dummy-token\r\n\r\n")
	_, err = readUntil(c2, "\r\n\r\n")
	ok(t, err)
	_, _ = c2.Write([]byte("\x01payload"))
	_, _ = io.ReadAll(c2)
	if s := got.Load(); s != "\x01payload" {
		t.Errorf("the tunnel carried %q", s)
	}
}

// A1, A4, A17: spellings that are no target.
func TestPoisonedTargets(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "evil.test:1")
	w.web("a.test:443", webH1, greet)
	for _, s := range []string{
		"evil.test\x00.a.test:443", "[evil.test]:443", "a.test:443@evil.test:443", "evil.test.:443", "0x7f.1:80", "2130706433:80",
		"0177.0.0.1:80", "[::ffff:127.0.0.1]:80", "[64:ff9b::7f00:1]:80", "0:80", "localhost:80", "a.test", "a.test:", "a.test:0", "a.test:99999", "a..test:443",
	} {
		c, head, _ := w.connect(s)
		if strings.Contains(head, " 200 ") || head == "" {
			t.Errorf("CONNECT %q: %q", s, head)
		}
		c.Close()
	}
	for _, s := range []string{"evil.test\x00.a.test", "a.test\x00.evil.test", "[evil.test]", "evil.test.", "127.1", "0", "0x7f.1", "a.test@evil.test", "", "a.test"} {
		c, err := net.Dial("tcp", w.proxy)
		ok(t, err)
		code, err := socksTo(c, s+":443")
		if good := err == nil && code == 0; good != (s == "a.test") {
			t.Errorf("SOCKS %q: %d %v", s, code, err)
		}
		c.Close()
	}
	if c, head, _ := w.connect("a.test:443"); !strings.Contains(head, " 200 ") {
		t.Errorf("control: %q", head)
	} else {
		c.Close()
	}
	if r, err := http.Get("http://" + w.proxy + "/"); err != nil || r.StatusCode != 400 {
		t.Errorf("origin form at the proxy port: %v %v", r, err)
	} else {
		r.Body.Close()
	}
}

func TestConnectHostMustMatch(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "b.test")
	for host, want := range map[string]string{"b.test:443": "400", "a.test:80": "400", "a.test:443": "200", "a.test": "200", "A.TEST.:443": "200"} {
		c, err := net.Dial("tcp", w.proxy)
		ok(t, err)
		fmt.Fprintf(c, "CONNECT a.test:443 HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		if head, _ := readUntil(c, "\r\n"); !strings.HasPrefix(head, "HTTP/1.1 "+want) {
			t.Errorf("Host %s: %q, want %s", host, head, want)
		}
		c.Close()
	}
}

// A second CONNECT sent along with the first is a request inside its tunnel.
func TestSecondConnectInOnePacket(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "evil.test")
	c, err := net.Dial("tcp", w.proxy)
	ok(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprint(c, "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\nCONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n")
	b, _ := io.ReadAll(c)
	if bytes.Count(b, []byte(" 200 ")) != 1 || !bytes.Contains(b, []byte(" 405 ")) {
		t.Errorf("got %q", b)
	}
	if w.dialled("evil.test:443") != 0 {
		t.Error("the inner target was dialled")
	}
}

// A18, A19: what a granted name resolves to is judged, and told apart.
func TestAddressClassIsARefusal(t *testing.T) {
	for _, by := range ways() {
		w := newWorld(t)
		w.allow("in.test")
		w.web("in.test:443", webH1, greet)
		w.mu.Lock()
		w.classes[target("in.test:443")] = dest.ClassPrivate
		w.mu.Unlock()
		r, body := get(t, w.client(by, false), "https://in.test/")
		if r.StatusCode != 403 || !strings.Contains(body, "fy allow 'in.test:443' --internal") && !strings.Contains(body, "fy allow in.test:443 --internal") {
			t.Errorf("%s: %d %s", by, r.StatusCode, body)
		}
		if rec := w.sawReason("in.test", policy.ReasonAddressClass); rec.Verdict != capture.VerdictDeny {
			t.Errorf("record %+v", rec)
		}
		w.edit(func(f *policy.File) {
			f.Allow[0] = policy.Entry{Rule: "in.test:443", Level: policy.Permanent, Internal: true}
		})
		if r, _ := get(t, w.client(by, false), "https://in.test/"); r.StatusCode != 200 {
			t.Errorf("%s control: internal grant: %d", by, r.StatusCode)
		}
	}
}

// An address that says itself that it is not public is refused before the client is told that the way is free.
func TestAddressClassOfAGrantedLiteral(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) {
		f.Allow = []policy.Entry{{Rule: "10.1.2.3:443", Level: policy.Permanent}, {Rule: "10.1.2.4:443", Level: policy.Permanent, Internal: true}}
	})
	for target, want := range map[string]string{
		"10.1.2.3:443": "HTTP/1.1 403 address_class",
		"10.1.2.4:443": "HTTP/1.1 200 ", // control
	} {
		c, head, err := w.connect(target)
		ok(t, err)
		if !strings.HasPrefix(head, want) {
			t.Errorf("%s: %q, want %q", target, head, want)
		}
		_ = c.Close()
	}
	if r := w.sawReason("10.1.2.3", policy.ReasonAddressClass); r.Verdict != capture.VerdictDeny || r.Status != 403 {
		t.Errorf("%+v", r)
	}
}

// A pooled connection of an internal grant is not lent to one without.
func TestInternalConnectionsAreNotLent(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) {
		f.Allow = []policy.Entry{{Rule: "in.test:443", Level: policy.Permanent, Internal: true}}
	})
	w.web("in.test:443", webH2, greet)
	w.mu.Lock()
	w.classes[target("in.test:443")] = dest.ClassPrivate
	w.mu.Unlock()
	for _, h2 := range []bool{false, true} {
		w.edit(func(f *policy.File) { f.Allow[0].Internal = true })
		c := w.client(byConnect, h2)
		if r, _ := get(t, c, "https://in.test/"); r.StatusCode != 200 {
			t.Fatalf("control: %d", r.StatusCode)
		}
		w.edit(func(f *policy.File) { f.Allow[0].Internal = false })
		if r, _ := get(t, c, "https://in.test/"); r.StatusCode != 403 {
			t.Errorf("h2=%v: %d", h2, r.StatusCode)
		}
	}
}

// A23: a redirect is the client's to follow.
func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "https://evil.test/", http.StatusFound)
		})
		r, _ := get(t, w.client(byConnect, h2), "https://a.test/")
		if r.StatusCode != 302 || r.Header.Get("Location") != "https://evil.test/" || w.dialled("evil.test:443") != 0 {
			t.Errorf("got %d %v", r.StatusCode, r.Header)
		}
	}
}

// The same refused target through every way and protocol: one shape, one
// reason (A34, B32).
func TestEveryWayRefusesAlike(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) {
		f.Allow = []policy.Entry{{Rule: "*.corp.test", Level: policy.Permanent}}
		f.Deny = []policy.Entry{{Rule: "x.corp.test", Level: policy.Permanent}}
	})
	for _, by := range ways() {
		c := w.client(by, false)
		for _, u := range []string{"https://x.corp.test/", "http://x.corp.test/", "https://x.corp.test/ws"} {
			req := must(http.NewRequest(http.MethodGet, u, nil))
			if strings.HasSuffix(u, "ws") {
				req.Header = http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}}
			}
			r, err := c.Do(req)
			if err != nil {
				if by == byRedirect || !errors.Is(err, errRefused) {
					t.Errorf("%s %s: %v", by, u, err)
				}
				continue
			}
			r.Body.Close()
			if r.StatusCode != 403 || r.Header.Get("Foldyard-Reason") != "denied_rule" {
				t.Errorf("%s %s: %d %v", by, u, r.StatusCode, r.Header)
			}
		}
	}
	for _, u := range []string{"http://x.corp.test/", "https://x.corp.test/"} {
		c, err := net.Dial("tcp", w.proxy)
		ok(t, err)
		r, _ := ask(t, c, "GET "+u+" HTTP/1.1\r\nHost: x.corp.test\r\n\r\n")
		if r.StatusCode != 403 || r.Header.Get("Foldyard-Reason") != "denied_rule" {
			t.Errorf("forward %s: %d %v", u, r.StatusCode, r.Header)
		}
		c.Close()
	}
	if n := w.dialled("x.corp.test:443") + w.dialled("x.corp.test:80"); n != 0 {
		t.Errorf("dialled %d times", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if r.Reason != string(policy.ReasonDeniedRule) || r.Verdict != capture.VerdictDeny {
			t.Errorf("record %+v", r)
		}
	}
}
