//go:build e2e

// Package lab runs real clients in real boxes, on a small internet of our own:
// with nothing granted but what the refusals named, and with no proxy
// variables. FY_BIN is the fy to test; `make e2e` sets it.
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"foldyard/internal/testkit"
)

var (
	skips    testkit.Skips
	internet *testkit.Internet
	fy       string // a copy that every user can run
	users    []testkit.User
)

func TestMain(m *testing.M) {
	os.Exit(testkit.Main(m, setup))
}

// setup makes the world that the tests share.
func setup() (func(), error) {
	dir, err := os.MkdirTemp("", "fylab")
	if err != nil {
		return nil, err
	}
	done := func() {
		skips.Report(os.Stdout, "e2e/lab")
		_ = os.RemoveAll(dir) // the tests are over
	}
	if fy, err = testkit.Program(dir, os.Getenv("FY_BIN")); err != nil {
		return done, err
	}
	if users, err = testkit.Users(); err != nil {
		return done, err
	}
	l, err := testkit.Open()
	if err != nil {
		return done, err
	}
	sites, err := allSites(dir)
	if err != nil {
		return done, err
	}
	internet, err = testkit.NewInternet(l, sites)
	return done, err
}

// each runs f for every user who runs fy.
func each(t *testing.T, f func(t *testing.T, o *testkit.Operator)) {
	t.Helper()
	for _, u := range users {
		t.Run(u.Name, func(t *testing.T) {
			t.Parallel()
			o := operator(t, u)
			f(t, o)
			if got := internet.Stray(); len(got) > 0 {
				t.Errorf("it got out: %v", got)
			}
		})
	}
}

// operator is somebody whose fy knows the internet's resolver and CA, as one
// tells it of a company's.
func operator(t *testing.T, u testkit.User) *testkit.Operator {
	t.Helper()
	o := testkit.NewOperator(t, fy, u)
	o.Write(t, "state/internet.pem", 0o600, internet.CA)
	o.Write(t, "state/config.toml", 0o600, fmt.Appendf(nil, "[upstream]\nresolver = %q\nca = [\"internet.pem\"]\n", testkit.Resolver))
	return o
}

// need skips t where a client is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		path := filepath.Join("/usr/bin", p)
		if p == "go" {
			path = "/usr/local/go/bin/go"
		}
		if _, err := os.Stat(path); err != nil {
			skips.Skip(t, "no %s in the system's directories, which are all that a box sees", p)
		}
	}
}

// want fails t unless out has every one of lines.
func want(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(out, l) {
			t.Errorf("no %q in:\n%s", l, out)
		}
	}
}

// only fails t unless host is all that had to be granted.
func only(t *testing.T, granted []string, host string) {
	t.Helper()
	if len(granted) != 1 || granted[0] != host {
		t.Errorf("granted %v, want %s alone", granted, host)
	}
}

// shell is a client that is a script.
func shell(script string) []string { return []string{"bash", "-ec", script} }

// host runs a program on the host.
func host(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}
