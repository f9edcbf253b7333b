package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"foldyard/internal/host/state"
)

// The test binary is also the program that is launched.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "__fake" {
		os.Exit(fakeSupervisor(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

// fakeSupervisor is what a launched process does, by name; dir holds its socket and lock.
func fakeSupervisor(what, dir string) int {
	ready := ReadyPipe()
	switch what {
	case "die":
		return 3
	case "fail":
		ready.Tell(errors.New("read config: line 3\nline 4"))
		return 1
	}
	lock, err := state.TryLock(filepath.Join(dir, "lock"))
	if errors.Is(err, state.ErrLocked) {
		ready.Tell(ErrTaken)
		return 0
	}
	if err != nil {
		ready.Tell(err)
		return 1
	}
	defer lock.Unlock()
	if what == "slow" {
		t := time.NewTimer(100 * time.Millisecond)
		<-t.C
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "sock"), Net: "unix"})
	if err != nil {
		ready.Tell(err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	svc := &stopping{pid: os.Getpid(), stop: cancel}
	ready.Tell(nil)
	binary := "new"
	if what == "old" {
		binary = "old"
	}
	if (&Server{Service: svc, Log: discard(), Binary: binary}).Serve(ctx, l) != nil {
		return 1
	}
	return 0
}

type stopping struct {
	Service
	pid  int
	stop func()
}

func (s *stopping) Status(context.Context) (Status, error) {
	return Status{Supervisor: Supervisor{PID: s.pid}}, nil
}
func (s *stopping) Why(context.Context, WhyRequest) (Why, error) {
	return Why{Reason: fmt.Sprint(s.pid)}, nil
}
func (s *stopping) Stop(context.Context, bool) error { s.stop(); return nil }

func launchOf(t *testing.T, dir, what string) Launch {
	t.Helper()
	l := Launch{
		Program: os.Args[0], Args: []string{"__fake", what, dir}, Binary: "new",
		Socket: filepath.Join(dir, "sock"), Lock: filepath.Join(dir, "lock"), Log: filepath.Join(dir, "log"),
	}
	t.Cleanup(func() {
		if err := l.Stop(context.Background(), false); err != nil && !NotRunning(err) {
			t.Errorf("stop: %v", err)
		}
	})
	return l
}

func TestLaunchStartsOnceAndStops(t *testing.T) {
	l := launchOf(t, t.TempDir(), "serve")
	prepared := 0
	l.Prepare = func() error { prepared++; return nil }
	c, started, err := l.Connect(t.Context())
	if err != nil || !started {
		t.Fatalf("first: %v, %v", started, err)
	}
	first, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	c, started, err = l.Connect(t.Context())
	if err != nil || started {
		t.Fatalf("second: %v, %v", started, err)
	}
	again, err := c.Status(t.Context())
	c.Close()
	if err != nil || again.Supervisor.PID != first.Supervisor.PID || prepared != 1 {
		t.Errorf("pid %d then %d, prepared %d, %v", first.Supervisor.PID, again.Supervisor.PID, prepared, err)
	}
	if err := l.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := l.Stop(t.Context(), false); !NotRunning(err) {
		t.Errorf("stopped, and %v", err)
	}
}

func TestLoserOfTheStartRaceUsesTheWinner(t *testing.T) {
	dir := t.TempDir()
	l := launchOf(t, dir, "slow")
	type got struct {
		pid int
		err error
	}
	ch := make(chan got)
	for range 4 {
		go func() {
			c, _, err := l.Connect(context.Background())
			if err != nil {
				ch <- got{0, err}
				return
			}
			defer c.Close()
			st, err := c.Status(context.Background())
			ch <- got{st.Supervisor.PID, err}
		}()
	}
	pids := map[int]bool{}
	for range 4 {
		g := <-ch
		if g.err != nil {
			t.Error(g.err)
		}
		pids[g.pid] = true
	}
	if len(pids) != 1 {
		t.Errorf("supervisors %v, want one", pids)
	}
}

func TestStaleSupervisorIsReplacedOnUse(t *testing.T) {
	dir := t.TempDir()
	old := launchOf(t, dir, "old")
	old.Binary = ""
	c, _, err := old.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Status(t.Context())
	c.Close()
	if err != nil {
		t.Fatal(err)
	}
	l := launchOf(t, dir, "serve")
	c, started, err := l.Connect(t.Context())
	if err != nil || started {
		t.Fatalf("connect: %v, %v", started, err)
	}
	defer c.Close()
	w, err := c.Why(t.Context(), WhyRequest{})
	if err != nil || w.Reason == fmt.Sprint(before.Supervisor.PID) {
		t.Errorf("answered by %q, the old one was %d: %v", w.Reason, before.Supervisor.PID, err)
	}
}

func TestFailedStartSaysWhy(t *testing.T) {
	for what, want := range map[string]string{"fail": "read config: line 3; line 4", "die": "without a word"} {
		l := launchOf(t, t.TempDir(), what)
		if _, _, err := l.Connect(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	l := launchOf(t, t.TempDir(), "serve")
	l.Prepare = func() error { return errors.New("not prepared") }
	if _, _, err := l.Connect(t.Context()); err == nil || err.Error() != "not prepared" {
		t.Errorf("got %v", err)
	}
}

func TestLogIsNotWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	l := launchOf(t, dir, "serve")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), l.Log); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Connect(t.Context()); err == nil {
		t.Error("a link was followed")
	}
	if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("and written to")
	}
}
