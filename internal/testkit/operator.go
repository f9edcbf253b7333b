package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// User is somebody who runs fy.
type User struct {
	Name     string
	UID, GID int
}

// Users returns who runs fy in a test: the caller, and if that is root then an
// ordinary user too: who FY_E2E_USER names, else nobody.
func Users() ([]User, error) {
	self := User{"self", os.Geteuid(), os.Getegid()}
	if self.UID != 0 {
		return []User{self}, nil
	}
	name := os.Getenv("FY_E2E_USER")
	if name == "" {
		name = "nobody"
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	return []User{{name, uid, gid}, {"root", 0, 0}}, err
}

// Operator is somebody with a project, a home and a FOLDYARD_HOME in a
// temporary directory.
type Operator struct {
	User  User
	Dir   string // of everything; 0755 and the user's
	Repo  string
	State string   // FOLDYARD_HOME
	Flags []string // of fy run, for Run and Clean
	Hide  []string // names that no output of a test may show

	fy string
}

// NewOperator makes an operator, whose fy is the program at that path. What
// they leave running is stopped when t ends.
func NewOperator(t testing.TB, fy string, u User) *Operator {
	t.Helper()
	dir, err := os.MkdirTemp("", "fye") // short, so that sockets fit below it
	if err != nil {
		t.Fatal(err)
	}
	o := &Operator{User: u, Dir: dir, Repo: filepath.Join(dir, "repo"), State: filepath.Join(dir, "state"), fy: fy}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user runs fy below it
		t.Fatal(err)
	}
	if err := os.Chown(dir, u.UID, u.GID); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{o.Repo, o.State, o.home(), filepath.Join(dir, "run")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, u.UID, u.GID); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, verb := range [][]string{{"down"}, {"supervisor", "stop"}} {
			o.FY(context.Background(), verb...) // there may be nothing to stop
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove what the operator left: %v", err)
		}
	})
	return o
}

func (o *Operator) home() string { return filepath.Join(o.Dir, "home") }

// Write makes a file of the operator's; name is relative to Dir.
func (o *Operator) Write(t testing.TB, name string, mode os.FileMode, data []byte) {
	t.Helper()
	path := filepath.Join(o.Dir, name)
	for dir := filepath.Dir(path); dir != o.Dir; dir = filepath.Dir(dir) {
		defer func() { _ = os.Chown(dir, o.User.UID, o.User.GID) }() // a box that cannot write there will say so
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a repo
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, o.User.UID, o.User.GID); err != nil {
		t.Fatal(err)
	}
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

func (r Result) String() string {
	return fmt.Sprintf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
}

// limit is how long one command may take.
const limit = 4 * time.Minute

// Command prepares a program that runs as the operator, in the repo.
func (o *Operator) Command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.WaitDelay = o.Repo, 5*time.Second
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin", "LANG=C.UTF-8", "NO_COLOR=1",
		"HOME=" + o.home(), "FOLDYARD_HOME=" + o.State, "XDG_RUNTIME_DIR=" + filepath.Join(o.Dir, "run"),
		"FY_PROBE_ADDRS=192.0.2.1,2001:db8::1",
	}
	become(cmd, o.User)
	return cmd
}

// FY runs one fy command. A command that does not end has exit code -1.
func (o *Operator) FY(ctx context.Context, args ...string) Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := o.Command(ctx, append([]string{o.fy}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			fmt.Fprintln(&errs, err)
		}
	}
	if ctx.Err() != nil {
		fmt.Fprintf(&errs, "it did not end; the supervisor says:\n%s", o.diary())
	}
	return Result{o.hide(out.String()), o.hide(errs.String()), cmd.ProcessState.ExitCode()}
}

// diary returns what the supervisor wrote for the operator.
func (o *Operator) diary() string {
	var out strings.Builder
	logs, _ := filepath.Glob(filepath.Join(o.State, "projects", "*", "supervisor.log")) // the pattern is good
	for _, l := range logs {
		text, _ := os.ReadFile(l) // what cannot be read is not shown
		out.Write(text[max(0, len(text)-4000):])
	}
	return out.String()
}

func (o *Operator) hide(s string) string {
	for i, name := range o.Hide {
		s = strings.ReplaceAll(s, name, fmt.Sprintf("registry%d.invalid", i))
	}
	return s
}

// show undoes hide.
func (o *Operator) show(s string) string {
	for i, name := range o.Hide {
		s = strings.ReplaceAll(s, fmt.Sprintf("registry%d.invalid", i), name)
	}
	return s
}

// Must runs one fy command that must succeed, and returns what it printed.
func (o *Operator) Must(t testing.TB, args ...string) string {
	t.Helper()
	r := o.FY(t.Context(), args...)
	if r.Code != 0 {
		t.Fatalf("fy %s: %v", strings.Join(args, " "), r)
	}
	return r.Stdout
}

// fix is the command that a refusal names.
var fix = regexp.MustCompile(`\bfy allow ([A-Za-z0-9.:_\[\]-]+)`)

// Run runs argv in a box of its own until it succeeds, and after each failure
// grants what the refusals of that run named, and nothing else, as an operator
// would who agrees. It returns the output of the run that succeeded, and what
// was granted. It is an error if the first run was refused nothing: then the
// test would show nothing.
func (o *Operator) Run(t testing.TB, argv ...string) (out string, granted []string) {
	t.Helper()
	const rounds = 8
	for range rounds {
		r := o.FY(t.Context(), slices.Concat([]string{"run"}, o.Flags, []string{"--"}, argv)...)
		if r.Code == 0 {
			if len(granted) == 0 {
				t.Fatalf("%s: nothing was granted, and it worked: %v", argv[0], r)
			}
			return r.Stdout, granted
		}
		var named []string
		for _, m := range fix.FindAllStringSubmatch(r.Stdout+r.Stderr, -1) {
			if !slices.Contains(granted, m[1]) && !slices.Contains(named, m[1]) {
				named = append(named, m[1])
			}
		}
		if len(named) == 0 {
			t.Fatalf("%s fails with %v granted, and no refusal says why: %v", argv[0], granted, r)
		}
		for _, rule := range named {
			o.Must(t, "allow", o.show(rule))
		}
		granted = append(granted, named...)
	}
	t.Fatalf("%s: still refused after %d rounds, with %v granted", argv[0], rounds, granted)
	return "", nil
}
