package inject

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	theSecret = "s3cr3t-VALUE-0123456789"
	theDummy  = "dummy-demo-token"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func hosts(texts ...string) []policy.Rule {
	var out []policy.Rule
	for _, s := range texts {
		out = append(out, must(policy.ParseRule(s)))
	}
	return out
}

func fixed(secret string) Source {
	return func(context.Context) (Value, error) { return Value{Secret: NewSecret([]byte(secret))}, nil }
}

// demo is a static bearer rule of api.test.
func demo(change ...func(*Rule)) Rule {
	r := Rule{Name: "demo", Kind: "static", Hosts: hosts("api.test"), Header: "Authorization", Prefix: "Bearer ", Dummies: []string{theDummy}, Key: "1"}
	r.UseStatic(fixed(theSecret))
	for _, f := range change {
		f(&r)
	}
	return r
}

// bench is an injector with a clock of its own, and what it told.
type bench struct {
	*Injector
	mu     sync.Mutex // guards the fields that follow
	now    time.Time
	alerts []Alert
	offs   []string
}

func newBench(t testing.TB, rules ...Rule) *bench {
	t.Helper()
	b := &bench{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	b.Injector = New(Config{
		Now:   b.clock,
		Alert: func(a Alert) { b.mu.Lock(); b.alerts = append(b.alerts, a); b.mu.Unlock() },
		Off:   func(rule, _ string) { b.mu.Lock(); b.offs = append(b.offs, rule); b.mu.Unlock() },
	})
	t.Cleanup(b.Close)
	ok(t, b.Load(rules))
	return b
}

func (b *bench) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

// ask is a request as a text: METHOD URL, then a field a line.
func ask(text string) Request {
	lines := strings.Split(text, "\n")
	method, url, _ := strings.Cut(lines[0], " ")
	scheme, rest, _ := strings.Cut(url, "://")
	authority, path := rest, "/"
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	port := uint16(443)
	if scheme == "http" {
		port = 80
	}
	h := &http1.Header{}
	q := Request{
		Box: "box1", Target: must(dest.ParseAuthority(authority, port)), TLS: scheme == "https", Granted: true,
		Method: method, Host: authority, Path: path, Header: H1{h},
	}
	for _, l := range lines[1:] {
		k, v, _ := strings.Cut(l, ": ")
		h.Add(k, v)
		if k == "Content-Length" {
			q.Body, q.Length = true, int64(len(v))
		}
	}
	return q
}

// fields writes the fields that carry something, for comparison.
func fields(h Header) string {
	var out []string
	h.Rewrite(func(name, value string) (string, bool) {
		if name != "Accept-Encoding" {
			out = append(out, name+": "+value)
		}
		return value, true
	})
	return strings.Join(out, "\n")
}

func TestHead(t *testing.T) {
	query := demo(func(r *Rule) {
		r.Name, r.Hosts, r.Header, r.Prefix, r.Query, r.Dummies = "query", hosts("q.test"), "", "", "userToken", []string{"dummy-query-token"}
	})
	custom := demo(func(r *Rule) {
		r.Name, r.Hosts, r.Header, r.Prefix, r.Family = "custom", hosts("custom.test", "*.wide.test", "custom.test:8443"), "X-Api-Key", "", []string{"Authorization"}
		r.Dummies = []string{"dummy-custom-token"}
	})
	narrow := demo(func(r *Rule) {
		r.Name, r.Hosts, r.Path, r.Methods, r.Dummies = "narrow", hosts("narrow.test"), "/repos/", []string{"GET"}, []string{"dummy-narrow-token"}
	})
	pair := demo(func(r *Rule) {
		r.Name, r.Hosts, r.Prefix, r.User, r.Dummies = "pair", hosts("git.test"), "Basic ", "x-access-token", []string{"dummy-pair-token"}
	})
	unset := demo(func(r *Rule) {
		r.Name, r.Hosts, r.Minter, r.Off, r.Fix, r.Dummies = "unset", hosts("unset.test"), nil, "no secret is set for it", "fy secret set unset", []string{"dummy-unset-token"}
	})
	both1 := demo(func(r *Rule) { r.Name, r.Hosts, r.Dummies = "both1", hosts("both.test"), nil })
	both2 := demo(func(r *Rule) { r.Name, r.Hosts, r.Path, r.Dummies = "both2", hosts("both.test"), "/x", nil })
	bearer := "Authorization: Bearer " + theSecret
	for _, c := range []struct {
		name, in string
		change   func(*Request)
		want     string // fields
		path     string // "": as it was
		reason   policy.Reason
		says     string
	}{
		{name: "bearer", in: "GET https://api.test/\nAuthorization: Bearer " + theDummy, want: bearer},
		{name: "without a dummy", in: "GET https://api.test/", want: bearer},
		{name: "the port by number", in: "GET https://api.test:443/", want: bearer},
		{name: "what the box sent instead goes", in: "GET https://api.test/\nAuthorization: Bearer own\nauthorization: x\nAUTHORIZATION: y\nA: b", want: "A: b\n" + bearer},
		{name: "a field that CGI cannot tell apart", in: "GET https://custom.test/\nX_API_KEY: own\nx-api_key: own\nAuthorization: own", want: "X-Api-Key: " + theSecret},
		{name: "wildcard", in: "GET https://a.b.wide.test/", want: "X-Api-Key: " + theSecret},
		{name: "not the apex of a wildcard", in: "GET https://wide.test/\nX-Api-Key: own", want: "X-Api-Key: own"},
		{name: "another port", in: "GET https://api.test:8443/\nAuthorization: own", want: "Authorization: own"},
		{name: "a port that the rule names", in: "GET https://custom.test:8443/", want: "X-Api-Key: " + theSecret},
		{name: "query", in: "GET https://q.test/a?x=1&userToken=dummy-query-token&y=2", path: "/a?x=1&y=2&userToken=" + theSecret},
		{name: "query without one", in: "GET https://q.test/a", path: "/a?userToken=" + theSecret},
		{name: "query, written otherwise and twice", in: "GET https://q.test/a?usertoken=1&user%54oken=2&b", path: "/a?b&userToken=" + theSecret},
		{name: "basic", in: "GET https://git.test/x.git/info/refs", want: "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+theSecret))},
		{name: "path and method", in: "GET https://narrow.test/repos/x", want: bearer},
		{name: "another path", in: "GET https://narrow.test/user\nAuthorization: own", want: "Authorization: own"},
		{name: "a path that leaves the rule's", in: "GET https://narrow.test/repos/../user", reason: policy.ReasonBadRequest},
		{name: "the same, encoded", in: "GET https://narrow.test/repos/%2e%2e/user", reason: policy.ReasonBadRequest},
		{name: "another method", in: "POST https://narrow.test/repos/x\nAuthorization: own", want: "Authorization: own"},
		{name: "another method, by a field", in: "GET https://narrow.test/repos/x\nX-HTTP-Method-Override: DELETE", want: "X-HTTP-Method-Override: DELETE"},
		{name: "a dummy where the rule does not reach", in: "POST https://narrow.test/repos/x\nAuthorization: Bearer dummy-narrow-token", reason: policy.ReasonCredentialOff},
		{name: "plain http (A10)", in: "GET http://api.test/\nHost: api.test", want: "Host: api.test"},
		{name: "plain http with a dummy", in: "GET http://api.test/\nAuthorization: Bearer " + theDummy, reason: policy.ReasonCredentialOff, says: "https only"},
		{name: "TLS that nobody verified", in: "GET https://api.test/", change: func(q *Request) { q.TLS = false }, want: ""},
		{name: "OPTIONS", in: "OPTIONS https://api.test/", want: ""},
		{name: "TRACE (A11)", in: "TRACE https://api.test/", want: ""},
		{name: "OPTIONS with a dummy", in: "OPTIONS https://api.test/\nAuthorization: " + theDummy, reason: policy.ReasonCredentialOff},
		{name: "not granted, merely not enforced", in: "GET https://api.test/", change: func(q *Request) { q.Granted = false }, want: ""},
		{name: "not granted, with a dummy", in: "GET https://api.test/\nAuthorization: " + theDummy, change: func(q *Request) { q.Granted = false }, reason: policy.ReasonCredentialOff, says: "not granted"},
		{name: "missing secret", in: "GET https://unset.test/\nAuthorization: Bearer dummy-unset-token", reason: policy.ReasonCredentialOff, says: "no secret is set"},
		{name: "overlap", in: "GET https://both.test/x", reason: policy.ReasonCredentialOverlap, says: "both1 and both2"},
		{name: "no overlap", in: "GET https://both.test/y", want: bearer},

		{name: "neighbour of the dummy elsewhere (A12)", in: "GET https://other.test/?q=dummy\nAuthorization: Bearer dummy-dem", want: "Authorization: Bearer dummy-dem"},
		{name: "dummy in a field elsewhere", in: "GET https://other.test/\nAuthorization: Bearer " + theDummy, reason: policy.ReasonDummyElsewhere, says: "demo"},
		{name: "dummy in another rule's place", in: "GET https://api.test/\nX-Other: dummy-query-token", reason: policy.ReasonDummyElsewhere},
		{name: "dummy of its own, misplaced", in: "GET https://api.test/\nX-Other: " + theDummy, reason: policy.ReasonCredentialOff},
		{name: "dummy in the query elsewhere", in: "GET https://other.test/?t=" + theDummy, reason: policy.ReasonDummyElsewhere},
		{name: "percent-encoded", in: "GET https://other.test/?t=dummy%2Ddemo%2dtoken", reason: policy.ReasonDummyElsewhere},
		{name: "all of it percent-encoded", in: "GET https://other.test/?t=%64%75%6d%6d%79-demo-token", reason: policy.ReasonDummyElsewhere},
		{name: "in the path", in: "GET https://other.test/bot" + theDummy + "/send", reason: policy.ReasonDummyElsewhere},
		{name: "in basic", in: "GET https://other.test/\nAuthorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+theDummy)), reason: policy.ReasonDummyElsewhere},
		{name: "in a cookie over plain http", in: "GET http://other.test/\nCookie: a=b; t=" + theDummy, reason: policy.ReasonDummyElsewhere},
		{name: "in a WebSocket's handshake", in: "GET https://other.test/ws\nUpgrade: websocket\nSec-WebSocket-Protocol: token, " + theDummy, reason: policy.ReasonDummyElsewhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, demo(), query, custom, narrow, pair, unset, both1, both2)
			q := ask(c.in)
			if c.change != nil {
				c.change(&q)
			}
			g, refusal := b.Head(t.Context(), q)
			if c.reason != "" {
				if refusal == nil {
					t.Fatalf("not refused: %q", fields(q.Header))
				}
				if refusal.Reason != c.reason || !strings.Contains(refusal.What+refusal.Fix, c.says) {
					t.Errorf("refused with %+v", refusal)
				}
				if text := fmt.Sprint(*refusal) + fields(q.Header); strings.Contains(text, theSecret) {
					t.Errorf("the refusal holds the secret: %q", text)
				}
				if c.reason == policy.ReasonDummyElsewhere && (len(b.alerts) != 1 || b.alerts[0].Box != "box1") {
					t.Errorf("alerts %+v", b.alerts)
				}
				return
			}
			if refusal != nil {
				t.Fatalf("refused: %+v", refusal)
			}
			want := c.path
			if want == "" {
				want = q.Path
			}
			if got := sentPath(g, q); got != want {
				t.Errorf("path %q, want %q", got, want)
			}
			if got := fields(q.Header); got != c.want {
				t.Errorf("fields %q, want %q", got, c.want)
			}
			if len(b.alerts) > 0 {
				t.Errorf("alerts %+v", b.alerts)
			}
			if g != nil && g.view != nil && q.Header.Get("Accept-Encoding") != "identity" {
				t.Error("the answer may be coded")
			}
		})
	}
}

func sentPath(g *Grip, q Request) string {
	if g == nil {
		return q.Path
	}
	return g.Path
}

func TestHeadOfHTTP2(t *testing.T) {
	b := newBench(t, demo())
	h := http.Header{"Authorization": {"Bearer own", "Bearer " + theDummy}, "X": {"y"}}
	q := ask("GET https://api.test/")
	q.Header = H2{h}
	if _, refusal := b.Head(t.Context(), q); refusal != nil {
		t.Fatal(refusal)
	}
	if got := h["Authorization"]; len(got) != 1 || got[0] != "Bearer "+theSecret || h.Get("X") != "y" {
		t.Errorf("fields %q", h)
	}
}

func TestConnectFieldsAreJudged(t *testing.T) {
	b := newBench(t, demo())
	h := &http1.Header{{Name: "Proxy-Authorization", Value: "Bearer " + theDummy}}
	if r := b.Connect("box1", must(dest.Parse("api.test:443")), H1{h}); r != nil {
		t.Errorf("control: CONNECT to the dummy's own host: %v", r)
	}
	if r := b.Connect("box1", must(dest.Parse("other.test:443")), H1{h}); r == nil || r.Reason != policy.ReasonDummyElsewhere {
		t.Errorf("dummy in a field of CONNECT elsewhere (A32): %v", r)
	}
}

func TestNilInjectorDoesNothing(t *testing.T) {
	var in *Injector
	if g, r := in.Head(t.Context(), ask("GET https://api.test/")); g != nil || r != nil {
		t.Error(g, r)
	}
	var g *Grip
	g.Header(nil)
	if g.Text("x") != "x" || g.Reads() || g.Searches() || g.Holds() != 0 || g.Keeps() != 0 || g.Replay(t.Context(), 401, nil, true) || g.Tripped() != nil {
		t.Error("a nil grip does something")
	}
	if in.Scrub("x") != "x" || in.Local(dest.Target{Port: 80}) != nil || in.Endpoint(dest.Target{}, "POST", "/") != nil || in.Connect("", dest.Target{}, nil) != nil {
		t.Error("a nil injector does something")
	}
}

func TestLoadKeepsWhatWasThereOnAnError(t *testing.T) {
	b := newBench(t, demo())
	for name, bad := range map[string]Rule{
		"no name":          demo(func(r *Rule) { r.Name = "" }),
		"no hosts":         demo(func(r *Rule) { r.Hosts = nil }),
		"no place":         demo(func(r *Rule) { r.Header = "" }),
		"two places":       demo(func(r *Rule) { r.Query = "t" }),
		"nothing to mint":  demo(func(r *Rule) { r.Minter = nil }),
		"a host with path": demo(func(r *Rule) { r.Hosts = hosts("api.test/x") }),
	} {
		if err := b.Load([]Rule{bad}); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	if err := b.Load([]Rule{demo(), demo()}); err == nil {
		t.Error("two of a name: loaded")
	}
	q := ask("GET https://api.test/")
	if g, _ := b.Head(t.Context(), q); g == nil || g.Rule != "demo" {
		t.Error("the rules before are gone")
	}
}

// counting mints numbered values.
type counting struct {
	mu   sync.Mutex
	n    int
	fail error
	life time.Duration
	now  func() time.Time
	gate chan struct{} // nil: at once
}

func (c *counting) Mint(ctx context.Context, _ string) (Token, error) {
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return Token{}, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if c.fail != nil {
		return Token{}, c.fail
	}
	t := Token{Value: NewSecret(fmt.Appendf(nil, "minted-token-number-%d", c.n))}
	if c.life > 0 {
		t.Expires = c.now().Add(c.life)
	}
	return t, nil
}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (b *bench) get(t *testing.T) (string, *Refusal, *Grip) {
	t.Helper()
	q := ask("GET https://api.test/")
	g, r := b.Head(t.Context(), q)
	return q.Header.Get("Authorization"), r, g
}

func TestTokensAreCachedRefreshedEarlyAndShared(t *testing.T) {
	c := &counting{life: time.Hour}
	b := newBench(t, demo(func(r *Rule) { r.Minter = c }))
	c.now = b.clock
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got, r, _ := b.get(t); r != nil || got != "Bearer minted-token-number-1" {
				t.Errorf("%q, %v", got, r)
			}
		})
	}
	wg.Wait()
	if c.count() != 1 {
		t.Errorf("minted %d times, want 1", c.count())
	}
	b.pass(45 * time.Minute)
	b.get(t)
	b.minting.Wait()
	if c.count() != 1 {
		t.Errorf("refreshed %d times a quarter of an hour early", c.count()-1)
	}
	b.pass(6 * time.Minute) // nine are left
	if got, _, _ := b.get(t); got != "Bearer minted-token-number-1" {
		t.Errorf("a request waited for a refresh: %q", got)
	}
	b.minting.Wait()
	if got, _, _ := b.get(t); got != "Bearer minted-token-number-2" {
		t.Errorf("not refreshed: %q", got)
	}
	b.pass(2 * time.Hour)
	if got, _, _ := b.get(t); got != "Bearer minted-token-number-3" {
		t.Errorf("an expired token was used: %q", got)
	}
}

func TestMintFailureIsRememberedThenTriedAgain(t *testing.T) {
	c := &counting{fail: &MintError{Why: "the token endpoint answered 500", Fix: "wait", Err: errors.New("detail " + theSecret)}}
	b := newBench(t, demo(func(r *Rule) { r.Minter = c }))
	for range 5 {
		_, r, _ := b.get(t)
		if r == nil || r.Status != http.StatusBadGateway || r.Reason != policy.ReasonMintFailed || !strings.Contains(r.What, "answered 500") || r.Fix != "wait" {
			t.Fatalf("%+v", r)
		}
		if strings.Contains(r.What+r.Fix, theSecret) {
			t.Error("the box is told the detail")
		}
	}
	if c.count() != 1 {
		t.Errorf("tried %d times within 15 s", c.count())
	}
	c.mu.Lock()
	c.fail = nil
	c.mu.Unlock()
	b.pass(16 * time.Second)
	if got, r, _ := b.get(t); r != nil || got != "Bearer minted-token-number-2" {
		t.Errorf("after 16 s: %q, %v", got, r)
	}
}

func TestMintingIsBounded(t *testing.T) {
	c := &counting{}
	b := newBench(t, demo(func(r *Rule) {
		r.Minter = c
		r.scope = func(_ dest.Target, _, path string) string { return path }
	}))
	refused := 0
	for i := range 400 {
		if _, r := b.Head(t.Context(), ask(fmt.Sprintf("GET https://api.test/%d", i))); r != nil {
			refused++
		}
	}
	if c.count() != maxTries || refused != 400-maxTries {
		t.Errorf("minted %d, refused %d", c.count(), refused)
	}
	b.pass(2 * time.Minute)
	if _, r := b.Head(t.Context(), ask("GET https://api.test/x")); r != nil {
		t.Errorf("later: %v", r)
	}
}

func TestSlowMinterHoldsUpNobodyElse(t *testing.T) {
	c := &counting{gate: make(chan struct{})}
	b := newBench(t, demo(func(r *Rule) { r.Minter = c }), demo(func(r *Rule) { r.Name, r.Hosts, r.Dummies = "fast", hosts("fast.test"), nil }))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan *Refusal, 1)
	go func() {
		_, r := b.Head(ctx, ask("GET https://api.test/"))
		done <- r
	}()
	if _, r := b.Head(t.Context(), ask("GET https://fast.test/")); r != nil {
		t.Error(r)
	}
	cancel() // the client gives up; the mint goes on for the next one
	if r := <-done; r == nil {
		t.Error("no refusal for a client that is gone")
	}
	close(c.gate)
	if got, r, _ := b.get(t); r != nil || got != "Bearer minted-token-number-1" {
		t.Errorf("%q, %v", got, r)
	}
}

func TestReplayMintsOnceMore(t *testing.T) {
	c := &counting{}
	b := newBench(t, demo(func(r *Rule) { r.Minter = c }))
	_, _, g := b.get(t)
	h := &http1.Header{{Name: "Authorization", Value: "Bearer minted-token-number-1"}}
	if g.Replay(t.Context(), 401, H1{h}, true) {
		t.Error("minted again within 5 s: a box could keep us minting")
	}
	b.pass(time.Minute)
	if g.Replay(t.Context(), 403, H1{h}, true) {
		t.Error("replayed for a 403")
	}
	if !g.Replay(t.Context(), 401, H1{h}, true) || h.Get("Authorization") != "Bearer minted-token-number-2" || !g.Outcome().Replayed {
		t.Errorf("not replayed: %v", *h)
	}
	if g.Replay(t.Context(), 401, H1{h}, true) {
		t.Error("replayed twice")
	}
	// What cannot be sent again still gives the next request another credential.
	b.pass(time.Minute)
	_, _, g = b.get(t)
	if g.Replay(t.Context(), 401, H1{h}, false) {
		t.Error("replayed what could not be")
	}
	b.minting.Wait()
	if got, _, _ := b.get(t); got != "Bearer minted-token-number-3" {
		t.Errorf("next request: %q", got)
	}
}

func TestReplayKeepsToTheSameValue(t *testing.T) {
	b := newBench(t, demo())
	_, _, g := b.get(t)
	b.pass(time.Minute)
	if g.Replay(t.Context(), 401, H1{&http1.Header{}}, true) {
		t.Error("the same credential was sent again")
	}
}

func TestThreeRedactionsAMinuteSwitchOff(t *testing.T) {
	b := newBench(t, demo())
	echo := func() {
		_, r, g := b.get(t)
		if r != nil {
			t.Fatal(r)
		}
		h := &http1.Header{{Name: "X-Saw", Value: "Bearer " + theSecret}, {Name: "X-Twice", Value: theSecret}}
		if _, r := g.Answer(200, H1{h}, true); r != nil {
			t.Fatal(r)
		}
		if strings.Contains(fmt.Sprint(*h), theSecret) || h.Get("X-Saw") != "Bearer "+strings.Repeat("*", len(theSecret)) {
			t.Errorf("not masked at equal length: %v", *h)
		}
		if !g.Outcome().Redacted {
			t.Error("not recorded")
		}
	}
	echo()
	echo()
	b.pass(2 * time.Minute)
	echo()
	echo()
	if len(b.offs) != 0 {
		t.Fatal("off too early")
	}
	echo()
	if len(b.offs) != 1 || len(b.alerts) != 5 {
		t.Fatalf("off %v, %d alerts", b.offs, len(b.alerts))
	}
	_, r, _ := b.get(t)
	if r == nil || r.Reason != policy.ReasonCredentialOff || r.Fix != "fy secret bind demo" {
		t.Fatalf("%+v", r)
	}
	b.pass(time.Hour)
	if _, r, _ := b.get(t); r == nil {
		t.Error("on again by itself")
	}
	ok(t, b.Load([]Rule{demo(func(r *Rule) { r.Key = "2" })})) // the operator answered
	if _, r, _ := b.get(t); r != nil {
		t.Errorf("still off: %v", r)
	}
}

func TestOldValuesAreMaskedToo(t *testing.T) {
	b := newBench(t, demo())
	b.get(t)
	ok(t, b.Load([]Rule{demo(func(r *Rule) { r.Key = "2"; r.UseStatic(fixed("another-value-9876543210")) })}))
	_, _, g := b.get(t)
	h := &http1.Header{{Name: "A", Value: theSecret + " another-value-9876543210"}}
	g.Header(H1{h})
	if got := h.Get("A"); strings.Trim(got, "* ") != "" {
		t.Errorf("shown: %q", got)
	}
	if got := b.Scrub("error with " + theSecret); strings.Contains(got, theSecret) {
		t.Errorf("in a record: %q", got)
	}
}

func TestAnswersThatAreCoded(t *testing.T) {
	for _, c := range []struct {
		coding, contentType string
		status              int
		refused, recoded    bool
		unread              bool
	}{
		{"", "text/plain", 200, false, false, false},
		{"identity", "application/json", 200, false, false, false},
		{"gzip", "application/json; charset=utf-8", 200, false, true, false},
		{"gzip", "", 200, false, true, false},
		{"gzip", "application/json", 206, true, false, false},
		{"br", "application/json", 200, true, false, false},
		{"zstd", "text/html", 200, true, false, false},
		{"gzip, gzip", "text/html", 200, true, false, false},
		{"br", "", 200, true, false, false},
		{"br", "application/octet-stream", 200, false, false, true},
		{"gzip", "application/vnd.oci.image.layer.v1.tar", 200, false, false, true},
	} {
		b := newBench(t, demo())
		_, _, g := b.get(t)
		h := &http1.Header{}
		if c.coding != "" {
			h.Add("Content-Encoding", c.coding)
		}
		if c.contentType != "" {
			h.Add("Content-Type", c.contentType)
		}
		recoded, refusal := g.Answer(c.status, H1{h}, false)
		if (refusal != nil) != c.refused || recoded != c.recoded || (g.Outcome().Note != "") != c.unread {
			t.Errorf("%+v: recoded %v, refusal %v, note %q", c, recoded, refusal, g.Outcome().Note)
		}
		if recoded && h.Get("Content-Encoding") != "" {
			t.Errorf("%+v: still says it is coded", c)
		}
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	s := NewSecret([]byte(theSecret))
	type holder struct {
		s Secret
		S Secret
		P *Secret
	}
	h := holder{s, s, &s}
	tok := Token{Value: s, Hide: []Secret{s}}
	for _, text := range []string{
		fmt.Sprint(s), fmt.Sprintf("%s %v %+v %#v %q %x %d", s, s, s, s, s, s, s), fmt.Sprintf("%v %+v %#v", h, h, h), fmt.Sprintf("%+v %#v", tok, tok),
		string(must(s.MarshalJSON())), string(must(s.MarshalText())), s.LogValue().String(), fmt.Sprintf("%+v", &h),
	} {
		if strings.Contains(text, theSecret) || strings.Contains(text, fmt.Sprintf("%x", theSecret)) || strings.Contains(text, "115 51 99") {
			t.Errorf("printed: %s", text)
		}
	}
}

func BenchmarkHeadInjects(b *testing.B) {
	in := newBench(b, demo(), demo(func(r *Rule) { r.Name, r.Hosts, r.Dummies = "other", hosts("q.test"), []string{"dummy-other-token"} }))
	h := http1.Header{{Name: "User-Agent", Value: "curl/8.14.1"}, {Name: "Accept", Value: "*/*"}, {Name: "Content-Type", Value: "application/json"}, {Name: "Authorization", Value: "Bearer " + theDummy}, {Name: "Accept-Encoding", Value: "gzip, deflate, br"}}
	q := ask("GET https://api.test/repos/owner/name/contents/file.txt?ref=main")
	b.ReportAllocs()
	for b.Loop() {
		fields := append(http1.Header(nil), h...)
		q.Header = H1{&fields}
		if g, r := in.Head(b.Context(), q); r != nil || g.Rule == "" {
			b.Fatal(r)
		}
	}
}

func BenchmarkHeadElsewhere(b *testing.B) {
	in := newBench(b, demo())
	h := http1.Header{{Name: "User-Agent", Value: "curl/8.14.1"}, {Name: "Accept", Value: "*/*"}, {Name: "Authorization", Value: "Bearer abcdefghijklmnopqrstuvwxyz0123456789"}}
	q := ask("GET https://elsewhere.test/repos/owner/name/contents/file.txt?ref=main")
	q.Header = H1{&h}
	b.ReportAllocs()
	for b.Loop() {
		if g, r := in.Head(b.Context(), q); r != nil || g != nil {
			b.Fatal(r)
		}
	}
}
