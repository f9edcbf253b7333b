// Package script runs the real fy, as an operator would, through the scripts in
// testdata: every verb, its exit code, what it prints, and that a failure
// leaves nothing behind. What needs a box is skipped, with the reason, where
// this computer cannot make one.
package script

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestScripts(t *testing.T) {
	bin := build(t)
	boxes := canBox(bin)
	if boxes != nil {
		t.Logf("scripts that need a box are skipped: %v", boxes)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			return setup(env, bin)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "box":
				return boxes == nil, nil
			case "root":
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"fy":     fy,
			"within": within,
			"same":   same,
		},
	})
}

// build compiles fy once for all scripts.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "fy")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "foldyard/cmd/fy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build fy: %v\n%s", err, out)
	}
	// Whoever runs it by another uid must be able to read it.
	for dir := filepath.Dir(bin); strings.Contains(dir, "TestScripts"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// canBox makes a box that does nothing and returns why that failed.
func canBox(bin string) error {
	if runtime.GOOS != "linux" {
		return errors.New("the namespace backend is for Linux")
	}
	dir, err := os.MkdirTemp("", "fyscript")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := world{dir: dir, bin: bin}
	if err := w.make(); err != nil {
		return err
	}
	defer w.stop()
	cmd := exec.Command(bin, "run", "--", "true")
	cmd.Dir, cmd.Env = w.repo(), w.env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// world is what a script finds: a project to stand in, a state directory and
// a home beside it, and nothing else of this computer's settings.
type world struct{ dir, bin string }

func (w world) repo() string  { return filepath.Join(w.dir, "repo") }
func (w world) state() string { return filepath.Join(w.dir, "state") }
func (w world) home() string  { return filepath.Join(w.dir, "home") }

func (w world) make() error {
	for _, d := range []string{w.repo(), w.state(), w.home(), filepath.Join(w.dir, "run"), filepath.Join(w.dir, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (w world) env() []string {
	path := filepath.Dir(w.bin) + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
	return []string{
		"PATH=" + path, "HOME=" + w.home(), "FOLDYARD_HOME=" + w.state(), "XDG_RUNTIME_DIR=" + filepath.Join(w.dir, "run"),
		"NO_COLOR=1", "LANG=C.UTF-8", "FY_PROBE_ADDRS=192.0.2.1,2001:db8::1",
	}
}

// stop ends whatever a script left running.
func (w world) stop() {
	for _, verb := range [][]string{{"down"}, {"supervisor", "stop"}} {
		cmd := exec.Command(w.bin, verb...)
		cmd.Dir, cmd.Env = w.repo(), w.env()
		_ = cmd.Run() // there may be nothing to stop
	}
}

func setup(env *testscript.Env, bin string) error {
	// Short, so that sockets fit below it.
	dir, err := os.MkdirTemp("", "fyts")
	if err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	w := world{dir: dir, bin: bin}
	if err := w.make(); err != nil {
		return err
	}
	// The script's files are the project's.
	if err := os.CopyFS(w.repo(), os.DirFS(env.WorkDir)); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(w.repo(), ".tmp")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	env.Cd = w.repo()
	env.Vars = append(env.Vars, w.env()...)
	env.Setenv("W", dir)
	env.Values["world"] = w
	env.Defer(func() {
		w.stop()
		_ = os.RemoveAll(dir) // a leftover in the temporary directory is no failure
	})
	return nil
}

// fy CODE ARGS… runs fy and wants the exit code CODE; stdout and stderr are
// then there for the script's own matchers. With "!" it wants any code but
// CODE.
func fy(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 {
		ts.Fatalf("usage: fy CODE ARGS…")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("fy: %q is no exit code", args[0])
	}
	err = ts.Exec("fy", args[1:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("fy %s: %v", strings.Join(args[1:], " "), err)
	}
	if (got == want) == neg {
		ts.Fatalf("fy %s: exit code %d, want %s%d", strings.Join(args[1:], " "), got, map[bool]string{true: "anything but "}[neg], want)
	}
}

// within SECONDS fy ARGS… repeats a command until it exits 0.
func within(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: within SECONDS COMMAND ARGS…")
	}
	seconds, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("within: %v", err)
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = ts.Exec(args[1], args[2:]...); err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s did not succeed within %d s: %v", strings.Join(args[1:], " "), seconds, err)
		}
		<-tick.C
	}
}

// same FILE… wants each file to have the bytes that it had when same was first
// called for it: nothing half-applied, nothing overwritten.
func same(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		path := ts.MkAbs(name)
		key := "same " + path
		now, err := os.ReadFile(path)
		if err != nil {
			now = []byte("no file: " + filepath.Base(path))
		}
		before := ts.Getenv(key)
		if before == "" {
			ts.Setenv(key, string(now))
			continue
		}
		if (before == string(now)) == neg {
			ts.Fatalf("%s: changed is %v", name, before != string(now))
		}
	}
}
