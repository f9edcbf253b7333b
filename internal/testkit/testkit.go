// Package testkit is what tests of the whole share: a small internet in network
// namespaces of its own (Lab), an operator who runs the real fy in a project of
// a temporary directory (Operator), and skips that are counted. Only tests
// import it; it knows fy from outside, as a program, and no package of ours.
package testkit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Skips counts what could not be shown on this computer, so that a run which
// shows little does not look like one that shows all.
type Skips struct {
	mu  sync.Mutex
	all []string // guarded by mu
}

// Skip ends t and remembers why.
func (s *Skips) Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.all = append(s.all, t.Name()+": "+why)
	s.mu.Unlock()
	t.Skip(why)
}

// Report writes how many tests were skipped, and each with its reason.
func (s *Skips) Report(w io.Writer, suite string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, "%s: %d skipped\n", suite, len(s.all))
	for _, line := range s.all {
		fmt.Fprintf(w, "%s: skipped %s\n", suite, line)
	}
}

// Run runs setup and then the tests of m. done, if not nil, is called at the end.
func Run(m *testing.M, setup func() (done func(), err error)) int {
	done, err := setup()
	if done != nil {
		defer done()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return 1
	}
	return m.Run()
}

// Program copies the program at path into dir, where every user can run it.
func Program(dir, path string) (string, error) {
	if path == "" {
		return "", errors.New("no program is named: run this by make e2e")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // every user
		return "", err
	}
	out := filepath.Join(dir, filepath.Base(path))
	return out, os.WriteFile(out, data, 0o755) //nolint:gosec // every user
}
