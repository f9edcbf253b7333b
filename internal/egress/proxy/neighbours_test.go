package proxy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"foldyard/internal/egress/policy"
)

// A9: two names on one address are two hosts. What opens one does not open the
// other, and no connection is used for both.
func TestTwoNamesOnOneAddress(t *testing.T) {
	for _, by := range ways() {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/h2=%v", by, h2), func(t *testing.T) {
				w := newWorld(t)
				var mu sync.Mutex
				seen := map[string]map[string]bool{} // names, by the connection they came on
				w.web("a.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					if seen[r.RemoteAddr] == nil {
						seen[r.RemoteAddr] = map[string]bool{}
					}
					seen[r.RemoteAddr][r.Host], seen[r.RemoteAddr][r.TLS.ServerName] = true, true
					greet(rw, r)
				})
				w.share("b.test", "a.test:443")
				w.allow("a.test")
				c := w.client(by, h2)
				status := func(url string) int {
					r, err := c.Get(url)
					if err != nil {
						return http.StatusForbidden // a CONNECT or SOCKS5 that was refused
					}
					defer r.Body.Close()
					return r.StatusCode
				}
				for range 2 {
					if got := status("https://a.test/"); got != http.StatusOK {
						t.Fatalf("control: the granted name: %d", got)
					}
					if got := status("https://b.test/"); got != http.StatusForbidden {
						t.Errorf("the name that is not granted: %d", got)
					}
				}
				if n := w.dialled("b.test:443"); n != 0 {
					t.Errorf("it was dialled %d times", n)
				}
				w.sawReason("b.test", policy.ReasonNotGranted)
				w.allow("b.test")
				for range 2 {
					for _, url := range []string{"https://a.test/", "https://b.test/"} {
						if got := status(url); got != http.StatusOK {
							t.Errorf("control: both granted: %s: %d", url, got)
						}
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if len(seen) < 2 {
					t.Errorf("one connection served both: %v", seen)
				}
				for conn, names := range seen {
					if len(names) != 1 {
						t.Errorf("%s was used for %v", conn, names)
					}
				}
			})
		}
	}
}

// In a tunnel the name in the ClientHello decides, also between two hosts that
// are both granted and both tunnelled.
func TestTwoNamesOnOneAddressInATunnel(t *testing.T) {
	for _, by := range ways() {
		w := newWorld(t)
		w.tunnel("a.test", "b.test")
		w.web("a.test:443", webH1, greet)
		w.share("b.test", "a.test:443")
		for _, c := range []struct{ to, sni string }{{"a.test", "a.test"}, {"b.test", "b.test"}, {"a.test", "b.test"}, {"b.test", "a.test"}} {
			nc, err := w.dial(by, c.to+":443")
			ok(t, err)
			defer nc.Close()
			if err := tls.Client(nc, &tls.Config{RootCAs: w.roots, ServerName: c.sni}).Handshake(); (err == nil) != (c.to == c.sni) {
				t.Errorf("%s: to %s with the name %s: %v", by, c.to, c.sni, err)
			}
		}
		w.sawReason("a.test", policy.ReasonMisaligned)
		w.sawReason("b.test", policy.ReasonMisaligned)
	}
}
