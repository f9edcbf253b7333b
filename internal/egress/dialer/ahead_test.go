package dialer

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"foldyard/internal/egress/dest"
)

func TestLookAheadServesOneDial(t *testing.T) {
	d, n, _ := world(t, Config{}, map[string][][]netip.Addr{"a.test": {addrs("192.0.2.1"), addrs("192.0.2.2")}})
	to := target(t, "a.test:443")
	d.LookAhead(t.Context(), to)
	d.LookAhead(t.Context(), to) // no second question
	for _, want := range []string{"192.0.2.1:443", "192.0.2.2:443"} {
		c, at, err := d.Dial(t.Context(), to, false)
		if err != nil || at.String() != want {
			t.Fatalf("%v, %v; want %s", at, err, want)
		}
		c.Close()
	}
	if want := []string{"a.test", "a.test"}; !slices.Equal(n.asked, want) {
		t.Errorf("asked %q", n.asked)
	}
}

// What was resolved before its dial is judged by the dial, as everything is.
func TestAddressesFromAheadAreClassified(t *testing.T) {
	d, _, i := world(t, Config{}, map[string][][]netip.Addr{"a.test": {addrs("192.0.2.1", "127.0.0.1")}})
	to := target(t, "a.test:443")
	d.LookAhead(t.Context(), to)
	_, _, err := d.Dial(t.Context(), to, false)
	wantKind(t, err, KindClass)
	if len(i.dialed) != 0 {
		t.Errorf("dialled %v", i.dialed)
	}
}

func TestFailedLookAheadIsAskedAgain(t *testing.T) {
	d, n, _ := world(t, Config{}, map[string][][]netip.Addr{"a.test": {nil, addrs("192.0.2.1")}})
	gone, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	d.lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
		if ctx.Value(asked) == nil {
			return n.lookup(ctx, name)
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	to := target(t, "a.test:443")
	d.LookAhead(context.WithValue(gone, asked, true), to) // of a client that goes away
	cancel()
	n.answers["a.test"] = n.answers["a.test"][1:]
	c, _, err := d.Dial(t.Context(), to, false)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestLookAheadIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{answers: map[string][][]netip.Addr{"a.test": {addrs("192.0.2.1"), addrs("192.0.2.2")}}}
		d := New(Config{Own: none})
		d.lookup = n.lookup
		to := target(t, "a.test:443")
		d.LookAhead(t.Context(), to)
		time.Sleep(aheadFor)
		synctest.Wait()
		got, err := d.resolve(t.Context(), to)
		if err != nil || !slices.Equal(got, addrs("192.0.2.2")) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestLookAheadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{}
		d := New(Config{Own: none})
		d.lookup = n.lookup
		for i := range 2 * maxAhead {
			d.LookAhead(t.Context(), target(t, fmt.Sprintf("n%d.test:443", i)))
		}
		synctest.Wait()
		if len(n.asked) != maxAhead {
			t.Errorf("%d questions", len(n.asked))
		}
		time.Sleep(aheadFor)
		synctest.Wait()
		if len(d.ahead.names) != 0 {
			t.Errorf("%d are kept", len(d.ahead.names))
		}
	})
}

// B: behind an upstream proxy the name is the proxy's to resolve.
func TestNothingIsLookedUpAheadOfAProxy(t *testing.T) {
	proxied := func(dest.Target) (*url.URL, error) { return &url.URL{Scheme: "http", Host: "192.0.2.9:3128"}, nil }
	synctest.Test(t, func(t *testing.T) {
		n := &names{}
		for want, cfg := range []Config{{Own: none, Proxy: proxied}, {Own: none}} {
			d := New(cfg)
			d.lookup = n.lookup
			d.LookAhead(t.Context(), target(t, "a.test:443"))
			d.LookAhead(t.Context(), target(t, "192.0.2.1:443"))
			synctest.Wait()
			if len(n.asked) != want {
				t.Errorf("%d questions, want %d", len(n.asked), want)
			}
			time.Sleep(aheadFor)
			synctest.Wait()
		}
	})
}
