package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/policy"
)

// B22: what upstream did is told apart from what policy said.
func TestUnreachableIsNotARefusal(t *testing.T) {
	closed := func(t *testing.T) string {
		l := listen(t)
		defer l.Close()
		return l.Addr().String()
	}
	for _, by := range ways() {
		for _, h2 := range []bool{false, true} {
			w := newWorld(t)
			w.allow("closed.test", "none.test", "bad.test", "rude.test", "good.test")
			w.place("closed.test:443", closed(t))
			w.raw("rude.test:443", func(c net.Conn) { _, _ = io.WriteString(c, "220 not TLS\r\n") })
			w.web("good.test:443", webH1, greet)
			w.mu.Lock()
			w.at[target("bad.test:443")] = w.at[target("good.test:443")] // a certificate for another name
			w.mu.Unlock()
			c := w.client(by, h2)
			for host, want := range map[string]struct {
				reason policy.Reason
				err    string
			}{
				"closed.test": {policy.ReasonUpstreamUnreachable, "connection_refused"},
				"none.test":   {policy.ReasonUpstreamUnreachable, "dns_error"},
				"bad.test":    {policy.ReasonUpstreamTLS, "tls_certificate_error"},
				"rude.test":   {policy.ReasonUpstreamTLS, "tls_certificate_error"},
			} {
				r, body := get(t, c, "https://"+host+"/")
				if r.StatusCode != 502 || r.Header.Get("Foldyard-Reason") != string(want.reason) ||
					!strings.Contains(r.Header.Get("Proxy-Status"), "error="+want.err) || strings.Contains(body, "fy allow") {
					t.Errorf("%s h2=%v %s: %d %v %s", by, h2, host, r.StatusCode, r.Header, body)
				}
				if rec := w.sawReason(host, want.reason); rec.Verdict != capture.VerdictAllow || rec.Status != 502 || rec.Error == "" {
					t.Errorf("record %+v", rec)
				}
			}
			if r, _ := get(t, c, "https://good.test/"); r.StatusCode != 200 {
				t.Errorf("control: %d", r.StatusCode)
			}
		}
	}
}

// B27: a closed upstream of a raw protocol does not look open.
func TestClosedUpstreamOfARawPort(t *testing.T) {
	w := newWorld(t)
	w.allow("db.test:5432")
	l := listen(t)
	w.place("db.test:5432", l.Addr().String())
	l.Close()
	start := time.Now()
	c, err := w.dial(byRedirect, "db.test:5432")
	if err == nil {
		if _, err = c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("read: %v, want a reset", err)
		}
		c.Close()
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("reset after %v", d)
	}
	if _, err := w.dial(bySocks, "db.test:5432"); err == nil || !strings.HasSuffix(err.Error(), ": 5") {
		t.Errorf("SOCKS: %v, want connection refused", err)
	}
	if _, err := w.dial(byConnect, "db.test:5432"); err == nil || !strings.Contains(err.Error(), "502 upstream_unreachable") {
		t.Errorf("CONNECT: %v", err)
	}
	w.sawReason("db.test", policy.ReasonUpstreamUnreachable)
}

// B23: a client that does not trust us leaves a record with the name.
func TestClientThatDoesNotTrustUs(t *testing.T) {
	for _, by := range ways() {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			w := newWorld(t)
			w.allow("a.test")
			w.web("a.test:443", webH1, greet)
			c, err := w.dial(by, "a.test:443")
			ok(t, err)
			tc := tls.Client(c, &tls.Config{ServerName: "a.test", MaxVersion: version})
			if err := tc.Handshake(); err == nil {
				t.Error("trusted")
			}
			tc.Close()
			if rec := w.sawReason("a.test", policy.ReasonClientTLS); rec.Verdict != capture.VerdictAllow || rec.Error == "" || rec.Proto != capture.ProtoTLS {
				t.Errorf("record %+v", rec)
			}
		}
	}
}

// B24: whatever ends first, everything is given back.
func TestTunnelsAreGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Limits.HalfClosed = time.Second })
	w.allow("mute.test:9", "talk.test:9")
	ended := make(chan struct{}, 8)
	w.raw("mute.test:9", func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		for { // never closes by itself
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				break
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := c.Write([]byte{0}); err != nil {
				break
			}
		}
		ended <- struct{}{}
	})
	w.raw("talk.test:9", func(c net.Conn) { _, _ = io.WriteString(c, "bye") })
	for _, by := range ways() {
		c, err := w.dial(by, "talk.test:9")
		ok(t, err)
		if b, err := io.ReadAll(c); string(b) != "bye" {
			t.Errorf("%s: %q %v", by, b, err)
		}
		c.Close()
		c, err = w.dial(by, "mute.test:9")
		ok(t, err)
		_, _ = c.Write([]byte("\x01\x02"))
		c.Close()
		<-ended
	}
	w.settled()
}

// A peer that answers nothing after a half-close is bounded.
func TestHalfClosedTunnelIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Limits.HalfClosed = 500 * time.Millisecond })
	w.allow("mute.test:9")
	w.raw("mute.test:9", func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		<-t.Context().Done()
	})
	c, err := w.dial(byRedirect, "mute.test:9")
	ok(t, err)
	defer c.Close()
	_, _ = c.Write([]byte("\x01\x02"))
	_ = c.(*net.TCPConn).CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadAll(c); errors.Is(err, context.DeadlineExceeded) {
		t.Error("still open")
	}
	w.sawReason("mute.test", policy.ReasonLimit)
	w.settled()
}

// A download goes on for as long as it flows, though the question has ended.
func TestHalfClosedTunnelInUseIsKept(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells that the other half is at work")
	}
	const bound, drops = 500 * time.Millisecond, 20
	w := newWorld(t, func(c *Config) { c.Limits.HalfClosed = bound })
	w.allow("drip.test:9")
	pauses := make(chan time.Duration, 1)
	w.raw("drip.test:9", func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		var longest time.Duration
		at := time.Now()
		for range drops {
			_, _ = c.Write([]byte{'.'})
			<-time.After(100 * time.Millisecond)
			longest = max(longest, time.Since(at))
			at = time.Now()
		}
		pauses <- longest
	})
	for range 10 {
		c, err := w.dial(byRedirect, "drip.test:9")
		ok(t, err)
		_, _ = c.Write([]byte("\x01\x02"))
		_ = c.(*net.TCPConn).CloseWrite()
		b, err := io.ReadAll(c)
		_ = c.Close()
		pause := <-pauses
		if len(b) == drops && err == nil {
			return
		}
		if pause < bound*4/5 {
			t.Fatalf("got %d bytes, %v; it paused for %v at most", len(b), err, pause)
		}
		t.Logf("busy computer: the origin paused for %v", pause)
	}
	t.Error("never kept")
}

// B25: half a head, then silence.
func TestSlowHeadIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Limits.HeaderTime = 300 * time.Millisecond })
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.tls(byConnect, "a.test:443", "a.test")
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.t")
	b, err := io.ReadAll(c)
	if !strings.HasPrefix(string(b), "HTTP/1.1 408 ") || err != nil {
		t.Errorf("got %q %v", b, err)
	}
	w.sawReason("a.test", policy.ReasonLimit)
	w.settled()
}

func TestIdleConnectionIsClosedInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Limits.Idle = 300 * time.Millisecond })
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.tls(byConnect, "a.test:443", "a.test")
	br := bufio.NewReader(c)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
	r, err := http.ReadResponse(br, nil)
	ok(t, err)
	_, _ = io.Copy(io.Discard, r.Body)
	if b, err := io.ReadAll(br); len(b) != 0 || err != nil {
		t.Errorf("got %q %v", b, err)
	}
	w.settled()
}

// A box that takes nothing of a download is cut off.
func TestStalledReaderIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Limits.Stalled = 500 * time.Millisecond })
	w.allow("a.test")
	gone := make(chan struct{})
	w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
		defer close(gone)
		_, _ = io.Copy(rw, zeros{})
	})
	c := w.tls(byConnect, "a.test:443", "a.test")
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
	<-gone
	w.sawReason("a.test", policy.ReasonLimit)
	w.settled()
}

// Narrowing ends what it must, and nothing else.
func TestNarrowing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := func(rw http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.WriteString(rw, "data\n"); err != nil {
				return
			}
			rw.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	type flow struct {
		name string
		r    *bufio.Reader
	}
	var cut, keep []flow
	stream := func(host string, h2 bool) flow {
		r, err := w.client(byConnect, h2).Get("https://" + host + "/")
		ok(t, err)
		t.Cleanup(func() { r.Body.Close() })
		return flow{fmt.Sprintf("%s h2=%v", host, h2), bufio.NewReader(r.Body)}
	}
	tunnel := func(hostport string) flow {
		c, err := w.dial(byConnect, hostport)
		ok(t, err)
		t.Cleanup(func() { c.Close() })
		return flow{hostport, bufio.NewReader(c)}
	}
	for _, host := range []string{"keep.test", "cut.test"} {
		w.allow(host, host+":22")
		w.web(host+":443", webH2, events)
		w.raw(host+":22", func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, "banner\n"); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		flows := []flow{stream(host, false), stream(host, true), tunnel(host + ":22")}
		if host == "cut.test" {
			cut = flows
		} else {
			keep = flows
		}
	}
	for _, f := range append(cut, keep...) {
		if _, err := f.r.ReadString('\n'); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
	}
	w.edit(func(f *policy.File) { f.Allow = f.Allow[:2] })
	for _, f := range cut {
		start := time.Now()
		for {
			if _, err := f.r.ReadString('\n'); err != nil {
				break
			}
			if time.Since(start) > 20*time.Second {
				t.Errorf("%s goes on", f.name)
				break
			}
		}
	}
	for _, f := range keep {
		for range 20 {
			if _, err := f.r.ReadString('\n'); err != nil {
				t.Errorf("%s: %v", f.name, err)
				break
			}
		}
	}
	for _, via := range []capture.Mode{capture.ModeDecrypted, capture.ModeTunnel} {
		w.saw("of what was cut", func(r *capture.Record) bool {
			return r.Host == "cut.test" && r.Mode == via && r.Error == errPolicy.Error()
		})
	}
}

// A passthrough entry that goes away ends its tunnels: they would be decrypted
// now.
func TestTunnelEndsWhenItWouldBeDecrypted(t *testing.T) {
	w := newWorld(t)
	w.tunnel("p.test")
	w.web("p.test:443", webH1, greet)
	c, err := w.dial(byRedirect, "p.test:443")
	ok(t, err)
	defer c.Close()
	tc := tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "p.test"})
	ok(t, tc.Handshake())
	w.allow("other.test") // another change leaves it alone
	fmt.Fprint(tc, "GET / HTTP/1.1\r\nHost: p.test\r\n\r\n")
	br := bufio.NewReader(tc)
	r, err := http.ReadResponse(br, nil)
	ok(t, err)
	_, _ = io.Copy(io.Discard, r.Body)
	w.edit(func(f *policy.File) { f.Passthrough = nil })
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := br.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the tunnel goes on: %v", err)
	}
}

// B30: a request that runs when its once-grant expires finishes; the next is
// refused, and tunnels end.
func TestOnceExpires(t *testing.T) {
	var ahead atomic.Int64
	w := newWorld(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	until := time.Now().Add(time.Minute)
	w.edit(func(f *policy.File) {
		f.Allow = []policy.Entry{{Rule: "a.test:*", Level: policy.Once, Expires: &until}, {Rule: "a.test", Level: policy.Once, Expires: &until}}
	})
	release := make(chan struct{})
	w.web("a.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begin ")
		rw.(http.Flusher).Flush()
		<-release
		_, _ = io.WriteString(rw, "end")
	})
	w.raw("a.test:22", func(c net.Conn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(c, c)
	})
	var bodies []io.ReadCloser
	for _, h2 := range []bool{false, true} {
		r, err := w.client(byConnect, h2).Get("https://a.test/")
		ok(t, err)
		bodies = append(bodies, r.Body)
	}
	tun, err := w.dial(byConnect, "a.test:22")
	ok(t, err)
	defer tun.Close()
	_, _ = io.ReadFull(tun, make([]byte, 1))
	ahead.Store(int64(2 * time.Minute))
	w.e.Reconsider()
	if _, err := tun.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel goes on")
	}
	close(release)
	for _, b := range bodies {
		s, err := io.ReadAll(b)
		b.Close()
		if string(s) != "begin end" || err != nil {
			t.Errorf("running request: %q %v", s, err)
		}
	}
	if r, err := w.client(byRedirect, false).Get("https://a.test/"); err != nil || r.StatusCode != 403 {
		t.Errorf("next request: %v %v", r, err)
	} else {
		r.Body.Close()
	}
}

// An unreadable policy refuses everything, at once, whatever runs.
func TestUnreadablePolicyRefuses(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH2, greet)
	c := w.client(byRedirect, true)
	if r, _ := get(t, c, "https://a.test/"); r.StatusCode != 200 {
		t.Fatalf("control: %d", r.StatusCode)
	}
	w.snap.Store(policy.Unreadable())
	w.e.Reconsider()
	if r, _ := get(t, w.client(byRedirect, false), "https://a.test/"); r.StatusCode != 403 || r.Header.Get("Foldyard-Reason") != "policy_unreadable" {
		t.Errorf("got %d %v", r.StatusCode, r.Header)
	}
	w.snap.Store(nil)
	if r, _ := get(t, w.client(byRedirect, false), "https://a.test/"); r.StatusCode != 403 {
		t.Errorf("no policy: %d", r.StatusCode)
	}
}

func TestWouldDenyIsServedAndRecorded(t *testing.T) {
	w := newWorld(t)
	w.edit(func(f *policy.File) {
		f.Enforce = false
		f.Deny = []policy.Entry{{Rule: "b.test", Level: policy.Permanent}}
	})
	w.web("a.test:443", webH1, greet)
	w.web("b.test:443", webH1, greet)
	if r, _ := get(t, w.client(byRedirect, false), "https://a.test/"); r.StatusCode != 200 {
		t.Errorf("got %d", r.StatusCode)
	}
	rec := w.saw("would_deny", func(r *capture.Record) bool { return r.Verdict == capture.VerdictWouldDeny })
	if rec.Reason != "not_granted" || rec.Status != 200 {
		t.Errorf("record %+v", rec)
	}
	if r, _ := get(t, w.client(byRedirect, false), "https://b.test/"); r.StatusCode != 403 {
		t.Errorf("a denied host: %d", r.StatusCode)
	}
}

// A held request goes on when the operator grants it, and is refused when
// nobody answers.
func TestHold(t *testing.T) {
	for _, by := range ways() {
		for _, h2 := range []bool{false, true} {
			asked := make(chan Ask, 1)
			answer := make(chan bool)
			w := newWorld(t, func(c *Config) {
				c.Hold = func(ctx context.Context, a Ask) policy.Reason {
					asked <- a
					select {
					case v := <-answer:
						if v {
							return ""
						}
					case <-ctx.Done():
					}
					return policy.ReasonHeldTimeout
				}
			})
			w.web("a.test:443", webH2, greet)
			type result struct {
				r   *http.Response
				err error
			}
			fetch := func() chan result {
				out := make(chan result, 1)
				c := w.client(by, h2)
				go func() {
					r, err := c.Get("https://a.test/x?secret=1")
					if err == nil {
						r.Body.Close()
					}
					out <- result{r, err}
				}()
				return out
			}
			out := fetch()
			a := <-asked
			if a.Target != target("a.test:443") || a.Box != testBox || by == byRedirect && (a.Method != "GET" || a.Path != "/x") {
				t.Errorf("asked %+v", a)
			}
			answer <- false
			res := <-out
			if by == byRedirect && (res.err != nil || res.r.StatusCode != 403 || res.r.Header.Get("Foldyard-Reason") != "held_timeout") || by != byRedirect && !errors.Is(res.err, errRefused) {
				t.Errorf("%s h2=%v: nobody answered: %+v", by, h2, res)
			}
			w.sawReason("a.test", policy.ReasonHeldTimeout)
			out = fetch()
			<-asked
			w.allow("a.test")
			answer <- true
			if res := <-out; res.err != nil || res.r.StatusCode != 200 {
				t.Errorf("%s h2=%v: granted: %+v", by, h2, res)
			}
		}
	}
}

// The supervisor's own name is answered in process, by every way, without a
// grant; on no other port.
func TestControlName(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Control = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "nonce %s %s", r.URL.Path, r.Host)
		})
	})
	const name = "control.foldyard.internal"
	for _, by := range ways() {
		for _, u := range []string{"http://" + name + "/x", "https://" + name + "/x"} {
			for _, h2 := range []bool{false, true} {
				if h2 && !strings.HasPrefix(u, "https") {
					continue
				}
				r, body := get(t, w.client(by, h2), u)
				if r.StatusCode != 200 || body != "nonce /x "+name {
					t.Errorf("%s h2=%v %s: %d %q", by, h2, u, r.StatusCode, body)
				}
			}
		}
	}
	c, err := net.Dial("tcp", w.proxy)
	ok(t, err)
	if r, body := ask(t, c, "GET http://"+name+"/x HTTP/1.1\r\nHost: "+name+"\r\n\r\n"); r.StatusCode != 200 || body != "nonce /x "+name {
		t.Errorf("forward: %d %q", r.StatusCode, body)
	}
	c.Close()
	if _, err := w.dial(byConnect, name+":22"); !errors.Is(err, errRefused) {
		t.Errorf("port 22: %v", err)
	}
}

func TestConnectionsPerBoxAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.ConnsPerBox = 3 })
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	var held []net.Conn
	for range 3 {
		c, err := w.dial(byConnect, "a.test:443")
		ok(t, err)
		held = append(held, c)
	}
	if c, err := w.dial(byConnect, "a.test:443"); err == nil {
		t.Error("a fourth connection was served")
		c.Close()
	}
	w.sawReason("", policy.ReasonLimit)
	for _, c := range held {
		c.Close()
	}
	w.settled()
	c, err := w.dial(byConnect, "a.test:443")
	ok(t, err)
	c.Close()
	for _, l := range w.e.Limits() {
		if l.Name == "connections_per_box" && (l.Value != 3 || l.Hits != 1) {
			t.Errorf("limit %+v", l)
		}
	}
}

func TestCloseBoxEndsWhatItHas(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test:22")
	w.raw("a.test:22", func(c net.Conn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(io.Discard, c)
	})
	c, err := w.dial(byConnect, "a.test:22")
	ok(t, err)
	defer c.Close()
	_, _ = io.ReadFull(c, make([]byte, 1))
	w.e.CloseBox("another")
	fmt.Fprint(c, "still there")
	w.e.CloseBox(testBox)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel goes on")
	}
	w.settled()
}

// Whoever asks what a box was refused, after its end, hears of all of it.
func TestCloseBoxLeavesNothingUnrecorded(t *testing.T) {
	var count atomic.Int64
	w := newWorld(t, func(c *Config) {
		record := c.Record
		c.Record = func(r *capture.Record) {
			runtime.Gosched() // whoever is quicker than we are, is
			record(r)
			count.Add(1)
		}
	})
	for i := range int64(50) {
		before := count.Load()
		c, err := w.dial(byRedirect, "a.test:80")
		ok(t, err)
		if resp, _ := ask(t, c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"); resp.StatusCode != http.StatusForbidden {
			t.Fatal(resp.Status)
		}
		c.Close()
		w.e.CloseBox(testBox)
		if got := count.Load(); got != before+1 {
			t.Fatalf("round %d: %d records", i, got-before)
		}
	}
}

// Absolute-form requests to several hosts on one connection.
func TestForwardConnectionIsNotBound(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test", "b.test")
	w.web("a.test:80", webPlain, greet)
	w.web("b.test:443", webH1, greet)
	c, err := net.Dial("tcp", w.proxy)
	ok(t, err)
	defer c.Close()
	br := bufio.NewReader(c)
	for _, step := range []struct {
		url, host string
		want      int
	}{
		{"http://a.test/1", "a.test", 200}, {"http://c.test/", "c.test", 403}, {"https://b.test/2?x", "b.test", 200},
		{"http://a.test", "a.test", 200}, {"http://a.test?q", "a.test", 200}, {"http://a.test/", "b.test", 421},
	} {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", step.url, step.host)
		r, err := http.ReadResponse(br, nil)
		ok(t, err)
		b, _ := io.ReadAll(r.Body)
		if r.StatusCode != step.want {
			t.Errorf("%s: %d %s, want %d", step.url, r.StatusCode, b, step.want)
		}
	}
	rec := w.saw("via forward", func(r *capture.Record) bool { return r.Via == capture.ViaForward && r.Host == "b.test" })
	if rec.Scheme != "https" || rec.Path != "/2?x" || rec.Port != 443 {
		t.Errorf("record %+v", rec)
	}
}

// The pool: last used first, bounded, nothing kept too long.
func TestPoolIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		p.init(Limits{Pooled: 2, IdleUpstream: time.Minute})
		conn := func(host string) *upstream {
			a, b := net.Pipe()
			t.Cleanup(func() { a.Close(); b.Close() })
			u := &upstream{Conn: a, key: poolKey{target: target(host)}}
			u.open()
			return u
		}
		a, b, c := conn("a.test:1"), conn("a.test:1"), conn("b.test:1")
		for _, u := range []*upstream{a, b, c} {
			p.put(u)
			time.Sleep(time.Second)
		}
		if p.size() != 2 || p.evicted.Load() != 1 {
			t.Errorf("%d kept, %d evicted", p.size(), p.evicted.Load())
		}
		if got := p.get(a.key); got != b {
			t.Error("the oldest was kept")
		}
		if p.get(poolKey{target: target("b.test:1"), internal: true}) != nil {
			t.Error("lent across keys")
		}
		time.Sleep(2 * time.Minute)
		p.expire()
		if p.size() != 0 {
			t.Errorf("%d kept", p.size())
		}
	})
}
