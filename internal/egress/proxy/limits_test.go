package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
)

// bound is how a test gets to a limit: a world in which it is small, and what a
// box does to meet it.
type bound struct {
	small  func(*testing.T, *Config)
	meet   func(*world)
	record policy.Reason // that a record gives; "" where the bound ends nothing
}

func bounds() map[string]bound {
	lim := func(f func(*Limits)) func(*testing.T, *Config) {
		return func(_ *testing.T, c *Config) { f(&c.Limits) }
	}
	// last opens connections to hostport, the last of which has to end.
	last := func(w *world, hostport string, n int) {
		for i := range n {
			c, err := w.dial(byRedirect, hostport)
			if err != nil {
				return // refused, as it may be
			}
			w.t.Cleanup(func() { _ = c.Close() })
			fmt.Fprint(c, "x")
			if i+1 < n {
				_, err := io.ReadFull(c, make([]byte, 1)) // it is a tunnel
				ok(w.t, err)
			} else {
				_, _ = io.Copy(io.Discard, c)
			}
		}
	}
	statuses := func(w *world, c *http.Client, urls ...string) (out []int) {
		for _, u := range urls {
			r, err := c.Get(u)
			if err != nil {
				out = append(out, 0)
				continue
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
			out = append(out, r.StatusCode)
		}
		return out
	}
	says := func(w *world, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			w.t.Errorf("got %v, want %v", got, want)
		}
	}
	ends := func(c net.Conn, err error) {
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err = io.Copy(io.Discard, c)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			panic("still open")
		}
	}
	return map[string]bound{
		"connections":         {lim(func(l *Limits) { l.Conns = 2 }), func(w *world) { last(w, "echo.test:9", 3) }, policy.ReasonLimit},
		"connections_per_box": {lim(func(l *Limits) { l.ConnsPerBox = 2 }), func(w *world) { last(w, "echo.test:9", 3) }, policy.ReasonLimit},
		"tunnels_per_box":     {lim(func(l *Limits) { l.TunnelsPerBox = 2 }), func(w *world) { last(w, "echo.test:9", 3) }, policy.ReasonLimit},
		"requests_per_box": {lim(func(l *Limits) { l.Requests = 1 }), func(w *world) {
			w.busy("https://a.test/wait")
			says(w, statuses(w, w.client(byConnect, false), "https://a.test/"), []int{503})
		}, policy.ReasonLimit},
		"held": {func(t *testing.T, c *Config) {
			c.Limits.Held = 1
			c.Hold = func(ctx context.Context, _ Ask) policy.Reason { <-ctx.Done(); return policy.ReasonHeldTimeout }
		}, func(w *world) {
			w.busy("https://held.test/")
			until(w.t, "the first is held", func() bool { return w.limit("held").Current == 1 })
			says(w, statuses(w, w.client(byRedirect, false), "https://other.test/"), []int{403})
		}, policy.ReasonNotGranted},
		"dials": {func(_ *testing.T, c *Config) { c.Dialer = fullDialer{} }, func(w *world) {
			says(w, statuses(w, w.client(byConnect, false), "https://a.test/"), []int{503})
		}, policy.ReasonLimit},
		"pooled": {lim(func(l *Limits) { l.Pooled = 1 }), func(w *world) {
			says(w, statuses(w, w.client(byConnect, false), "https://h1.test/", "https://h1too.test/"), []int{200, 200})
		}, ""},
		"header": {nil, func(w *world) {
			r, _ := ask(w.t, w.tls(byConnect, "a.test:443", "a.test"), "GET / HTTP/1.1\r\nHost: a.test\r\nX: "+strings.Repeat("x", 70<<10)+"\r\n\r\n")
			says(w, r.StatusCode, 431)
		}, policy.ReasonLimit},
		"header_time": {lim(func(l *Limits) { l.HeaderTime = 300 * time.Millisecond }), func(w *world) {
			r, _ := ask(w.t, w.tls(byConnect, "a.test:443", "a.test"), "GET / HTTP/1.1\r\nHost: ")
			says(w, r.StatusCode, 408)
		}, policy.ReasonLimit},
		"handshake_time": {lim(func(l *Limits) { l.Handshake = 100 * time.Millisecond }), func(w *world) {
			c, err := w.dial(byConnect, "a.test:443")
			ok(w.t, err)
			fmt.Fprint(c, "\x16\x03\x01\x00\x50\x01\x00\x00\x4c\x03\x03") // the beginning of a ClientHello
			ends(c, nil)
		}, policy.ReasonLimit},
		"silence": {lim(func(l *Limits) { l.Sniff = 100 * time.Millisecond }), func(w *world) { ends(w.dial(byConnect, "a.test:443")) }, policy.ReasonLimit},
		"idle": {lim(func(l *Limits) { l.Idle = 300 * time.Millisecond }), func(w *world) {
			c := w.tls(byConnect, "a.test:443", "a.test")
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
			_, err := io.Copy(io.Discard, c)
			ok(w.t, err)
		}, ""},
		"stalled": {lim(func(l *Limits) { l.Stalled = 500 * time.Millisecond }), func(w *world) {
			c := w.tls(byConnect, "a.test:443", "a.test")
			fmt.Fprint(c, "GET /zeros HTTP/1.1\r\nHost: a.test\r\n\r\n")
			until(w.t, "it is cut off", func() bool { return len(w.e.live.all()) == 0 })
		}, policy.ReasonLimit},
		"half_closed": {lim(func(l *Limits) { l.HalfClosed = 500 * time.Millisecond }), func(w *world) {
			c, err := w.dial(byRedirect, "mute.test:9")
			ok(w.t, err)
			fmt.Fprint(c, "x")
			ok(w.t, c.(*net.TCPConn).CloseWrite())
			ends(c, nil)
		}, policy.ReasonLimit},
		"quiet": {lim(func(l *Limits) { l.Quiet = time.Second }), func(w *world) {
			c, err := w.dial(byRedirect, "echo.test:9")
			ok(w.t, err)
			fmt.Fprint(c, "x")
			ends(c, nil)
		}, policy.ReasonLimit},
		"held_body": {func(t *testing.T, c *Config) { c.Inject = signing(t) }, func(w *world) {
			req := must(http.NewRequest(http.MethodPost, "https://x.aws.test/", io.LimitReader(zeros{}, inject.MaxHeld+1)))
			req.Header.Set("Authorization", signedWith)
			r, err := w.client(byConnect, false).Do(req)
			ok(w.t, err)
			_ = r.Body.Close()
			says(w, r.StatusCode, 413)
		}, policy.ReasonLimit},
		"leaves": {func(t *testing.T, c *Config) { c.Leaves = leavesOf(t, ca.Limits{PerSecond: 1, Burst: 1}) }, func(w *world) {
			for _, h := range []string{"a.test", "h1.test"} {
				c, err := w.dial(byConnect, h+":443")
				ok(w.t, err)
				got := tls.Client(c, &tls.Config{ServerName: h, InsecureSkipVerify: true}).Handshake()
				says(w, got == nil, h == "a.test")
				_ = c.Close()
			}
		}, policy.ReasonLimit},
		"leaves_kept": {func(t *testing.T, c *Config) { c.Leaves = leavesOf(t, ca.Limits{Cache: 1}) }, func(w *world) {
			w.tls(byConnect, "a.test:443", "a.test")
			w.tls(byConnect, "h1.test:443", "h1.test")
		}, ""},
	}
}

// Each bound that status shows can be met, counts it, and says so in a record:
// docs/limits.md rests on this.
func TestEveryBoundIsMetAndTold(t *testing.T) {
	all := bounds()
	for _, l := range newWorld(t, func(c *Config) { c.Dialer = fullDialer{} }).e.Limits() {
		if _, ok := all[l.Name]; !ok || l.Value <= 0 {
			t.Errorf("%s is bounded by %d, and no test meets it", l.Name, l.Value)
		}
	}
	for name, b := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "quiet" && runtime.GOOS != "linux" {
				t.Skip("only Linux tells how quiet a connection is")
			}
			w := newWorld(t, func(c *Config) {
				if b.small != nil {
					b.small(t, c)
				}
			})
			w.allow("a.test", "h1.test", "h1too.test", "echo.test:9", "mute.test:9", "x.aws.test")
			w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/wait":
					<-r.Context().Done()
				case "/zeros":
					_, _ = io.Copy(rw, zeros{})
				}
				greet(rw, r)
			})
			w.web("h1.test:443", webH1, greet)
			w.web("h1too.test:443", webH1, greet)
			w.web("x.aws.test:443", webH1, greet)
			w.raw("echo.test:9", func(c net.Conn) { _, _ = io.Copy(c, c) })
			w.raw("mute.test:9", func(c net.Conn) { _, _ = io.Copy(io.Discard, c); <-t.Context().Done() })
			if l := w.limit(name); l.Hits != 0 {
				t.Fatalf("control: it was met before: %+v", l)
			}
			b.meet(w)
			if b.record != "" {
				w.sawReason("", b.record)
			}
			until(t, "it is counted", func() bool { return w.limit(name).Hits > 0 })
		})
	}
}

func (w *world) limit(name string) Limit {
	w.t.Helper()
	for _, l := range w.e.Limits() {
		if l.Name == name {
			return l
		}
	}
	w.t.Fatalf("no limit %s", name)
	return Limit{}
}

// until waits for what others are about to do.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !done(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// busy asks for url, and returns when the request is on its way.
func (w *world) busy(url string) {
	c, served := w.client(byRedirect, false), make(chan struct{})
	ctx, cancel := context.WithCancel(w.ctx)
	w.t.Cleanup(func() { cancel(); <-served })
	go func() {
		defer close(served)
		r, err := c.Do(must(http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)))
		if err == nil {
			_ = r.Body.Close()
		}
	}()
	until(w.t, "it is on its way", func() bool { return w.limit("requests_per_box").Current+w.limit("held").Current > 0 })
}

// fullDialer has no room for another dial.
type fullDialer struct{}

func (fullDialer) Dial(_ context.Context, t dest.Target, _ bool) (net.Conn, netip.AddrPort, error) {
	return nil, netip.AddrPort{}, &dialer.Error{Kind: dialer.KindLimit, Target: t, Err: errors.New("too many dials at once")}
}

func (fullDialer) LookAhead(context.Context, dest.Target) {}

func (d fullDialer) DialTLS(ctx context.Context, t dest.Target, internal bool, _ ...string) (*tls.Conn, netip.AddrPort, error) {
	_, at, err := d.Dial(ctx, t, internal)
	return nil, at, err
}

func (fullDialer) InFlight() (now, limit int) { return 0, 1 }

func leavesOf(t *testing.T, lim ca.Limits) *ca.Leaves {
	return ca.NewLeaves(must(ca.LoadOrCreate(t.TempDir(), time.Now())), time.Now, lim)
}
