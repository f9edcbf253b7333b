package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fake answers what a test needs; any other call panics, which guard must contain.
type fake struct {
	Service
	allowed []RuleRequest
}

func (f *fake) Allow(_ context.Context, q RuleRequest) (Changed, error) {
	if q.Rules[0] == "*" {
		return Changed{}, &Error{Code: CodeBad, Detail: "rule *: too wide", Hint: "fy enforce off"}
	}
	f.allowed = append(f.allowed, q)
	return Changed{Rules: []Grant{{Rule: q.Rules[0], Level: "session"}}, Generation: 7}, nil
}

func (f *fake) Why(_ context.Context, q WhyRequest) (Why, error) {
	return Why{Verdict: "deny", Target: q.Target + " " + q.Method}, nil
}

func (f *fake) Stop(_ context.Context, keep bool) error {
	if keep {
		return nil
	}
	return errors.New("stop: plain error")
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve runs a server on a socket of its own and returns a client.
func serve(t *testing.T, svc Service, peer func(*net.UnixConn) error) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&Server{Service: svc, Log: discard(), Peer: peer}).Serve(ctx, l) }()
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return c
}

func TestClientAndServerAgree(t *testing.T) {
	f := &fake{}
	c := serve(t, f, nil)
	q := RuleRequest{Rules: []string{"a.test"}, Level: "once", TTL: Duration(3 * time.Second), Internal: true, Reason: "why"}
	got, err := c.Allow(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Changed{Rules: []Grant{{Rule: "a.test", Level: "session"}}, Generation: 7}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]RuleRequest{q}, f.allowed); d != "" {
		t.Error(d)
	}
	w, err := c.Why(t.Context(), WhyRequest{Target: "https://a.test/x?y=z&w", Method: "PUT"})
	if err != nil || w.Target != "https://a.test/x?y=z&w PUT" {
		t.Errorf("why = %+v, %v", w, err)
	}
	if err := c.Stop(t.Context(), true); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestErrorsKeepTheirHint(t *testing.T) {
	c := serve(t, &fake{}, nil)
	_, err := c.Allow(t.Context(), RuleRequest{Rules: []string{"*"}})
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	if d := cmp.Diff(&Error{Code: CodeBad, Detail: "rule *: too wide", Hint: "fy enforce off", Status: 400}, e); d != "" {
		t.Error(d)
	}
	if err := c.Stop(t.Context(), false); !errors.As(err, &e) || e.Code != CodeInternal || e.Detail != "stop: plain error" {
		t.Errorf("got %v", err)
	}
}

func TestPanicStaysInItsRequest(t *testing.T) {
	c := serve(t, &fake{}, nil)
	var e *Error
	if _, err := c.Status(t.Context()); !errors.As(err, &e) || e.Code != CodeInternal {
		t.Errorf("got %v", err)
	}
	if _, err := c.Why(t.Context(), WhyRequest{}); err != nil {
		t.Errorf("control: the server still answers: %v", err)
	}
}

func TestBrowserRefused(t *testing.T) {
	h := (&Server{Service: &fake{}, Log: discard()}).Handler()
	do := func(header string) int {
		r := httptest.NewRequest("POST", "/v1/grants", strings.NewReader(`{"rules":["a.test"]}`))
		if header != "" {
			r.Header.Set(header, "http://localhost")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if got := do(""); got != 200 {
		t.Fatalf("control: %d", got)
	}
	for _, header := range []string{"Origin", "Referer", "Sec-Fetch-Site"} {
		if got := do(header); got != http.StatusForbidden {
			t.Errorf("%s: %d, want 403", header, got)
		}
	}
}

func TestBodiesAreStrictAndBounded(t *testing.T) {
	h := (&Server{Service: &fake{}, Log: discard()}).Handler()
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"control":       {`{"rules":["a.test"]}`, 200},
		"unknown field": {`{"rules":["a.test"],"sudo":true}`, 400},
		"trailing data": {`{"rules":["a.test"]}{}`, 400},
		"not json":      {`rules=a.test`, 400},
		"bad duration":  {`{"rules":["a.test"],"ttl":"soon"}`, 400},
		"over bound":    {`{"rules":["` + strings.Repeat("a", MaxBody) + `"]}`, 400},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/grants", strings.NewReader(c.body)))
		if w.Code != c.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.want)
		}
	}
}

func TestRefusedPeerGetsNoAnswer(t *testing.T) {
	svc := &fake{}
	var refuse atomic.Bool
	refuse.Store(true)
	c := serve(t, svc, func(*net.UnixConn) error {
		if refuse.Load() {
			return errors.New("not ours")
		}
		return nil
	})
	conn, err := net.Dial("unix", c.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /v1/grants HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{\"rules\":[\"a.test\"]}") // may already be closed
	b, _ := io.ReadAll(conn)
	if len(b) != 0 || len(svc.allowed) != 0 {
		t.Errorf("answered %q, granted %v", b, svc.allowed)
	}
	refuse.Store(false)
	if _, err := c.Allow(t.Context(), RuleRequest{Rules: []string{"a.test"}}); err != nil {
		t.Errorf("control: %v", err)
	}
}

// A supervisor that is killed leaves connections behind that it never read from.
func TestOneThatIsKilledDoesNotRun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	c := NewClient(socket)
	defer c.Close()
	go func() {
		_, err := c.Status(t.Context())
		asked <- err
	}()
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := conn.Read(b[:]); err != nil { // the rest stays unread
		t.Fatal(err)
	}
	_ = conn.Close()
	_ = l.Close()
	if err := <-asked; !NotRunning(err) {
		t.Errorf("NotRunning(%v) = false", err)
	}
}

func TestNotRunning(t *testing.T) {
	_, err := NewClient(filepath.Join(t.TempDir(), "none.sock")).Status(t.Context())
	if !NotRunning(err) {
		t.Errorf("NotRunning(%v) = false", err)
	}
	if NotRunning(&Error{Code: CodeInternal}) {
		t.Error("an answer counts as not running")
	}
}

func TestDurationText(t *testing.T) {
	b, err := json.Marshal(LearnRequest{For: Duration(90 * time.Second)})
	if err != nil || !bytes.Equal(b, []byte(`{"for":"1m30s"}`)) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestStaleSupervisorDoesNothing(t *testing.T) {
	f := &fake{}
	h := (&Server{Service: f, Log: discard(), Binary: "old"}).Handler()
	do := func(path, binary string) int {
		r := httptest.NewRequest("POST", path, strings.NewReader(`{}`))
		if path == "/v1/grants" {
			r = httptest.NewRequest("POST", path, strings.NewReader(`{"rules":["a.test"]}`))
		}
		r.Header.Set("Foldyard-Binary", binary)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if got := do("/v1/grants", "new"); got != http.StatusConflict || len(f.allowed) != 0 {
		t.Errorf("stale: %d, granted %v", got, f.allowed)
	}
	if got := do("/v1/grants", "old"); got != 200 {
		t.Errorf("control: %d", got)
	}
	if got := do("/v1/stop", "new"); got != 500 { // the fake's own answer: it was asked
		t.Errorf("a stale supervisor must still stop: %d", got)
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"a.test:443": "a.test:443", "GET a.test/*": "'GET a.test/*'", "$(id)": "'$(id)'", "": "''", "a'b": `'a'\''b'`} {
		if got := ShellQuote(in); got != want {
			t.Errorf("ShellQuote(%q) = %s, want %s", in, got, want)
		}
	}
}
