package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
)

// forwarding is worldDialer behind an upstream proxy for plain HTTP.
type forwarding struct {
	*worldDialer
	proxy string
}

func (f forwarding) Forward(t dest.Target) bool { return t.Host.Name() != "direct.test" }

func (f forwarding) DialForward(ctx context.Context, _ dest.Target, _ bool) (net.Conn, netip.AddrPort, string, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", f.proxy)
	return c, must(netip.ParseAddrPort(f.proxy)), "Basic b3BlcmF0b3I=", err
}

// B28: plain HTTP goes to the operator's upstream proxy in absolute form, with
// the operator's credentials and not the box's.
func TestPlainHTTPThroughAnUpstreamProxy(t *testing.T) {
	up := listen(t)
	w := newWorld(t, func(c *Config) { c.Dialer = forwarding{c.Dialer.(*worldDialer), up.Addr().String()} })
	w.allow("a.test", "a.test:8080", "direct.test", "tls.test")
	w.web("direct.test:80", webPlain, greet)
	w.web("tls.test:443", webH1, greet)
	srv := &http.Server{ErrorLog: quiet(), Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s %s", r.RequestURI, r.Host, r.Header["Proxy-Authorization"])
	})}
	t.Cleanup(func() { _ = srv.Close() })
	go func() { _ = srv.Serve(up) }()
	c, err := net.Dial("tcp", w.proxy)
	ok(t, err)
	defer c.Close()
	br := bufio.NewReader(c)
	for _, step := range []struct{ method, url, host, want string }{
		{"GET", "http://a.test/x?y", "a.test", "http://a.test/x?y a.test [Basic b3BlcmF0b3I=]"},
		{"GET", "http://a.test:8080/x", "a.test:8080", "http://a.test:8080/x a.test:8080 [Basic b3BlcmF0b3I=]"},
		{"OPTIONS", "http://a.test", "a.test", "http://a.test a.test [Basic b3BlcmF0b3I=]"},
		{"GET", "http://direct.test/z", "direct.test", "hello from direct.test HTTP/1.1 GET /z"},
		{"GET", "https://tls.test/z", "tls.test", "hello from tls.test HTTP/1.1 GET /z"},
	} {
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic Ym94\r\n\r\n", step.method, step.url, step.host)
		r, err := http.ReadResponse(br, nil)
		ok(t, err)
		if b, _ := io.ReadAll(r.Body); string(b) != step.want {
			t.Errorf("%s: %q, want %q", step.url, b, step.want)
		}
	}
}

// Who asked is looked up beside the work, once a connection, and is in every
// record.
func TestAttribution(t *testing.T) {
	var asked atomic.Int64
	release := make(chan struct{})
	w := newWorld(t, func(c *Config) {
		c.Attribute = func(box string, _, remote netip.AddrPort) *capture.Process {
			asked.Add(1)
			<-release
			return &capture.Process{PID: int(remote.Port()), Exe: "/usr/bin/" + box}
		}
	})
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.tls(byRedirect, "a.test:443", "a.test")
	br := bufio.NewReader(c)
	for i := range 2 {
		fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: a.test\r\n\r\n", i)
		r, err := http.ReadResponse(br, nil) // does not wait for it
		ok(t, err)
		_, _ = io.Copy(io.Discard, r.Body)
		if i == 0 {
			close(release)
		}
	}
	for i := range 2 {
		rec := w.saw("of a request", func(r *capture.Record) bool { return r.Path == fmt.Sprint("/", i) })
		if rec.Process == nil || rec.Process.PID != c.LocalAddr().(*net.TCPAddr).Port || rec.Process.Exe != "/usr/bin/box1" {
			t.Errorf("process %+v", rec.Process)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// A tunnel on which nobody says anything is not kept for ever.
func TestQuietTunnelIsBounded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells how quiet a connection is")
	}
	w := newWorld(t, func(c *Config) { c.Limits.Quiet = time.Second })
	w.allow("db.test:5432")
	w.raw("db.test:5432", func(c net.Conn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(c, c)
	})
	c, err := w.dial(byRedirect, "db.test:5432")
	ok(t, err)
	defer c.Close()
	_, _ = io.ReadFull(c, make([]byte, 1))
	for i := range 8 { // longer than Quiet, but never quiet
		<-time.After(200 * time.Millisecond)
		_, _ = c.Write([]byte{1})
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("cut while in use, after %d: %v", i, err)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("still open: %v", err)
	}
	w.sawReason("db.test", policy.ReasonLimit)
}

// A session ticket of one name resumed with another is still judged by the
// name in this hello.
func TestResumedSessionIsAligned(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		w := newWorld(t)
		w.allow("a.test", "b.test")
		w.web("a.test:443", webH1, greet)
		w.web("b.test:443", webH1, greet)
		cache := &oneSession{}
		for i, sni := range []string{"a.test", "b.test"} {
			c, err := w.dial(byRedirect, "a.test:443")
			ok(t, err)
			tc := tls.Client(c, &tls.Config{RootCAs: w.trust, ServerName: sni, ClientSessionCache: cache, MaxVersion: version, InsecureSkipVerify: true}) //nolint:gosec // a test
			r, _ := ask(t, tc, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
			if want := []int{200, 421}[i]; r.StatusCode != want || tc.ConnectionState().DidResume != (i == 1) {
				t.Errorf("TLS %x, SNI %s: %d, resumed %v", version, sni, r.StatusCode, tc.ConnectionState().DidResume)
			}
			tc.Close()
		}
	}
}

// oneSession offers the last session to every name.
type oneSession struct{ last *tls.ClientSessionState }

func (o *oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.last, o.last != nil }
func (o *oneSession) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		o.last = s
	}
}

// One box's grant is not another's.
func TestGrantsOfABoxAreItsOwn(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) {
		f.Allow = []policy.Entry{{Rule: "a.test", Level: policy.Session, Box: testBox}}
	})
	w.web("a.test:443", webH1, greet)
	l := listen(t)
	other := BoxWay{ID: "box2", Resolve: w.box().Resolve}
	go func() { _ = w.e.ServeProxy(t.Context(), other, l) }()
	c := w.tls(byConnect, "a.test:443", "a.test")
	if r, _ := ask(t, c, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
		t.Errorf("control: %d", r.StatusCode)
	}
	w.proxy = l.Addr().String()
	if _, head, _ := w.connect("a.test:443"); !strings.HasPrefix(head, "HTTP/1.1 403 not_granted") {
		t.Errorf("the other box: %q", head)
	}
	w.saw("of the other box", func(r *capture.Record) bool { return r.Box == "box2" && r.Verdict == capture.VerdictDeny })
}

// A refusal in JSON, where it is asked for.
func TestRefusalInJSON(t *testing.T) {
	w := newWorld(t)
	c := w.tls(byRedirect, "a.test:443", "a.test")
	r, body := ask(t, c, "GET / HTTP/1.1\r\nHost: a.test\r\nAccept: application/json\r\n\r\n")
	if r.Header.Get("Content-Type") != "application/json" || !strings.Contains(body, `"error":"not_granted"`) || !strings.Contains(body, `"fix":"fy allow a.test"`) {
		t.Errorf("got %v %s", r.Header, body)
	}
}

// Commands in refusals hold canonical targets only, quoted for a shell.
func TestCommandsAreQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"a.test:443": "fy allow a.test", "a.test:80": "fy allow a.test", "a.test:22": "fy allow a.test:22",
		"192.0.2.1:443": "fy allow 192.0.2.1", "[2001:db8::1]:443": "fy allow 2001:db8::1", "[2001:db8::1]:22": "fy allow '[2001:db8::1]:22'",
	} {
		if got := AllowCommand(target(in)); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
		if _, err := policy.ParseRule(strings.Trim(strings.TrimPrefix(want, "fy allow "), "'")); err != nil {
			t.Errorf("%s: the advice is no rule: %v", in, err)
		}
	}
}

// An answer that offers a grant which does not help teaches to grant more: see dialer.Opens.
func TestFixForAddressesHelps(t *testing.T) {
	for in, want := range map[string]string{
		"169.254.169.254:80": "fy allow 169.254.169.254:80 --internal", "10.0.0.1:443": "fy allow 10.0.0.1:443 --internal",
		"[::1]:8080": "fy allow '[::1]:8080' --internal", "[::ffff:127.0.0.1]:80": "fy allow 127.0.0.1:80 --internal",
		"224.0.0.1:443": "", "198.18.0.9:443": "", "0.0.0.0:80": "", "255.255.255.255:80": "",
		"localhost:8088": "fy allow localhost:8088 --internal", "db.localhost:443": "fy allow db.localhost:443 --internal",
		"localhost.test:443": "fy allow localhost.test", "notlocalhost:443": "fy allow notlocalhost", // control
		"192.0.2.1:443": "fy allow 192.0.2.1", "a.test:443": "fy allow a.test", // control
	} {
		d := denied(policy.Decision{Reason: policy.ReasonNotGranted}, target(in))
		if d.fix != want {
			t.Errorf("%s: %q, want %q", in, d.fix, want)
		}
		if _, body := d.body(acceptAny); want == "" && !strings.Contains(body, "no grant permits this") {
			t.Errorf("%s: %s", in, body)
		}
	}
	e := new(Engine)
	for class, want := range map[dest.Class]string{dest.ClassPrivate: "fy allow a.test:443 --internal", dest.ClassMulticast: ""} {
		if d := e.unreachable(&dialer.Error{Kind: dialer.KindClass, Class: class}, target("a.test:443")); d.fix != want {
			t.Errorf("%s: %q, want %q", class, d.fix, want)
		}
	}
}

// A fault of ours ends the connection that met it, is recorded, and nothing
// else notices.
func TestFaultStaysInItsConnection(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Hold = func(context.Context, Ask) policy.Reason { panic("a fault") } })
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	running := w.tls(byRedirect, "a.test:443", "a.test")
	if _, err := w.dial(byConnect, "b.test:443"); err == nil {
		t.Error("connected")
	}
	w.saw("of the fault", func(r *capture.Record) bool {
		return strings.Contains(r.Error, "a fault") && r.Verdict == capture.VerdictDeny && r.Host == "b.test"
	})
	if r, _ := ask(t, running, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
		t.Errorf("another connection: %d", r.StatusCode)
	}
	w.settled()
}
