package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
)

const (
	realSecret = "s3cr3t-VALUE-0123456789"
	boxDummy   = "dummy-demo-token"
)

// demoRule puts a bearer token on api.test.
func demoRule(change ...func(*inject.Rule)) inject.Rule {
	r := inject.Rule{Name: "demo", Kind: "static", Hosts: []policy.Rule{must(policy.ParseRule("api.test"))}, Header: "Authorization", Prefix: "Bearer ", Dummies: []string{boxDummy}}
	r.UseStatic(func(context.Context) (inject.Value, error) {
		return inject.Value{Secret: inject.NewSecret([]byte(realSecret))}, nil
	})
	for _, f := range change {
		f(&r)
	}
	return r
}

// loaded is an injector with rules. Its engine has ended when it does.
func loaded(t *testing.T, rules ...inject.Rule) *inject.Injector {
	t.Helper()
	in := inject.New(inject.Config{})
	t.Cleanup(in.Close)
	ok(t, in.Load(rules))
	return in
}

// armed is a world with rules.
func armed(t *testing.T, rules ...inject.Rule) *world {
	t.Helper()
	return newWorld(t, func(c *Config) { c.Inject = loaded(t, rules...) })
}

// noLeak looks for the secret, in its usual forms, in what the box got and in
// every record.
func (w *world) noLeak(got string) {
	w.t.Helper()
	all := got + w.dump()
	for _, form := range []string{realSecret, base64.StdEncoding.EncodeToString([]byte(realSecret)), base64.StdEncoding.EncodeToString([]byte("Bearer " + realSecret))} {
		if strings.Contains(all, form) {
			w.t.Errorf("the secret came out: %s", all)
		}
	}
}

func everyWay(t *testing.T, f func(t *testing.T, by entry, h2 bool)) {
	for _, by := range ways() {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/h2=%v", by, h2), func(t *testing.T) { f(t, by, h2) })
		}
	}
}

func fetch(t *testing.T, c *http.Client, method, url string, body io.Reader, fields ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	ok(t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := c.Do(r)
	ok(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ok(t, err)
	return resp, string(b)
}

func TestCredentialGoesOutAndNeverComesBack(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := armed(t, demoRule())
		w.allow("api.test", "other.test")
		var saw atomic.Value
		echo := func(rw http.ResponseWriter, r *http.Request) {
			auth := r.Header.Get("Authorization")
			saw.Store(auth + " " + r.Header.Get("Accept-Encoding"))
			_, _ = io.Copy(io.Discard, r.Body)
			rw.Header().Set("X-Saw", auth)
			rw.Header().Set("X-Early", base64.StdEncoding.EncodeToString([]byte(auth)))
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Set("Trailer", "X-Last")
			fmt.Fprintf(rw, "uri %s\nauth %s\nhalf %s", r.RequestURI, auth, realSecret[:7])
			_ = http.NewResponseController(rw).Flush()
			fmt.Fprintf(rw, "%s\nb64 %s\n", realSecret[7:], base64.StdEncoding.EncodeToString([]byte("x"+auth)))
			rw.Header().Set("X-Last", realSecret)
		}
		w.web("api.test:443", webH2, echo)
		w.web("other.test:443", webH2, echo)
		c := w.client(by, h2)
		resp, body := fetch(t, c, "POST", "https://api.test/x?a=b", strings.NewReader("body"), "Authorization", "Bearer "+boxDummy)
		if got := saw.Load(); got != "Bearer "+realSecret+" identity" {
			t.Errorf("the origin saw %q", got)
		}
		w.noLeak(body + fmt.Sprint(resp.Header, resp.Trailer))
		if want := "Bearer " + strings.Repeat("*", len(realSecret)); resp.Header.Get("X-Saw") != want || !strings.Contains(body, "auth "+want+"\nhalf "+strings.Repeat("*", len(realSecret))+"\n") {
			t.Errorf("not masked at equal length: %q %q", resp.Header.Get("X-Saw"), body)
		}
		rec := w.saw("injected", func(r *capture.Record) bool { return r.Injected == "demo" })
		if rec.Reason != "redacted" || rec.Verdict != capture.VerdictAllow || rec.Status != 200 {
			t.Errorf("record %+v", *rec)
		}
		// Another host sees nothing of it, and a dummy does not get there.
		_, body = fetch(t, c, "GET", "https://other.test/", nil, "Authorization", "Bearer own")
		if got := saw.Load(); !strings.HasPrefix(got.(string), "Bearer own ") || !strings.Contains(body, "Bearer own") {
			t.Errorf("another host: %q %q", got, body)
		}
		saw.Store("nothing")
		resp, body = fetch(t, c, "GET", "https://other.test/", nil, "Authorization", "Bearer "+boxDummy)
		if resp.StatusCode != 403 || resp.Header.Get("Foldyard-Reason") != "dummy_elsewhere" || saw.Load() != "nothing" {
			t.Errorf("%d %q, origin saw %q", resp.StatusCode, body, saw.Load())
		}
		w.sawReason("other.test", policy.ReasonDummyElsewhere)
	})
}

func TestDummyInABodyIsStopped(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := armed(t, demoRule())
		w.allow("api.test", "other.test")
		var got atomic.Value
		var leaked atomic.Bool
		collect := func(rw http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			switch s := string(b); {
			case r.URL.Path == "/neighbour":
				got.Store(s)
			case strings.Contains(s, boxDummy), strings.Contains(s, "dummy%2D"):
				leaked.Store(true)
			}
			fmt.Fprint(rw, "done")
		}
		w.web("other.test:443", webH2, collect)
		w.web("api.test:443", webH2, collect)
		c := w.client(by, h2)
		long := strings.Repeat("x", 100_000)
		for _, body := range []string{`{"t":"` + boxDummy + `"}`, `{"long":"` + long + `","t":"dummy-demo-token"}`, "a=b&t=dummy%2Ddemo%2Dtoken"} {
			for _, chunked := range []bool{false, true} {
				var r io.Reader = strings.NewReader(body)
				if chunked {
					r = io.MultiReader(r)
				}
				resp, answer := fetch(t, c, "POST", "https://other.test/", r, "Content-Type", map[bool]string{true: "application/json", false: "application/x-www-form-urlencoded"}[body[0] == '{'])
				if resp.StatusCode != 403 || resp.Header.Get("Foldyard-Reason") != "dummy_elsewhere" {
					t.Errorf("%.30q chunked=%v: %d %q", body, chunked, resp.StatusCode, answer)
				}
			}
		}
		w.saw("dummy_elsewhere", func(r *capture.Record) bool {
			return r.Reason == "dummy_elsewhere" && r.Verdict == capture.VerdictDeny && r.Host == "other.test"
		})
		// Neighbours: to its own host, a type that is not read, and text that only looks like it.
		for _, n := range [][3]string{
			{"https://api.test/neighbour", "application/json", `{"t":"` + boxDummy + `"}`}, {"https://other.test/neighbour", "application/octet-stream", boxDummy},
			{"https://other.test/neighbour", "application/json", `{"t":"dummy-demo-toke"}` + long},
		} {
			if resp, answer := fetch(t, c, "POST", n[0], strings.NewReader(n[2]), "Content-Type", n[1]); resp.StatusCode != 200 || got.Load() != n[2] {
				t.Errorf("%s %s: %d %q", n[0], n[1], resp.StatusCode, answer)
			}
		}
		c.CloseIdleConnections()
		w.settled()
		if leaked.Load() {
			t.Error("the origin got it")
		}
	})
}

func TestCodedAnswersAreReadOrRefused(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := armed(t, demoRule())
		w.allow("api.test")
		zipped := func(text string) []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
			return b.Bytes()
		}
		w.web("api.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", r.URL.Query().Get("type"))
			rw.Header().Set("Content-Encoding", r.URL.Query().Get("coding"))
			body := zipped(`{"auth":"` + r.Header.Get("Authorization") + `"}`)
			rw.Header().Set("Content-Length", fmt.Sprint(len(body)))
			_, _ = rw.Write(body)
		})
		c := w.client(by, h2)
		resp, body := fetch(t, c, "GET", "https://api.test/?coding=gzip&type=application/json", nil)
		if want := `{"auth":"Bearer ` + strings.Repeat("*", len(realSecret)) + `"}`; body != want || resp.Header.Get("Content-Encoding") != "" || resp.StatusCode != 200 {
			t.Errorf("%d %q, want %q", resp.StatusCode, body, want)
		}
		resp, body = fetch(t, c, "GET", "https://api.test/?coding=br&type=text/plain", nil)
		if resp.StatusCode != 502 || resp.Header.Get("Foldyard-Reason") != "redacted" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
		resp, body = fetch(t, c, "GET", "https://api.test/?coding=gzip&type=application/x-tar", nil)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != "gzip" || len(body) == 0 {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
		w.saw("marked", func(r *capture.Record) bool { return strings.Contains(r.Error, "passed unread") })
		w.noLeak("")
	})
}

// tokens mints a new value each time.
type tokens struct{ n atomic.Int64 }

func (m *tokens) Mint(context.Context, string) (inject.Token, error) {
	return inject.Token{Value: inject.NewSecret(fmt.Appendf(nil, "minted-token-number-%d", m.n.Add(1)))}, nil
}

func TestUnauthorizedIsReplayedOnce(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		var now atomic.Int64
		in := inject.New(inject.Config{Now: func() time.Time { return time.Unix(now.Add(60), 0) }})
		ok(t, in.Load([]inject.Rule{demoRule(func(r *inject.Rule) { r.Minter = &tokens{} })}))
		w := newWorld(t, func(c *Config) { c.Inject = in })
		t.Cleanup(func() { w.e.Close(); in.Close() })
		w.allow("api.test")
		var asked atomic.Int64
		w.web("api.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			asked.Add(1)
			if r.Header.Get("Authorization") == "Bearer minted-token-number-1" || r.URL.Path == "/never" {
				rw.WriteHeader(401)
				return
			}
			fmt.Fprintf(rw, "%s %s %s", r.Method, r.Header.Get("Authorization")[:6], b)
		})
		c := w.client(by, h2)
		resp, body := fetch(t, c, "POST", "https://api.test/x", strings.NewReader("the body"), "Content-Type", "text/plain")
		if resp.StatusCode != 200 || body != "POST Bearer the body" || asked.Load() != 2 {
			t.Errorf("%d %q after %d tries", resp.StatusCode, body, asked.Load())
		}
		if r := w.saw("replayed", func(r *capture.Record) bool { return r.Replayed }); r.Injected != "demo" || r.Status != 200 {
			t.Errorf("record %+v", *r)
		}
		asked.Store(0)
		if resp, _ := fetch(t, c, "GET", "https://api.test/never", nil); resp.StatusCode != 401 || asked.Load() != 2 {
			t.Errorf("%d after %d tries", resp.StatusCode, asked.Load())
		}
		// A body that streams cannot be sent twice.
		asked.Store(0)
		if resp, _ := fetch(t, c, "POST", "https://api.test/never", io.MultiReader(strings.NewReader("streams"))); resp.StatusCode != 401 || asked.Load() != 1 {
			t.Errorf("streamed: %d after %d tries", resp.StatusCode, asked.Load())
		}
		if _, body := fetch(t, c, "GET", "https://api.test/y", nil); !strings.HasPrefix(body, "GET") {
			t.Errorf("the connection is out of step: %q", body)
		}
	})
}

func TestWebSocketHandshakeGetsTheCredential(t *testing.T) {
	for _, by := range ways() {
		w := armed(t, demoRule(), demoRule(func(r *inject.Rule) {
			r.Name, r.Hosts, r.Dummies = "other", []policy.Rule{must(policy.ParseRule("ws2.test"))}, []string{"dummy-other-token"}
		}))
		w.allow("api.test")
		var saw atomic.Value
		w.raw("api.test:443", func(nc net.Conn) {})
		w.web("api.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
			saw.Store(r.Header.Get("Authorization"))
			c, brw, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "HTTP/1.1 101 Switching to %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nX-Saw: %s\r\n\r\nhello", realSecret, acceptKey(r.Header.Get("Sec-WebSocket-Key")), r.Header.Get("Authorization"))
			_, _ = io.Copy(c, brw)
		})
		tc := w.tls(by, "api.test:443", "api.test", "http/1.1")
		fmt.Fprintf(tc, "GET /ws HTTP/1.1\r\nHost: api.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: %s\r\n\r\n", boxDummy)
		br := bufio.NewReader(tc)
		head, err := readUntil(br, "\r\n\r\nhello")
		ok(t, err)
		if saw.Load() != "Bearer "+realSecret {
			t.Errorf("%s: the origin saw %q", by, saw.Load())
		}
		if strings.Contains(head, realSecret) || !strings.HasPrefix(head, "HTTP/1.1 101 ") {
			t.Errorf("%s: %q", by, head)
		}
		_ = tc.Close()
		w.saw("websocket", func(r *capture.Record) bool { return r.Proto == capture.ProtoWebSocket && r.Injected == "demo" })
		// A dummy in a handshake elsewhere.
		tc = w.tls(by, "api.test:443", "api.test", "http/1.1")
		if r, _ := ask(t, tc, "GET /ws HTTP/1.1\r\nHost: api.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: dummy-other-token\r\n\r\n"); r.StatusCode != 403 {
			t.Errorf("%s: %d", by, r.StatusCode)
		}
	}
}

func TestGRPCGetsTheCredentialAndTrailersAreMasked(t *testing.T) {
	w := armed(t, demoRule())
	w.allow("api.test")
	w.web("api.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		_ = http.NewResponseController(rw).Flush()
		b, _ := io.ReadAll(r.Body)
		_, _ = rw.Write(append(b, r.Header.Get("Authorization")...))
		rw.Header().Set("Grpc-Status", "7")
		rw.Header().Set("Grpc-Message", "bad token "+realSecret)
	})
	resp, body := fetch(t, w.client(byRedirect, true), "POST", "https://api.test/pkg.Service/Method", io.MultiReader(strings.NewReader("\x00\x00\x00\x00\x01x")), "Content-Type", "application/grpc", "TE", "trailers")
	if resp.Trailer.Get("Grpc-Status") != "7" || !strings.HasPrefix(body, "\x00\x00\x00\x00\x01xBearer **") {
		t.Errorf("%q %v", body, resp.Trailer)
	}
	w.noLeak(body + fmt.Sprint(resp.Trailer))
	w.saw("grpc", func(r *capture.Record) bool { return r.Proto == capture.ProtoGRPC && r.Injected == "demo" })
}

// signedWith is what a box sends to a host of signing's.
const signedWith = "AWS4-HMAC-SHA256 Credential=AKIADUMMYDUMMY/20260101/r/dynamodb/aws4_request, SignedHeaders=content-length;host, " +
	"Signature=0000000000000000000000000000000000000000000000000000000000000000"

// signing signs requests to *.aws.test.
func signing(t *testing.T) *inject.Injector {
	t.Helper()
	aws := inject.Rule{Name: "aws", Kind: "aws-sigv4", Hosts: []policy.Rule{must(policy.ParseRule("*.aws.test"))}, Dummies: []string{"AKIADUMMYDUMMY"}}
	aws.UseAWS(func(context.Context) (inject.Value, error) {
		return inject.Value{Secret: inject.NewSecret([]byte("AKIAREAL:" + realSecret))}, nil
	}, "", "")
	return loaded(t, aws)
}

// Signing over a body means reading it first.
func TestBodyIsHeldForItsSignature(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := newWorld(t, func(c *Config) { c.Inject = signing(t) })
		w.allow("x.aws.test")
		w.web("x.aws.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(rw, "%d %d %v %s", len(b), r.ContentLength, err, r.Header.Get("Authorization"))
		})
		c := w.client(by, h2)
		for _, n := range []int{0, 1, 5000, 1 << 20} {
			for _, expect := range []string{"", "100-continue"} {
				body := io.MultiReader(strings.NewReader(strings.Repeat("x", n)))
				if n == 0 {
					body = nil
				}
				resp, got := fetch(t, c, "POST", "https://x.aws.test/", body, "Authorization", signedWith, "Expect", expect, "Content-Type", "application/x-amz-json-1.0")
				if !strings.HasPrefix(got, fmt.Sprintf("%d %d <nil> AWS4-HMAC-SHA256 Credential=AKIAREAL/", n, n)) {
					t.Errorf("%d bytes, expect %q: %d %q", n, expect, resp.StatusCode, got)
				}
			}
		}
		resp, _ := fetch(t, c, "POST", "https://x.aws.test/", io.MultiReader(strings.NewReader(strings.Repeat("x", 9<<20))), "Authorization", signedWith, "Content-Type", "application/x-amz-json-1.0")
		if resp.StatusCode != 413 {
			t.Errorf("9 MiB: %d", resp.StatusCode)
		}
		w.noLeak("")
	})
}

func TestDummyInAConnectFieldIsRefused(t *testing.T) {
	w := armed(t, demoRule())
	w.allow("api.test", "other.test")
	w.web("api.test:443", webH1, greet)
	w.web("other.test:443", webH1, greet)
	for host, want := range map[string]string{"api.test": "HTTP/1.1 200 ", "other.test": "HTTP/1.1 403 dummy_elsewhere"} {
		c, err := net.Dial("tcp", w.proxy)
		ok(t, err)
		fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %[1]s:443\r\nProxy-Authorization: Bearer %s\r\n\r\n", host, boxDummy)
		head, err := readUntil(c, "\r\n\r\n")
		ok(t, err)
		if !strings.HasPrefix(head, want) {
			t.Errorf("%s: %q", host, head)
		}
		_ = c.Close()
	}
	if w.dialled("other.test:443") != 0 {
		t.Error("dialled")
	}
	w.sawReason("other.test", policy.ReasonDummyElsewhere)
}

func TestPassthroughHostWithARuleIsDecrypted(t *testing.T) {
	w := armed(t, demoRule())
	w.allow("api.test", "raw.test")
	var saw atomic.Value
	w.web("api.test:443", webH2, func(_ http.ResponseWriter, r *http.Request) { saw.Store(r.Header.Get("Authorization")) })
	w.edit(func(f *policy.File) {
		f.Passthrough, f.Intercept = []string{"api.test", "raw.test"}, w.e.cfg.Inject.Hosts()
	})
	fetch(t, w.client(byRedirect, true), "GET", "https://api.test/", nil)
	if saw.Load() != "Bearer "+realSecret {
		t.Errorf("the origin saw %q", saw.Load())
	}
}

func TestMetadataServerAnswersInProcess(t *testing.T) {
	gcp := inject.Rule{Name: "gcp", Kind: "gcp-metadata", Hosts: []policy.Rule{must(policy.ParseRule("*.googleapis.com"))}, Header: "Authorization", Prefix: "Bearer ", Dummies: []string{"ya29.foldyard-dummy"}}
	gcp.UseGCP(func(context.Context) (inject.Value, error) { return inject.Value{}, nil }, nil, time.Now, inject.GCP{})
	w := armed(t, gcp)
	for _, target := range []string{"metadata.google.internal:80", "169.254.169.254:80"} {
		for _, by := range ways() {
			c := w.client(by, false)
			resp, body := fetch(t, c, "GET", "http://"+target+"/computeMetadata/v1/instance/service-accounts/default/token", nil, "Metadata-Flavor", "Google")
			if resp.StatusCode != 200 || !strings.Contains(body, "ya29.foldyard-dummy") {
				t.Errorf("%s by %s: %d %q", target, by, resp.StatusCode, body)
			}
		}
		if w.dialled(target) != 0 {
			t.Errorf("%s was dialled", target)
		}
	}
}

// A refusal may name what a configuration says; it stays one line of one field.
func TestRefusalsStayWithinTheirField(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := armed(t, demoRule(func(r *inject.Rule) {
			r.Minter, r.Off = nil, "not confirmed: demo: scopes \"\r\nSet-Cookie: a=b\\ \u202e"+strings.Repeat("x", 2000)
		}))
		w.allow("api.test")
		resp, body := fetch(t, w.client(by, h2), "GET", "https://api.test/", nil)
		if resp.StatusCode != 401 || resp.Header.Get("Set-Cookie") != "" || !strings.Contains(resp.Header.Get("Proxy-Status"), "scopes ???Set-Cookie: a=b? ?x") || len(body) > 1000 {
			t.Errorf("%d %q %q", resp.StatusCode, resp.Header, body)
		}
	})
}

func TestRefusalsOfCredentials(t *testing.T) {
	off := demoRule(func(r *inject.Rule) { r.Minter, r.Off, r.Fix = nil, "no secret is set for it", "fy secret set demo" })
	bad := demoRule(func(r *inject.Rule) {
		r.Name, r.Hosts, r.Dummies = "bad", []policy.Rule{must(policy.ParseRule("bad.test"))}, nil
		r.UseStatic(func(context.Context) (inject.Value, error) {
			return inject.Value{}, &inject.MintError{Why: "the command of its secret ended with an error", Fix: "run it by hand"}
		})
	})
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := armed(t, off, bad)
		w.allow("api.test", "bad.test")
		w.web("api.test:443", webH2, greet)
		w.web("bad.test:443", webH2, greet)
		c := w.client(by, h2)
		resp, body := fetch(t, c, "GET", "https://api.test/", nil, "Authorization", "Bearer "+boxDummy)
		if resp.StatusCode != 401 || !strings.Contains(body, "fy secret set demo") || resp.Header.Get("Foldyard-Reason") != "credential_off" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
		resp, body = fetch(t, c, "GET", "https://bad.test/", nil)
		if resp.StatusCode != 502 || !strings.Contains(body, "ended with an error") || resp.Header.Get("Foldyard-Reason") != "mint_failed" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
		if w.dialled("api.test:443")+w.dialled("bad.test:443") != 0 {
			t.Error("dialled")
		}
		w.sawReason("api.test", policy.ReasonCredentialOff)
		w.sawReason("bad.test", policy.ReasonMintFailed)
	})
}

// Events pass as they come, masked or not.
func TestEventsStreamThroughTheRedactor(t *testing.T) {
	everyWay(t, func(t *testing.T, by entry, h2 bool) {
		w := armed(t, demoRule())
		w.allow("api.test")
		next := make(chan struct{})
		w.web("api.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(rw, "data: %d %s\n\n", i, r.Header.Get("Authorization"))
				_ = http.NewResponseController(rw).Flush()
				<-next
			}
		})
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://api.test/", nil)
		ok(t, err)
		resp, err := w.client(by, h2).Do(r)
		ok(t, err)
		defer resp.Body.Close()
		br := bufio.NewReader(resp.Body)
		for i := range 3 {
			line, err := br.ReadString('\n')
			ok(t, err)
			if want := fmt.Sprintf("data: %d Bearer %s\n", i, strings.Repeat("*", len(realSecret))); line != want {
				t.Errorf("%q, want %q", line, want)
			}
			_, err = br.ReadString('\n')
			ok(t, err)
			next <- struct{}{}
		}
	})
}

// A10: the credential belongs to the host that the connection is for, whatever
// else a request says.
func TestForgedNamesGetNoCredential(t *testing.T) {
	for _, by := range ways() {
		w := armed(t, demoRule())
		w.allow("api.test", "other.test")
		var saw atomic.Value
		saw.Store("")
		note := func(rw http.ResponseWriter, r *http.Request) { saw.Store(r.Host + " " + r.Header.Get("Authorization")) }
		w.web("api.test:443", webH1, note)
		w.web("other.test:443", webH1, note)
		w.web("other.test:80", webPlain, note)
		w.web("api.test:80", webPlain, note)
		for name, c := range map[string]struct{ target, sni, head, want string }{
			"control":                      {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: api.test\r\n", "api.test Bearer " + realSecret},
			"another spelling":             {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: API.test.:443\r\n", "API.test.:443 Bearer " + realSecret},
			"Connection names the field":   {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: api.test\r\nConnection: Authorization\r\nAuthorization: own\r\n", "api.test Bearer " + realSecret},
			"Host of the rule elsewhere":   {"other.test:443", "other.test", "GET / HTTP/1.1\r\nHost: api.test\r\n", ""},
			"SNI and Host of the rule":     {"other.test:443", "api.test", "GET / HTTP/1.1\r\nHost: api.test\r\n", ""},
			"absolute form of the rule":    {"other.test:443", "other.test", "GET https://api.test/ HTTP/1.1\r\nHost: api.test\r\n", ""},
			"another Host at the rule's":   {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: other.test\r\n", ""},
			"Host with user information":   {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: x@api.test\r\n", ""},
			"plain, Host of the rule":      {"other.test:80", "", "GET / HTTP/1.1\r\nHost: api.test\r\n", ""},
			"plain, the rule's own host":   {"api.test:80", "", "GET / HTTP/1.1\r\nHost: api.test\r\n", "api.test "},
			"TRACE":                        {"api.test:443", "api.test", "TRACE / HTTP/1.1\r\nHost: api.test\r\n", ""},
			"a header that is forwarded":   {"other.test:443", "other.test", "GET / HTTP/1.1\r\nHost: other.test\r\nX-Forwarded-Host: api.test\r\n", "other.test "},
			"upgrade to what is not read":  {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n", "api.test Bearer " + realSecret},
			"a second Host":                {"api.test:443", "api.test", "GET / HTTP/1.1\r\nHost: api.test\r\nHost: other.test\r\n", ""},
			"a field folded into a second": {"other.test:443", "other.test", "GET / HTTP/1.1\r\nHost: other.test\r\nX: y\r\n Host: api.test\r\n", ""},
		} {
			saw.Store("")
			var conn net.Conn
			if c.sni != "" {
				conn = w.tls(by, c.target, c.sni, "http/1.1")
			} else {
				var err error
				conn, err = w.dial(by, c.target)
				ok(t, err)
			}
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			fmt.Fprintf(conn, "%s\r\n", c.head)
			if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				_ = r.Body.Close()
			}
			_ = conn.Close()
			if got := saw.Load().(string); got != c.want {
				t.Errorf("%s, %s: the origin saw %q, want %q", by, name, got, c.want)
			}
		}
	}
}

// What unpacks to more than it may is broken off, not passed on.
func TestGzipBombIsBrokenOff(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := armed(t, demoRule())
		w.allow("api.test")
		w.web("api.test:443", webH2, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/plain")
			rw.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			_, _ = io.CopyN(z, zeros{}, 64<<20)
			_ = z.Close()
		})
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://api.test/", nil)
		ok(t, err)
		resp, err := w.client(byRedirect, h2).Do(r)
		ok(t, err)
		n, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err == nil || n > 9<<20 {
			t.Errorf("h2=%v: %d bytes, %v", h2, n, err)
		}
		w.saw("broken off", func(r *capture.Record) bool {
			return strings.Contains(r.Error, "8 MiB") && r.Reason == string(policy.ReasonLimit)
		})
	}
}
