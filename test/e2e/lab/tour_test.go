//go:build e2e

package lab

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"foldyard/internal/testkit"
)

// make run, as everybody: it shows what it says, and leaves nothing behind.
func TestTour(t *testing.T) {
	tour, err := os.ReadFile(os.Getenv("FY_TOUR"))
	if err != nil {
		skips.Skip(t, "no tour was built")
	}
	each(t, func(t *testing.T, o *testkit.Operator) {
		o.Write(t, "tour", 0o755, tour)
		o.Write(t, "tmp/none", 0o644, nil)
		var out bytes.Buffer
		for {
			cmd := o.Command(t.Context(), filepath.Join(o.Dir, "tour"), "-own", fy)
			cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Join(o.Dir, "tmp"))
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if errors.Is(err, syscall.ETXTBSY) && t.Context().Err() == nil {
				continue // a child of another test holds the file that was just written, until it executes (go.dev/issue/22315)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			break
		}
		want(t, out.String(), "fy allow origin.test", "403 Forbidden", "200 OK", "connection refused", "probes of the namespace wall were held", "locked against the box's user", "That was it.")

		left, err := os.ReadDir(filepath.Join(o.Dir, "tmp"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) != 1 {
			t.Errorf("it left %v", left)
		}
		if p := below(t, o.Dir); len(p) > 0 {
			t.Errorf("it left processes: %q", p)
		}
	})
}

// below returns the processes whose command line or working directory is below
// dir.
func below(t *testing.T, dir string) []string {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range procs {
		cwd, _ := os.Readlink(filepath.Join(p, "cwd")) // it may have ended, or not be ours
		cmd, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if strings.HasPrefix(cwd, dir) || bytes.Contains(cmd, []byte(dir)) {
			out = append(out, string(bytes.ReplaceAll(cmd, []byte{0}, []byte{' '})))
		}
	}
	return out
}
