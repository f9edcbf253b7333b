package namespace

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gitRepo makes a repo with a commit in it.
func gitRepo(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	for _, args := range []string{"init -q", "-c user.name=n -c user.email=n@example.com commit -q --allow-empty -m first"} {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, strings.Fields(args)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v %s", args, err, out)
		}
	}
}

func TestMarkersLeaveGitAsItWasAndGoWithTheLastBox(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	gitRepo(t, dir)
	mark := filepath.Join(dir, ".git/commondir")
	a, spec := testBox(t, func(s *Spec) { s.Repo = dir })
	b, _ := testBox(t, func(s *Spec) { s.Repo = dir })
	if got, err := os.ReadFile(mark); err != nil || string(got) != ownCommonDir {
		t.Fatalf("the marker holds %q %v", got, err)
	}
	out, code := in(t, a, spec, "git -c safe.directory='*' -c user.name=n -c user.email=n@example.com commit -q --allow-empty -m second && git -c safe.directory='*' log --format=%s && git -c safe.directory='*' worktree list | wc -l")
	if code != 0 || out != "second\nfirst\n1\n" {
		t.Errorf("git in the box: %d %q", code, out)
	}
	cmd := exec.CommandContext(t.Context(), "git", "-C", dir, "-c", "safe.directory=*", "log", "--format=%s")
	if got, err := cmd.CombinedOutput(); err != nil || string(got) != "second\nfirst\n" {
		t.Errorf("git on the host: %v %q", err, got)
	}
	end := func(c *Client) {
		f, err := c.Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		waitGone(t, "the keeper", f.Keeper)
	}
	end(a)
	if _, err := os.Stat(mark); err != nil {
		t.Fatal("the marker went while another box needs it")
	}
	if out, _ := in(t, b, spec, "(echo ../evil > .git/commondir) 2>/dev/null && echo wrote; rm -f .git/commondir 2>/dev/null && echo removed; mv .git/commondir .git/x 2>/dev/null && echo moved; echo tried"); out != "tried\n" {
		t.Errorf("the other box: %q", out)
	}
	end(b)
	if _, err := os.Stat(mark); !os.IsNotExist(err) {
		t.Errorf("the marker stays: %v", err)
	}
}

func TestWhatGitIncludesIsReadOnly(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	gitRepo(t, dir)
	conf := "[include]\n\tpath = ../conf/there\n[includeIf \"gitdir:/\"]\n\tpath = ../conf/missing\n[core]\n\thooksPath = tools/hooks\n"
	for name, text := range map[string]string{".git/config": conf, "conf/there": "", "conf/other": ""} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c, spec := testBox(t, func(s *Spec) { s.Repo = dir })
	out, _ := in(t, c, spec, "for f in conf/there conf/missing tools/hooks/x conf/other; do (echo x > $f) 2>/dev/null && echo wrote $f; done; mv conf conf2 2>/dev/null && echo moved")
	if out != "wrote conf/other\n" {
		t.Errorf("got %q, want only the control written", out)
	}
	f, err := c.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitGone(t, "the keeper", f.Keeper)
	if _, err := os.Stat(filepath.Join(dir, "conf/missing")); !os.IsNotExist(err) {
		t.Errorf("what was made in its place stays: %v", err)
	}
}

func TestBusyKeeperIsEndedAllTheSame(t *testing.T) {
	c, _ := testBox(t, nil)
	f, err := c.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	links, err := c.Adopt(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	if err := unix.Kill(f.Keeper, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C { // each of its threads stops in its own time
		stats, err := filepath.Glob("/proc/" + strconv.Itoa(f.Keeper) + "/task/*/stat")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(stats, func(p string) bool { b, _ := os.ReadFile(p); return !strings.Contains(string(b), ") T ") }) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Stop(ctx); err == nil {
		t.Fatal("control: a stopped keeper answered")
	}
	if err := links.Kill(); err != nil {
		t.Fatal(err)
	}
	<-links.Gone()
	waitGone(t, "the keeper", f.Keeper)
	waitGone(t, "the agent", f.Pid)
}

func TestPlantedTreesMakeNoBoxStartSlowly(t *testing.T) {
	dir := t.TempDir()
	p := dir
	for range maxDepth + 2 {
		p = filepath.Join(p, "d")
	}
	if err := os.MkdirAll(p, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := sockets(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("a deep tree: %v", err)
	}
	many := t.TempDir()
	for i := range maxCovered {
		if err := unix.Mkfifo(filepath.Join(many, strconv.Itoa(i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := sockets(t.Context(), many); err != nil || len(got) != maxCovered {
		t.Errorf("control: %d %v", len(got), err)
	}
	if err := unix.Mkfifo(filepath.Join(many, "more"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sockets(t.Context(), many); err == nil || !strings.Contains(err.Error(), "find .") {
		t.Errorf("too many FIFOs: %v", err)
	}
}

// A box that starts while another is making or taking away the marker, or after a keeper died between the two, finds it whole.
func TestMarkerIsWholeWhoeverIsBesideIt(t *testing.T) {
	for before, want := range map[string]struct {
		after string
		ours  bool
	}{
		"":                    {ownCommonDir, true}, // half made
		".":                   {ownCommonDir, true},
		ownCommonDir:          {ownCommonDir, true},
		"../elsewhere\n":      {"../elsewhere\n", false}, // somebody's own stays
		ownCommonDir + "more": {ownCommonDir + "more", false},
	} {
		dir := t.TempDir()
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, "commondir")
		if err := os.WriteFile(p, []byte(before), 0o644); err != nil {
			t.Fatal(err)
		}
		f, gone, err := openMark(d, "commondir", ownCommonDir)
		if err != nil || gone || (f != nil) != want.ours {
			t.Errorf("%q: %v %v %v, want ours %v", before, f, gone, err, want.ours)
		}
		if got, err := os.ReadFile(p); err != nil || string(got) != want.after {
			t.Errorf("%q became %q %v, want %q", before, got, err, want.after)
		}
		if f != nil {
			f.Close()
		}
		d.Close()
	}
	dir := t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := os.Create(filepath.Join(dir, "commondir"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, gone, err := openMark(d, "commondir", ownCommonDir); !gone || err != nil {
		t.Errorf("one that is being taken away: %v %v, want it tried again", gone, err)
	}
}
