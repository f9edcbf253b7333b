package dialer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/egress/dest"
)

func TestDial(t *testing.T) {
	d, n, i := world(t, Config{}, map[string][][]netip.Addr{"a.test": {addrs("192.0.2.1")}})
	c, at, err := d.Dial(t.Context(), target(t, "a.test:443"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, bare := c.(*net.TCPConn); !bare {
		t.Errorf("a %T cannot be spliced", c)
	}
	if readAll(t, c) != "hello" || at.String() != "192.0.2.1:443" || len(n.asked) != 1 || len(i.dialed) != 1 {
		t.Errorf("at %v, asked %v, dialled %v", at, n.asked, i.dialed)
	}
	if now, limit := d.InFlight(); now != 0 || limit != 256 {
		t.Errorf("%d of %d in flight", now, limit)
	}
}

// A19: checked one answer, dialled another. Each name first works.
func TestRebindingDialsWhatWasChecked(t *testing.T) {
	d, n, i := world(t, Config{}, map[string][][]netip.Addr{"rebind.test": {addrs("192.0.2.1"), addrs("127.0.0.1")}})
	c, at, err := d.Dial(t.Context(), target(t, "rebind.test:80"), false)
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	c.Close()
	if at.Addr().String() != "192.0.2.1" || len(n.asked) != 1 {
		t.Errorf("dialled %v after asking %d times", at, len(n.asked))
	}
	_, _, err = d.Dial(t.Context(), target(t, "rebind.test:80"), false)
	if e := wantKind(t, err, KindClass); e.Class != dest.ClassLoopback || e.Addr.String() != "127.0.0.1:80" {
		t.Errorf("class %v at %v", e.Class, e.Addr)
	}
	if len(i.dialed) != 1 {
		t.Errorf("dialled %v", i.dialed)
	}
}

// A16, A18, A19: one bad address among the answers refuses them all, wherever
// it stands, and nothing is dialled.
func TestMixedAnswersAreRefused(t *testing.T) {
	for _, bad := range []string{
		"127.0.0.1", "10.0.0.1", "169.254.169.254", "168.63.129.16", "100.64.0.1", "198.18.0.5", "0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1",
		"::1", "::", "fe80::1", "fd00::1", "fd00:ec2::254", "fd5b:7d1e:9c04::5", "ff02::1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001::1",
	} {
		for _, answer := range [][]string{{bad}, {bad, "192.0.2.1"}, {"192.0.2.1", bad}, {"192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7", "192.0.2.8", bad}} {
			d, _, i := world(t, Config{}, map[string][][]netip.Addr{"mixed.test": {addrs(answer...)}, "good.test": {addrs("192.0.2.1", "2001:db8::1")}})
			c, _, err := d.Dial(t.Context(), target(t, "good.test:443"), false)
			if err != nil {
				t.Fatalf("control: %v", err)
			}
			c.Close()
			i.dialed = nil
			_, _, err = d.Dial(t.Context(), target(t, "mixed.test:443"), false)
			wantKind(t, err, KindClass)
			if len(i.dialed) != 0 {
				t.Errorf("%v: dialled %v", answer, i.dialed)
			}
		}
	}
}

func TestLiteralsAreClassified(t *testing.T) {
	d, n, i := world(t, Config{}, nil)
	for s, want := range map[string]dest.Class{
		"127.0.0.1:80": dest.ClassLoopback, "[::1]:80": dest.ClassLoopback, "[::ffff:127.0.0.1]:80": dest.ClassLoopback,
		"localhost:80": dest.ClassLoopback, "db.localhost:80": dest.ClassLoopback, // names that no resolver is asked for
		"169.254.169.254:80": dest.ClassMetadata, "198.18.3.4:80": dest.ClassSynthetic, "0.0.0.0:80": dest.ClassUnspecified,
	} {
		_, _, err := d.Dial(t.Context(), target(t, s), false)
		if e := wantKind(t, err, KindClass); e.Class != want {
			t.Errorf("%s: class %v", s, e.Class)
		}
	}
	if len(i.dialed)+len(n.asked) != 0 {
		t.Errorf("dialled %v, asked %v", i.dialed, n.asked)
	}
	c, at, err := d.Dial(t.Context(), target(t, "192.0.2.1:80"), false)
	if err != nil || at.String() != "192.0.2.1:80" {
		t.Fatalf("control: %v, %v", at, err)
	}
	c.Close()
}

// An internal grant opens loopback and private networks, and never the
// synthetic pools, multicast or the unspecified address.
func TestInternalGrant(t *testing.T) {
	for s, opens := range map[string]bool{
		"127.0.0.1": true, "10.0.0.1": true, "169.254.169.254": true, "100.64.0.1": true, "fd00::1": true, "fe80::1": true, "::1": true, "192.0.2.1": true,
		"198.18.0.5": false, "fd5b:7d1e:9c04::5": false, "64:ff9b::198.18.0.5": false, "224.0.0.1": false, "255.255.255.255": false, "0.0.0.0": false, "::": false,
	} {
		d, _, i := world(t, Config{}, map[string][][]netip.Addr{"in.test": {addrs(s)}})
		c, _, err := d.Dial(t.Context(), target(t, "in.test:80"), true)
		if opens {
			if err != nil {
				t.Errorf("%s: %v", s, err)
				continue
			}
			c.Close()
			continue
		}
		wantKind(t, err, KindClass)
		if len(i.dialed) != 0 {
			t.Errorf("%s: dialled %v", s, i.dialed)
		}
	}
}

// A20: this host's own addresses, asked for at each dial.
func TestOwnAddresses(t *testing.T) {
	own := addrs("198.51.100.7")
	cfg := Config{Own: func(a netip.Addr) bool { return len(own) > 0 && a == own[0] }}
	d, _, i := world(t, cfg, map[string][][]netip.Addr{"lan.test": {addrs("198.51.100.7")}, "near.test": {addrs("198.51.100.8")}})
	for _, s := range []string{"lan.test:8080", "198.51.100.7:8080", "[::ffff:198.51.100.7]:8080", "[64:ff9b::198.51.100.7]:8080"} {
		_, _, err := d.Dial(t.Context(), target(t, s), false)
		if e := wantKind(t, err, KindClass); e.Class != dest.ClassOwn {
			t.Errorf("%s: class %v", s, e.Class)
		}
	}
	if len(i.dialed) != 0 {
		t.Errorf("dialled %v", i.dialed)
	}
	c, _, err := d.Dial(t.Context(), target(t, "near.test:8080"), false)
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	c.Close()
	own = addrs("198.51.100.8") // the address changes
	if c, _, err = d.Dial(t.Context(), target(t, "lan.test:8080"), false); err != nil {
		t.Errorf("the old address: %v", err)
	} else {
		c.Close()
	}
	_, _, err = d.Dial(t.Context(), target(t, "near.test:8080"), false)
	wantKind(t, err, KindClass)
}

// A20: what the interfaces of the computer of this test say.
func TestOwnAddressesAreReadFromInterfaces(t *testing.T) {
	d := New(Config{})
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		a, _ := netip.AddrFromSlice(n.(*net.IPNet).IP)
		g := d.guard(dest.Target{Host: dest.HostFromAddr(a), Port: 1}, false)
		wantKind(t, g.check(a.Unmap()), KindClass)
	}
	g := d.guard(target(t, "192.0.2.77:1"), false)
	if err := g.check(netip.MustParseAddr("192.0.2.77")); err != nil {
		t.Errorf("control: %v", err)
	}
}

// A19: the last check stands between the socket and connect(2).
func TestControlChecksAgain(t *testing.T) {
	accepted := make(chan struct{}, 1)
	to := netip.MustParseAddrPort(listen(t, func(net.Conn) { accepted <- struct{}{} }))
	c, err := connectTCP(t.Context(), to, func(netip.Addr) error { return nil })
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	c.Close()
	<-accepted
	seen := netip.Addr{}
	_, err = connectTCP(t.Context(), to, func(a netip.Addr) error { seen = a; return &Error{Kind: KindClass} })
	wantKind(t, err, KindClass)
	if seen != to.Addr() {
		t.Errorf("checked %v", seen)
	}
	select {
	case <-accepted:
		t.Error("connected before the check")
	default:
	}
}

// B29: a new address at each look-up.
func TestRotatingAddresses(t *testing.T) {
	answers := [][]netip.Addr{}
	for i := range 5 {
		answers = append(answers, addrs(fmt.Sprintf("192.0.2.%d", i+1)))
	}
	d, _, _ := world(t, Config{}, map[string][][]netip.Addr{"cdn.test": answers})
	for i := range 5 {
		c, at, err := d.Dial(t.Context(), target(t, "cdn.test:443"), false)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if at.Addr() != answers[i][0] {
			t.Errorf("dialled %v, want %v", at, answers[i][0])
		}
	}
}

// B27: a closed port is told at once, by name and by address.
func TestClosedPortIsRefusedAtOnce(t *testing.T) {
	closed := netip.MustParseAddrPort(closedPort(t))
	d := New(Config{Own: none})
	d.lookup = (&names{answers: map[string][][]netip.Addr{"shut.test": {addrs("127.0.0.1", "127.0.0.2")}}}).lookup
	start := time.Now()
	for _, host := range []string{"shut.test", "127.0.0.1"} {
		_, _, err := d.Dial(t.Context(), target(t, fmt.Sprintf("%s:%d", host, closed.Port())), true)
		wantKind(t, err, KindRefused)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// A body outlives every phase: when Dial has returned, neither its context nor
// any timer of it matters.
func TestConnectionOutlivesItsDial(t *testing.T) {
	more := make(chan struct{})
	d, _, i := world(t, Config{}, map[string][][]netip.Addr{"a.test": {addrs("192.0.2.1")}})
	i.to = listen(t, func(c net.Conn) {
		io.WriteString(c, "head")
		<-more
		io.WriteString(c, " body")
	})
	ctx, cancel := context.WithCancel(t.Context())
	c, _, err := d.Dial(ctx, target(t, "a.test:443"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cancel()
	close(more)
	if got := readAll(t, c); got != "head body" {
		t.Errorf("read %q", got)
	}
}

func TestKindsAreToldApart(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, tt := range map[string]struct {
		lookup  func(context.Context) ([]netip.Addr, error)
		connect func(context.Context) error
		want    Kind
	}{
		"no such name":      {func(context.Context) ([]netip.Addr, error) { return nil, errNoAddress }, nil, KindNoName},
		"empty answer":      {func(context.Context) ([]netip.Addr, error) { return nil, nil }, nil, KindNoName},
		"resolver is down":  {func(context.Context) ([]netip.Addr, error) { return nil, syscall.ECONNREFUSED }, nil, KindNoName},
		"resolver is slow":  {func(ctx context.Context) ([]netip.Addr, error) { return nil, hang(ctx) }, nil, KindNoName},
		"refused":           {nil, func(context.Context) error { return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED} }, KindRefused},
		"no route":          {nil, func(context.Context) error { return &net.OpError{Op: "dial", Err: syscall.ENETUNREACH} }, KindNoRoute},
		"host unreachable":  {nil, func(context.Context) error { return syscall.EHOSTUNREACH }, KindNoRoute},
		"local firewall":    {nil, func(context.Context) error { return syscall.EPERM }, KindNoRoute},
		"kernel's time-out": {nil, func(context.Context) error { return syscall.ETIMEDOUT }, KindTimeout},
		"silence":           {nil, hang, KindTimeout},
		"anything else":     {nil, func(context.Context) error { return errors.New("odd") }, KindOther},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := New(Config{Own: none})
				d.lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
					if tt.lookup != nil {
						return tt.lookup(ctx)
					}
					return addrs("192.0.2.1", "2001:db8::1"), nil
				}
				d.connect = func(ctx context.Context, _ netip.AddrPort, _ func(netip.Addr) error) (*net.TCPConn, error) {
					return nil, tt.connect(ctx)
				}
				start := time.Now()
				_, _, err := d.Dial(t.Context(), target(t, "a.test:443"), false)
				e := wantKind(t, err, tt.want)
				if e.Target != target(t, "a.test:443") {
					t.Errorf("about %v", e.Target)
				}
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestCallerGivesUp(t *testing.T) {
	for _, phase := range []string{"lookup", "connect"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			d := New(Config{Own: none})
			d.lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
				if phase == "lookup" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return addrs("192.0.2.1"), nil
			}
			d.connect = func(ctx context.Context, _ netip.AddrPort, _ func(netip.Addr) error) (*net.TCPConn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			start := time.Now()
			_, _, err := d.Dial(ctx, target(t, "a.test:443"), false)
			wantKind(t, err, KindCanceled)
			if took := time.Since(start); took != time.Second {
				t.Errorf("%s: took %v", phase, took)
			}
		})
	}
}

func TestDialsInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Own: none, Limits: Limits{Dials: 1}})
		d.lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) { return addrs("192.0.2.1"), nil }
		release := make(chan struct{})
		d.connect = func(context.Context, netip.AddrPort, func(netip.Addr) error) (*net.TCPConn, error) {
			<-release
			return new(net.TCPConn), nil
		}
		done := make(chan error)
		dial := func(ctx context.Context) {
			_, _, err := d.Dial(ctx, target(t, "a.test:443"), false)
			done <- err
		}
		go dial(t.Context())
		synctest.Wait()
		if now, limit := d.InFlight(); now != 1 || limit != 1 {
			t.Errorf("%d of %d in flight", now, limit)
		}
		start := time.Now()
		go dial(t.Context())
		wantKind(t, <-done, KindLimit)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("waited %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		go dial(ctx)
		wantKind(t, <-done, KindCanceled)
		go dial(t.Context()) // waits, and then gets its turn
		synctest.Wait()
		close(release)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// script connects by address: after a delay it fails or succeeds.
type script map[string]struct {
	after time.Duration
	err   error
}

func (s script) run(t *testing.T, limits Limits, answer ...string) (tried []string, at netip.AddrPort, took time.Duration, err error) {
	d := New(Config{Own: none, Limits: limits})
	var mu sync.Mutex
	d.lookup = func(context.Context, string) ([]netip.Addr, error) { return addrs(answer...), nil }
	d.connect = func(ctx context.Context, a netip.AddrPort, check func(netip.Addr) error) (*net.TCPConn, error) {
		mu.Lock()
		tried = append(tried, a.Addr().String())
		mu.Unlock()
		step, ok := s[a.Addr().String()]
		if !ok {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(step.after):
		}
		if step.err != nil {
			return nil, step.err
		}
		return new(net.TCPConn), nil
	}
	start := time.Now()
	_, at, err = d.Dial(t.Context(), target(t, "a.test:443"), false)
	return tried, at, time.Since(start), err
}

// Happy eyeballs: broken IPv6 costs the stagger, a refusal costs nothing.
func TestHappyEyeballs(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		script script
		answer []string
		tried  []string
		at     string
		took   time.Duration
	}{
		"first answers": {script{"2001:db8::1": {after: ms}}, []string{"2001:db8::1", "192.0.2.1"}, []string{"2001:db8::1"}, "[2001:db8::1]:443", ms},
		"IPv6 is silent": {script{"192.0.2.1": {after: ms}}, []string{"2001:db8::1", "2001:db8::2", "192.0.2.1"},
			[]string{"2001:db8::1", "192.0.2.1"}, "192.0.2.1:443", 251 * ms},
		"IPv6 is refused": {script{"2001:db8::1": {after: ms, err: syscall.ECONNREFUSED}, "192.0.2.1": {after: ms}}, []string{"2001:db8::1", "192.0.2.1"},
			[]string{"2001:db8::1", "192.0.2.1"}, "192.0.2.1:443", 2 * ms},
		"first is slow but faster than the second": {script{"192.0.2.1": {after: 300 * ms}, "192.0.2.2": {after: 300 * ms}}, []string{"192.0.2.1", "192.0.2.2"},
			[]string{"192.0.2.1", "192.0.2.2"}, "192.0.2.1:443", 300 * ms},
		"third": {script{"192.0.2.3": {after: ms}}, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"},
			[]string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}, "192.0.2.3:443", 501 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tried, at, took, err := tt.script.run(t, Limits{}, tt.answer...)
				if err != nil || at.String() != tt.at || took != tt.took {
					t.Errorf("at %v after %v, %v; want %s after %v", at, took, err, tt.at, tt.took)
				}
				if diff := cmp.Diff(tt.tried, tried); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
	t.Run("none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, _, took, err := script{}.run(t, Limits{}, "192.0.2.1", "2001:db8::1")
			if wantKind(t, err, KindTimeout); took != 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	})
	t.Run("the most telling error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, at, _, err := script{"192.0.2.1": {err: syscall.ECONNREFUSED}, "2001:db8::1": {err: syscall.ENETUNREACH}}.run(t, Limits{}, "2001:db8::1", "192.0.2.1")
			if wantKind(t, err, KindRefused); at.String() != "192.0.2.1:443" {
				t.Errorf("at %v", at)
			}
		})
	})
	t.Run("bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var many []string
			for i := range 50 {
				many = append(many, fmt.Sprintf("192.0.2.%d", i+1))
			}
			if tried, _, _, _ := (script{}).run(t, Limits{Addrs: 4}, many...); len(tried) != 4 {
				t.Errorf("tried %v", tried)
			}
		})
	})
}

func TestNoTarget(t *testing.T) {
	d := New(Config{})
	for _, x := range []dest.Target{{}, {Port: 443}, {Host: target(t, "a.test:1").Host}} {
		_, _, err := d.Dial(t.Context(), x, true)
		wantKind(t, err, KindNoName)
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{Kind: KindClass, Target: target(t, "a.test:443"), Addr: netip.MustParseAddrPort("127.0.0.1:443"), Class: dest.ClassLoopback}
	if got := e.Error(); got != "dial a.test:443 at 127.0.0.1:443: address class: loopback" {
		t.Error(got)
	}
	for k := KindOther; k <= KindCanceled+1; k++ {
		if k.String() == "" {
			t.Errorf("kind %d has no name", k)
		}
	}
	if KindOf(fmt.Errorf("x: %w", e)) != KindClass || KindOf(io.EOF) != KindOther || KindOf(nil) != KindOther {
		t.Error("KindOf")
	}
}

func BenchmarkInterfaces(b *testing.B) {
	a := netip.MustParseAddr("192.0.2.1")
	for b.Loop() {
		interfaces()(a)
	}
}
