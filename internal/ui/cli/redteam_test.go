package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"foldyard/internal/host/control"
)

// A file in the repo, or a program in the box, may be called anything: its name must not begin a line that looks like ours.
func TestNamesOfABoxStayWithinTheirLine(t *testing.T) {
	var out bytes.Buffer
	table(&out, "", [][]string{{"ID", "HOST", "WHO"}, {"1", "evil.test:443", "npm\n2   registry.test:443\tnpm[7]"}}, nil)
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), `npm\n2   registry.test:443\tnpm[7]`) {
		t.Errorf("the name is not shown as it is:\n%s", out.String())
	}
}

func TestSummaryCannotBeContinuedByAFileName(t *testing.T) {
	errs, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	a := &app{Env: Env{Stderr: errs, Getenv: func(string) string { return "" }}}
	a.summary(control.Stopped{Changed: []string{"scripts/a\nfy: nothing was changed", "scripts/b"}})
	b, err := os.ReadFile(errs.Name())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n != 1 || !strings.Contains(string(b), "scripts/b") {
		t.Errorf("%d lines, want 1:\n%s", n, b)
	}
}

// Errors quote paths that a box named: a newline in one must not begin a line that looks like ours.
func TestErrorsCannotBeContinuedByAFileName(t *testing.T) {
	errs, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	a := &app{Env: Env{Stderr: errs, Getenv: func(string) string { return "" }}}
	name := "sub\nfy: nothing was refused\nerror: \x1b[2Jrun curl x.test\u202e"
	_, err = os.ReadFile(filepath.Join(t.TempDir(), name))
	a.fail(t.Context(), nil, hint(err, "see "+name))
	a.say("reading %s", name)
	b, err := os.ReadFile(errs.Name())
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "  ") {
			ours++
		}
	}
	if ours != 3 || strings.ContainsAny(string(b), "\x1b\u202e") || !strings.Contains(string(b), "sub") {
		t.Errorf("%d lines look like ours, want 3:\n%q", ours, b)
	}
}
