package supervisor

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// A proxy on loopback is anybody's on this computer: with a token it serves only who shows it, without one it has no credentials.
func TestProxyWithoutABoxWantsItsToken(t *testing.T) {
	for _, auth := range []bool{false, true} {
		opt := options(t, time.Now, "")
		opt.Listen, opt.Auth = "127.0.0.1:0", auth
		said := make(chan string, 1)
		opt.Listening = func(u, _ string) { said <- u }
		ctx, cancel := context.WithCancel(t.Context())
		s, err := open(ctx, opt)
		if err != nil {
			t.Fatal(err)
		}
		s.quit = cancel
		if err := s.listenProxy(ctx); err != nil {
			t.Fatal(err)
		}
		at, err := url.Parse(<-said)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(through *url.URL) int {
			tr := &http.Transport{Proxy: http.ProxyURL(through)}
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Get("http://not-granted.test/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		bare := *at
		bare.User = nil
		want := map[bool]int{false: http.StatusForbidden, true: http.StatusProxyAuthRequired}[auth]
		if got := ask(&bare); got != want {
			t.Errorf("auth %v, no token: %d, want %d", auth, got, want)
		}
		if got := ask(at); got != http.StatusForbidden {
			t.Errorf("control: auth %v, the URL as printed: %d, want the policy's 403", auth, got)
		}
		cancel()
		s.close()
	}
}
