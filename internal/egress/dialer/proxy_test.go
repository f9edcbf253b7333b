package dialer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"foldyard/internal/egress/dest"
)

// corporate is an upstream proxy, HTTP or SOCKS5 by the client's first byte,
// that counts, wants user:pass@word and leads everything to one place.
type corporate struct {
	addr  string
	to    string
	count atomic.Int32
	asked chan string
}

const secret = "p%40ss:word" // in a URL

func startProxy(t testing.TB, to string, tlsConfig *tls.Config) *corporate {
	p := &corporate{to: to, asked: make(chan string, 100)}
	p.addr = listen(t, func(c net.Conn) {
		p.count.Add(1)
		if tlsConfig != nil {
			c = tls.Server(c, tlsConfig)
		}
		br := bufio.NewReader(c)
		first, err := br.Peek(1)
		if err != nil {
			return
		}
		var ok bool
		if first[0] == 5 {
			ok = p.socks(c, br)
		} else {
			ok = p.http(c, br)
		}
		if !ok {
			return
		}
		up, err := net.Dial("tcp", p.to)
		if err != nil {
			return
		}
		defer up.Close()
		io.Copy(c, up)
	})
	return p
}

func (p *corporate) http(c net.Conn, br *bufio.Reader) bool {
	req, err := http.ReadRequest(br)
	if err != nil {
		return false
	}
	p.asked <- req.Method + " " + req.RequestURI + " " + req.Host
	if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:p@ss:word")); req.Header.Get("Proxy-Authorization") != want {
		io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
		return false
	}
	if strings.HasPrefix(req.Host, "forbidden.test") {
		io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
		return false
	}
	// The head and the first bytes of the tunnel in one segment.
	io.WriteString(c, "HTTP/1.1 200 OK\r\nVia: corp\r\n\r\nbanner ")
	return true
}

func (p *corporate) socks(c net.Conn, br *bufio.Reader) bool {
	b := make([]byte, 256)
	read := func(n int) []byte { io.ReadFull(br, b[:n]); return b[:n] }
	methods := read(int(read(2)[1]))
	if !bytes.Contains(methods, []byte{2}) {
		c.Write([]byte{5, 0xff})
		return false
	}
	c.Write([]byte{5, 2})
	user := string(read(int(read(2)[1])))
	password := string(read(int(read(1)[0])))
	if user != "user" || password != "p@ss:word" {
		c.Write([]byte{1, 1})
		return false
	}
	c.Write([]byte{1, 0})
	var host string
	switch read(4)[3] {
	case 1:
		host = netip.AddrFrom4([4]byte(read(4))).String()
	case 3:
		host = string(read(int(read(1)[0])))
	case 4:
		host = netip.AddrFrom16([16]byte(read(16))).String()
	}
	port := read(2)
	p.asked <- fmt.Sprintf("SOCKS %s %d", host, int(port[0])<<8|int(port[1]))
	if reply, ok := map[string]byte{"forbidden.test": 2, "unreachable.test": 4, "shut.test": 5, "slow.test": 6}[host]; ok {
		c.Write([]byte{5, reply, 0, 1, 0, 0, 0, 0, 0, 0})
		return false
	}
	c.Write(append([]byte{5, 0, 0, 3, 4, 'c', 'o', 'r', 'p', 0, 1}, "banner "...))
	return true
}

func through(t testing.TB, o ProxyOptions) Config {
	t.Helper()
	f, err := ProxyFunc(o)
	if err != nil {
		t.Fatal(err)
	}
	return Config{Own: none, Proxy: f}
}

// B28: through a corporate proxy with credentials. The name is not resolved
// here, and what the proxy sends at once is not lost.
func TestUpstreamProxy(t *testing.T) {
	origin := listen(t, func(c net.Conn) { io.WriteString(c, "hello") })
	for scheme, want := range map[string]string{"http": "CONNECT %s %[1]s", "socks5": "SOCKS %s", "socks5h": "SOCKS %s"} {
		t.Run(scheme, func(t *testing.T) {
			p := startProxy(t, origin, nil)
			d := New(through(t, ProxyOptions{URL: scheme + "://user:" + secret + "@" + p.addr}))
			n := &names{}
			d.lookup = n.lookup
			for i, s := range []string{"a.test:443", "a.test:80", "a.test:5432", "192.0.2.1:443", "[2001:db8::1]:443"} {
				c, at, err := d.Dial(t.Context(), target(t, s), false)
				if err != nil {
					t.Fatal(err)
				}
				if _, bare := c.(*net.TCPConn); !bare {
					t.Errorf("a %T cannot be spliced", c)
				}
				if got := readAll(t, c); got != "banner hello" || at.String() != p.addr {
					t.Errorf("%s: read %q at %v", s, got, at)
				}
				c.Close()
				x := target(t, s)
				shown := x.String()
				if strings.HasPrefix(scheme, "socks") {
					shown = fmt.Sprintf("%s %d", x.Host, x.Port)
				}
				if got := <-p.asked; got != fmt.Sprintf(want, shown) {
					t.Errorf("%s: the proxy was asked %q", s, got)
				}
				if int(p.count.Load()) != i+1 {
					t.Errorf("%d connections to the proxy after %d dials", p.count.Load(), i+1)
				}
			}
			if len(n.asked) != 0 {
				t.Errorf("resolved here: %v", n.asked)
			}
		})
	}
}

// Behind a proxy literals are classified all the same.
func TestUpstreamProxyLiterals(t *testing.T) {
	p := startProxy(t, listen(t, func(net.Conn) {}), nil)
	d := New(through(t, ProxyOptions{URL: "http://user:" + secret + "@" + p.addr}))
	c, _, err := d.Dial(t.Context(), target(t, "192.0.2.1:80"), false)
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	c.Close()
	for _, s := range []string{"169.254.169.254:80", "10.0.0.1:80", "[fd00::1]:80", "[64:ff9b::10.0.0.1]:80", "198.18.0.5:80", "localhost:80", "x.localhost:443"} {
		_, _, err := d.Dial(t.Context(), target(t, s), false)
		wantKind(t, err, KindClass)
	}
	if p.count.Load() != 1 {
		t.Errorf("%d connections to the proxy", p.count.Load())
	}
	c, _, err = d.Dial(t.Context(), target(t, "10.0.0.1:80"), true)
	if err != nil {
		t.Fatalf("an internal grant: %v", err)
	}
	c.Close()
}

func TestUpstreamProxyRefusals(t *testing.T) {
	p := startProxy(t, listen(t, func(net.Conn) {}), nil)
	broken := func(answer string) string {
		return listen(t, func(c net.Conn) {
			io.ReadFull(c, make([]byte, 3))
			io.WriteString(c, answer)
		})
	}
	for name, tt := range map[string]struct {
		proxy, target string
		want          Kind
		text          string
	}{
		"http forbids":          {"http://user:" + secret + "@" + p.addr, "forbidden.test:443", KindProxy, "403"},
		"http, no credentials":  {"http://" + p.addr, "a.test:443", KindProxy, "407"},
		"http, bad credentials": {"http://user:wrong-secret@" + p.addr, "a.test:443", KindProxy, "407"},
		"socks forbids":         {"socks5://user:" + secret + "@" + p.addr, "forbidden.test:443", KindProxy, "not allowed"},
		"socks, no route":       {"socks5://user:" + secret + "@" + p.addr, "unreachable.test:443", KindNoRoute, "host unreachable"},
		"socks, closed":         {"socks5://user:" + secret + "@" + p.addr, "shut.test:443", KindRefused, "connection refused"},
		"socks, slow":           {"socks5://user:" + secret + "@" + p.addr, "slow.test:443", KindTimeout, "TTL"},
		"socks, no credentials": {"socks5://" + p.addr, "a.test:443", KindProxy, "wants credentials"},
		"socks, bad ones":       {"socks5://user:wrong-secret@" + p.addr, "a.test:443", KindProxy, "other credentials"},
		"closed":                {"http://" + closedPort(t), "a.test:443", KindProxy, "refused"},
		"no name":               {"http://nowhere.test:3128", "a.test:443", KindProxy, "no address"},
		"hangs up":              {"http://" + broken(""), "a.test:443", KindProxy, "answer"},
		"half a head":           {"http://" + broken("HTTP/1.1 200 OK\r\n"), "a.test:443", KindProxy, "answer"},
		"not HTTP":              {"http://" + broken("SSH-2.0-x\r\n\r\n"), "a.test:443", KindProxy, "not HTTP"},
		"strange code":          {"http://" + broken("HTTP/1.1 2000 OK\r\n\r\n"), "a.test:443", KindProxy, "not HTTP"},
		"endless head":          {"http://" + broken("HTTP/1.1 200 OK\r\n"+strings.Repeat("X: y\r\n", 4000)), "a.test:443", KindProxy, "too long"},
		"redirect":              {"http://" + broken("HTTP/1.1 302 Found\r\nLocation: x\r\n\r\n"), "a.test:443", KindProxy, "302"},
		"not SOCKS":             {"socks5://" + broken("HTTP/1.1 400"), "a.test:443", KindProxy, "not SOCKS5"},
		"SOCKS reply is odd":    {"socks5://" + broken("\x05\x00\x05\x00\x00\x09"), "a.test:443", KindProxy, "not SOCKS5"},
		"SOCKS reply is cut":    {"socks5://" + broken("\x05\x00\x05\x00\x00\x01\x00"), "a.test:443", KindProxy, "answer"},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(through(t, ProxyOptions{URL: tt.proxy}))
			d.lookup = (&names{}).lookup
			c, _, err := d.Dial(t.Context(), target(t, tt.target), false)
			if c != nil {
				t.Error("a connection beside an error")
			}
			e := wantKind(t, err, tt.want)
			if !strings.Contains(e.Error(), tt.text) {
				t.Errorf("%q does not say %q", e, tt.text)
			}
			for _, s := range []string{"p@ss", secret, "wrong-secret", "Basic"} {
				if strings.Contains(e.Error(), s) {
					t.Errorf("the error tells the password: %v", e)
				}
			}
		})
	}
}

func TestUpstreamProxyThatIsSilent(t *testing.T) {
	stop := make(chan struct{})
	silent := listen(t, func(net.Conn) { <-stop })
	t.Cleanup(func() { close(stop) })
	cfg := through(t, ProxyOptions{URL: "http://" + silent})
	cfg.Limits.Proxy = 50 * time.Millisecond
	_, _, err := New(cfg).Dial(t.Context(), target(t, "a.test:443"), false)
	wantKind(t, err, KindTimeout)

	cfg.Limits.Proxy = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, _, err = New(cfg).Dial(ctx, target(t, "a.test:443"), false)
	wantKind(t, err, KindCanceled)
}

func TestNoProxy(t *testing.T) {
	for _, tt := range []struct {
		options ProxyOptions
		target  string
		want    string // host of the proxy, "" direct
	}{
		{ProxyOptions{}, "a.test:443", ""},
		{ProxyOptions{URL: "http://p.test:3128"}, "a.test:443", "p.test:3128"},
		{ProxyOptions{URL: "http://p.test:3128"}, "a.test:80", "p.test:3128"},
		{ProxyOptions{URL: "http://p.test:3128"}, "a.test:22", "p.test:3128"},
		{ProxyOptions{URL: "p.test:3128"}, "a.test:22", "p.test:3128"},
		{ProxyOptions{URL: "http://p.test:3128", HTTPSProxy: "http://q.test:1"}, "a.test:443", "p.test:3128"},
		{ProxyOptions{HTTPSProxy: "http://q.test:1"}, "a.test:443", "q.test:1"},
		{ProxyOptions{HTTPSProxy: "http://q.test:1"}, "a.test:80", ""},
		{ProxyOptions{HTTPProxy: "http://q.test:1"}, "a.test:80", "q.test:1"},
		{ProxyOptions{HTTPProxy: "http://q.test:1"}, "a.test:443", ""},
		{ProxyOptions{HTTPProxy: "http://q.test:1", AllProxy: "socks5://s.test:1"}, "a.test:443", "s.test:1"},
		{ProxyOptions{AllProxy: "socks5://s.test:1"}, "a.test:80", "s.test:1"},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "a.test"}, "a.test:443", ""},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "a.test"}, "x.a.test:443", ""},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: ".a.test"}, "a.test:443", "p.test:1"},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: ".a.test"}, "x.a.test:443", ""},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "a.test:8443"}, "a.test:443", "p.test:1"},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "a.test:8443"}, "a.test:8443", ""},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "b.test, 10.0.0.0/8"}, "10.1.2.3:443", ""},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "b.test, 10.0.0.0/8"}, "11.1.2.3:443", "p.test:1"},
		{ProxyOptions{URL: "http://p.test:1", NoProxy: "*"}, "a.test:443", ""},
		{ProxyOptions{URL: "http://p.test:1"}, "localhost:443", ""},
		{ProxyOptions{URL: "http://p.test:1"}, "127.0.0.1:443", ""},
	} {
		f, err := ProxyFunc(tt.options)
		if err != nil {
			t.Errorf("%+v: %v", tt.options, err)
			continue
		}
		got := ""
		if f != nil {
			if u, err := f(target(t, tt.target)); err != nil {
				t.Errorf("%+v: %v", tt.options, err)
			} else if u != nil {
				got = u.Host
			}
		}
		if got != tt.want {
			t.Errorf("%+v: %s goes by %q, want %q", tt.options, tt.target, got, tt.want)
		}
	}
	for _, bad := range []string{"ftp://p.test", "http://", "http://p.test:0", "http://a b", "http://user:top-secret@[::1", "http://127.1:3128", "http://user:top-secret@p.test:x"} {
		if _, err := ProxyFunc(ProxyOptions{URL: bad}); err == nil || strings.Contains(err.Error(), "top-secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Where NO_PROXY holds, the classes are ours again.
func TestNoProxyIsClassified(t *testing.T) {
	p := startProxy(t, listen(t, func(net.Conn) {}), nil)
	d := New(through(t, ProxyOptions{URL: "http://user:" + secret + "@" + p.addr, NoProxy: "in.test"}))
	d.lookup = (&names{answers: map[string][][]netip.Addr{"in.test": {addrs("10.0.0.1")}}}).lookup
	_, _, err := d.Dial(t.Context(), target(t, "in.test:443"), false)
	wantKind(t, err, KindClass)
	c, _, err := d.Dial(t.Context(), target(t, "out.test:443"), false)
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	c.Close()
}

func TestForward(t *testing.T) {
	p := startProxy(t, listen(t, func(net.Conn) {}), nil)
	d := New(through(t, ProxyOptions{URL: "http://user:" + secret + "@" + p.addr, NoProxy: "in.test"}))
	if !d.Forward(target(t, "a.test:80")) || d.Forward(target(t, "in.test:80")) || New(Config{}).Forward(target(t, "a.test:80")) {
		t.Error("Forward")
	}
	c, at, auth, err := d.DialForward(t.Context(), target(t, "a.test:80"), false)
	if err != nil || at.String() != p.addr || auth != "Basic "+base64.StdEncoding.EncodeToString([]byte("user:p@ss:word")) {
		t.Fatalf("at %v with %q, %v", at, auth, err)
	}
	c.Close()
	_, _, _, err = d.DialForward(t.Context(), target(t, "10.0.0.1:80"), false)
	wantKind(t, err, KindClass)
	_, _, _, err = d.DialForward(t.Context(), target(t, "in.test:80"), false)
	wantKind(t, err, KindProxy)
	if d := New(through(t, ProxyOptions{URL: "socks5://" + p.addr})); d.Forward(target(t, "a.test:80")) {
		t.Error("a SOCKS5 proxy takes absolute form")
	}
}

func TestProxyFuncMayFail(t *testing.T) {
	d := New(Config{Proxy: func(dest.Target) (*url.URL, error) { return nil, errors.New("odd") }})
	_, _, err := d.Dial(t.Context(), target(t, "a.test:443"), false)
	wantKind(t, err, KindProxy)
	d = New(Config{Proxy: func(dest.Target) (*url.URL, error) { return &url.URL{Scheme: "gopher", Host: "p.test"}, nil }})
	_, _, err = d.Dial(t.Context(), target(t, "a.test:443"), false)
	wantKind(t, err, KindProxy)
}

// Whatever a proxy answers, in whatever pieces, no byte after the head is
// taken from the tunnel.
func TestReadHeadStopsAtTheHead(t *testing.T) {
	for _, head := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "\r\n\r\n", "\r\r\n\r\r\n\n\r\n\r\n", "x\r\n\r\r\n\r\n", "\n\r\n\r\r\n\r\n"} {
		r := strings.NewReader(head + "\r\n\r\ntail")
		got, err := readHead(r)
		if rest, _ := io.ReadAll(r); err != nil || got != head || string(rest) != "\r\n\r\ntail" {
			t.Errorf("head %q, rest %q, %v; want %q", got, rest, err, head)
		}
	}
}

func FuzzReadHead(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\n\r\nrest")
	f.Add("\r\n\r\r\n\r\n")
	f.Add("\r\n\r")
	f.Fuzz(func(t *testing.T, s string) {
		r := strings.NewReader(s)
		got, err := readHead(r)
		rest, _ := io.ReadAll(r)
		want, after, ok := strings.Cut(s, "\r\n\r\n")
		if !ok || len(want) > maxProxyHead {
			if err == nil {
				t.Fatalf("%q has the head %q", s, got)
			}
			return
		}
		if err != nil || got != want+"\r\n\r\n" || string(rest) != after {
			t.Fatalf("%q: head %q, rest %q, %v", s, got, rest, err)
		}
	})
}

// In zero time: the phases' timers do not outlive the dial.
func TestProxyPhaseLeavesNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() {
			br := bufio.NewReader(theirs)
			http.ReadRequest(br)
			io.WriteString(theirs, "HTTP/1.1 200 OK\r\n\r\n")
			time.Sleep(24 * time.Hour) // of the bubble's clock
			io.WriteString(theirs, "late")
		}()
		u, _ := url.Parse("http://p.test")
		d := New(Config{})
		if err := d.negotiate(t.Context(), ours, u, target(t, "a.test:443")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(ours, b); err != nil || string(b) != "late" {
			t.Errorf("read %q, %v", b, err)
		}
	})
}
