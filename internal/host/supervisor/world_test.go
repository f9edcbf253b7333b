package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/capture"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == container.DialVerb { // as in a box's container
		os.Exit(container.Connect(os.Args[2], os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(m)
}

// clock is a time that a test sets.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// options are those of a project of its own. adopted, unless empty, is its adopted foldyard.toml.
func options(t *testing.T, now func() time.Time, adopted string) Options {
	t.Helper()
	dir := t.TempDir()
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	home, repo := filepath.Join(dir, "state"), filepath.Join(dir, "repo")
	for _, d := range []string{home, repo} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	getenv := func(name string) string {
		return map[string]string{"FOLDYARD_HOME": home, "HOME": filepath.Join(dir, "nobody")}[name]
	}
	l, err := state.NewLayout(getenv)
	if err != nil {
		t.Fatal(err)
	}
	h := config.Host{Layout: l, Getenv: getenv, GOOS: runtime.GOOS}
	if adopted != "" {
		if err := os.WriteFile(filepath.Join(repo, config.FileName), []byte(adopted), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := h.Resolve(repo)
	if err != nil {
		t.Fatal(err)
	}
	if adopted != "" {
		p, err := h.Propose(c)
		if err == nil {
			c, err = p.Adopt(now(), false)
		}
		if err != nil {
			t.Fatal(err)
		}
	} else if err := h.Prepare(c, now()); err != nil {
		t.Fatal(err)
	}
	if err := c.Project.Ensure(); err != nil {
		t.Fatal(err)
	}
	return Options{
		Host: h, Project: c.Project, Dir: repo, Version: "test", Program: os.Args[0],
		Getenv: getenv, Now: now, Log: slog.New(slog.DiscardHandler), IdleStop: idleStop,
	}
}

// start opens a supervisor that serves no box and no socket.
func start(t *testing.T, opt Options) *Supervisor {
	t.Helper()
	s, err := open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	s.quit = func() {}
	return s
}

// world is a supervisor with a clock of its own.
func world(t *testing.T, adopted string) (*Supervisor, *clock) {
	t.Helper()
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	s := start(t, options(t, c.now, adopted))
	t.Cleanup(s.close)
	return s, c
}

// verdict asks why, as the operator would.
func verdict(t *testing.T, s *Supervisor, target string) string {
	t.Helper()
	w, err := s.Why(context.Background(), control.WhyRequest{Target: target})
	if err != nil {
		t.Fatalf("why %s: %v", target, err)
	}
	return w.Verdict
}

func code(err error) string {
	if e, ok := errors.AsType[*control.Error](err); ok {
		return e.Code
	}
	if err != nil {
		return "untyped: " + err.Error()
	}
	return ""
}

func denied(host string, port uint16, reason string) *capture.Record {
	return &capture.Record{Box: "b", Via: capture.ViaRedirect, Host: host, Port: port, Verdict: capture.VerdictDeny, Reason: reason}
}
