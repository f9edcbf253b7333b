package namespace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
