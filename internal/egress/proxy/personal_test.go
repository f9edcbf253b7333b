package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// A connection on which somebody has authenticated himself (NTLM, Negotiate)
// is not lent to another client: he would be that somebody.
func TestAuthenticatedConnectionsAreNotShared(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	gone := make(chan string, 16) // who a connection was, when it has ended
	w.raw("a.test:80", func(c net.Conn) {
		br, who := bufio.NewReader(c), "nobody"
		defer func() { gone <- who }()
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if a := r.Header.Get("Authorization"); a != "" && a != "Basic eA==" {
				who = a
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(who), who)
		}
	})
	as := func(c net.Conn, field string) string {
		_, body := ask(t, c, "GET / HTTP/1.1\r\nHost: a.test\r\n"+field+"\r\n")
		return body
	}
	for _, scheme := range []string{"NTLM TlRMTVNTUAAB", "negotiate YII="} {
		alice, err := w.dial(byRedirect, "a.test:80")
		ok(t, err)
		bob, err := w.dial(byRedirect, "a.test:80")
		ok(t, err)
		if got := as(alice, "Authorization: "+scheme+"\r\n"); got != scheme {
			t.Fatalf("%s: alice is %q", scheme, got)
		}
		if got := as(bob, ""); got != "nobody" {
			t.Errorf("%s: bob is %q", scheme, got)
		}
		if got := as(alice, ""); got != scheme {
			t.Errorf("%s: alice is %q on her own connection", scheme, got)
		}
		_ = alice.Close()
		select {
		case who := <-gone: // hers ends with her, bob's is anybody's
			if who != scheme {
				t.Errorf("%s: the connection of %q ended", scheme, who)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the connection outlives its client", scheme)
		}
		_ = bob.Close()
	}
	// Control: a connection that carried an ordinary credential is shared.
	before := w.dialled("a.test:80")
	for range 3 {
		c, err := w.dial(byRedirect, "a.test:80")
		ok(t, err)
		if got := as(c, "Authorization: Basic eA==\r\n"); got != "nobody" {
			t.Errorf("control: %q", got)
		}
		_ = c.Close()
	}
	if n := w.dialled("a.test:80") - before; n > 1 {
		t.Errorf("control: %d connections for three requests that may share one", n)
	}
}

// The same over HTTP/2 to an origin that has only HTTP/1.1.
func TestAuthenticatedConnectionsAreNotSharedFromHTTP2(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.client(byConnect, true)
	for i, field := range []string{"Negotiate YII=", "Negotiate YII=", "Basic eA==", "Basic eA=="} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://a.test/", nil)
		ok(t, err)
		q.Header.Set("Authorization", field)
		before := w.dialled("a.test:443")
		r, err := c.Do(q)
		ok(t, err)
		_ = r.Body.Close()
		// Each Negotiate has a connection of its own; the last Basic shares the one before.
		if n := w.dialled("a.test:443") - before; n != 1 && i < 3 || i == 3 && n != 0 {
			t.Errorf("request %d: %d new connections", i, n)
		}
	}
}
