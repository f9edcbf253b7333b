package supervisor

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// repoWith makes a repo of files; a name that ends in / is a directory, a text that begins with -> a link.
func repoWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch to, link := strings.CutPrefix(text, "->"); {
		case link:
			err = os.Symlink(to, p)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
		default:
			err = os.WriteFile(p, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func held(t *testing.T, dir string, writable ...string) *repoGuard {
	t.Helper()
	g, err := guardRepo(dir, writable)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// What decides what git on the host executes, and what its other tools do, is read-only in a machine's box too; what git would obey and
// is missing is there first.
func TestGuardedPathsOfTheRepo(t *testing.T) {
	dir := repoWith(t, map[string]string{
		".git/HEAD": "", ".git/config": "", ".vscode/": "", ".envrc": "x",
		".git/modules/lib/HEAD": "", ".git/modules/lib/config": "", ".git/modules/a/b/HEAD": "",
		".git/worktrees/w/commondir": "../..", ".git/worktrees/w/gitdir": "/x",
	})
	g := held(t, dir)
	want := []string{
		".envrc", ".git/commondir", ".git/config", ".git/hooks", ".git/info",
		".git/modules/a/b/commondir", ".git/modules/a/b/hooks", ".git/modules/a/b/info",
		".git/modules/lib/commondir", ".git/modules/lib/config", ".git/modules/lib/hooks", ".git/modules/lib/info",
		".git/worktrees/w/commondir", ".git/worktrees/w/gitdir", ".vscode",
	}
	if got := slices.Sorted(slices.Values(g.paths)); !slices.Equal(got, want) {
		t.Errorf("guarded %q, want %q", got, want)
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".git/commondir")); err != nil || string(b) != ".\n" {
		t.Errorf("commondir is %q, %v", b, err)
	}
	g.release(true)
	if _, err := os.Lstat(filepath.Join(dir, ".git/commondir")); !os.IsNotExist(err) {
		t.Errorf("a file of ours stays: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".git/worktrees/w/commondir")); err != nil || string(b) != "../.." {
		t.Errorf("somebody's own is %q, %v", b, err)
	}
	g = held(t, dir, ".git/hooks", ".envrc")
	if slices.Contains(g.paths, ".git/hooks") || slices.Contains(g.paths, ".envrc") || !slices.Contains(g.paths, ".git/config") {
		t.Errorf("config.toml opened two, and %q are guarded", g.paths)
	}
	g.release(true)
}

// Where .git/config leads git elsewhere in the repo, that is read-only too, and made where it is missing.
func TestWhatGitIsLedToIsGuarded(t *testing.T) {
	dir := repoWith(t, map[string]string{
		".git/HEAD":   "",
		".git/config": "[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../shared/gitconfig\n[include]\n\tpath = /etc/passwd\n[core]\n\thooksPath = ../out\n",
	})
	g := held(t, dir)
	for _, p := range []string{"tools/hooks", "shared/gitconfig"} {
		if !slices.Contains(g.paths, p) {
			t.Errorf("%s is not among %q", p, g.paths)
		}
	}
	for _, p := range g.paths {
		if !filepath.IsLocal(p) {
			t.Errorf("%s is not in the repo", p)
		}
	}
	g.release(true)
	if _, err := os.Lstat(filepath.Join(dir, "shared/gitconfig")); !os.IsNotExist(err) {
		t.Errorf("a file of ours stays: %v", err)
	}
	g = held(t, dir, "tools")
	if slices.Contains(g.paths, "tools/hooks") {
		t.Error("config.toml opened it")
	}
	g.release(true)
}

// A directory of hooks that is guarded anyway, as husky has it, is mounted once: Podman refuses to mount a place twice.
func TestNoPathIsGuardedTwice(t *testing.T) {
	g := held(t, repoWith(t, map[string]string{".git/HEAD": "", ".husky/": "", ".git/config": "[core]\n\thooksPath = .husky\n\thooksPath = .husky\n[include]\n\tpath = ../.envrc\n"}))
	defer g.release(true)
	for _, p := range []string{".husky", ".envrc"} {
		n := 0
		for _, got := range g.paths {
			if got == p {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is guarded %d times: %q", p, n, g.paths)
		}
	}
}

// What an earlier box left in .git/modules, which is its own to write, does not take a submodule's protection away from the next box.
func TestSubmodulesAreHeldWhateverABoxLeft(t *testing.T) {
	for name, left := range map[string]map[string]string{
		"nothing":               {".git/modules/group/sub/HEAD": ""},
		"HEAD is gone":          {},
		"its parent has a HEAD": {".git/modules/group/sub/HEAD": "", ".git/modules/group/HEAD": ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{
				".git/HEAD": "", ".git/config": "[submodule \"group/sub\"]\n\turl = x\n",
				".git/modules/group/sub/config": "[submodule \"in\"]\n\turl = x\n", ".git/modules/group/sub/modules/in/config": "",
			}
			maps.Copy(files, left)
			g := held(t, repoWith(t, files))
			defer g.release(true)
			for _, p := range []string{"config", "hooks", "modules/in/config", "modules/in/hooks"} {
				if p = ".git/modules/group/sub/" + p; !slices.Contains(g.paths, p) {
					t.Errorf("%s is not among %q", p, g.paths)
				}
			}
			if n := len(slices.Compact(slices.Sorted(slices.Values(g.paths)))); n != len(g.paths) {
				t.Errorf("a path comes twice: %q", g.paths)
			}
		})
	}
}

// A file of ours stays as long as one box needs it, and while no box of this process does: its supervisor may be starting again.
func TestFileOfOursIsTakenAwayByTheLastBox(t *testing.T) {
	dir := repoWith(t, map[string]string{".git/HEAD": "", ".git/config": "[extensions]\nworktreeConfig = true\n"})
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, ".git", name))
		return err == nil
	}
	first, second := held(t, dir), held(t, dir)
	if !there("commondir") || !there("config.worktree") {
		t.Error("control: they were not made")
	}
	first.release(true)
	if !there("commondir") {
		t.Error("another box needs it, and it is gone")
	}
	second.release(false)
	if !there("commondir") {
		t.Error("the box goes on, and it is gone")
	}
	held(t, dir).release(true)
	if there("commondir") || there("config.worktree") {
		t.Error("it stays after the last box")
	}
}

// Git keeps the submodules of a linked worktree, and the worktrees of a submodule, in git directories of their own.
func TestSubmodulesOfWorktreesAreHeld(t *testing.T) {
	g := held(t, repoWith(t, map[string]string{
		".git/HEAD": "", ".git/config": "[submodule \"sub\"]\n\turl = x\n", ".git/worktrees/w/gitdir": "/x",
		".git/worktrees/w/modules/sub/config": "", ".git/worktrees/w/modules/other/HEAD": "",
		".git/modules/lib/HEAD": "", ".git/modules/lib/config": "[extensions]\nworktreeConfig = true\n", ".git/modules/lib/worktrees/v/gitdir": "/y",
	}))
	defer g.release(true)
	for _, p := range []string{
		".git/worktrees/w/modules/sub/config", ".git/worktrees/w/modules/sub/hooks", ".git/worktrees/w/modules/other/hooks",
		".git/modules/lib/worktrees/v/gitdir", ".git/modules/lib/worktrees/v/config.worktree",
	} {
		if !slices.Contains(g.paths, p) {
			t.Errorf("%s is not among %q", p, g.paths)
		}
	}
}

// What no mount can hold makes no box, unless the operator leaves it open: a link that is guarded or on the way there, and what is neither
// file nor directory. Nothing is made through it.
func TestPathThatCannotBeHeldIsRefused(t *testing.T) {
	const led = "[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../shared/gitconfig\n"
	for name, tt := range map[string]struct {
		files map[string]string
		path  string // which it tells of, and which opens it
	}{
		"a link":                                {map[string]string{".idea": "->/etc", "elsewhere/": ""}, ".idea"},
		"a link for hooks":                      {map[string]string{".git/hooks": "->../elsewhere", "elsewhere/": ""}, ".git/hooks"},
		"a link for commondir":                  {map[string]string{".git/commondir": "->../elsewhere/c", "elsewhere/": ""}, ".git/commondir"},
		"a link for a submodule":                {map[string]string{".git/modules/lib": "->../../elsewhere", "elsewhere/HEAD": ""}, ".git/modules/lib"},
		"a link for modules":                    {map[string]string{".git/modules": "->../elsewhere", "elsewhere/lib/HEAD": "", ".git/config": "[submodule \"lib\"]\n"}, ".git/modules"},
		"a link on the way to hooks":            {map[string]string{".git/config": led, "tools": "->elsewhere", "elsewhere/": ""}, "tools"},
		"a file on the way to hooks":            {map[string]string{".git/config": led, "tools": "", "elsewhere/": ""}, "tools"},
		"a link on the way to what is included": {map[string]string{".git/config": led, "shared": "->elsewhere", "elsewhere/": ""}, "shared"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.files[".git/HEAD"] = ""
			dir := repoWith(t, tt.files)
			before, err := os.ReadDir(filepath.Join(dir, "elsewhere"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := guardRepo(dir, nil); err == nil || !strings.HasPrefix(err.Error(), tt.path+" is ") {
				t.Errorf("got %v, want one that tells of %s", err, tt.path)
			}
			after, err := os.ReadDir(filepath.Join(dir, "elsewhere"))
			if err != nil || len(after) != len(before) {
				t.Errorf("through the link something was made: %v, %v", after, err)
			}
			if _, err := os.Lstat(filepath.Join(dir, ".git/commondir")); err == nil && tt.path != ".git/commondir" {
				t.Error("a file of ours is left")
			}
			open := tt.path
			if open == ".git/modules/lib" {
				open = ".git/modules"
			}
			g, err := guardRepo(dir, []string{open})
			if err != nil {
				t.Fatalf("control, left open by the operator: %v", err)
			}
			g.release(true)
		})
	}
	dir := repoWith(t, map[string]string{".git/HEAD": ""})
	if err := syscall.Mkfifo(filepath.Join(dir, ".envrc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := guardRepo(dir, nil); err == nil || !strings.Contains(err.Error(), ".envrc") {
		t.Errorf("a FIFO: %v", err)
	}
}

func TestRepoThatCannotBeHeldIsRefused(t *testing.T) {
	many := map[string]string{".git/HEAD": ""}
	for i := range maxGitDirs + 1 {
		many[".git/modules/m"+string(rune('a'+i/26))+string(rune('a'+i%26))+"/HEAD"] = ""
	}
	beside := map[string]string{".git/HEAD": ""}
	for i := range 10*maxGitDirs + 1 {
		beside[".git/modules/"+strconv.Itoa(i)] = ""
	}
	unread := repoWith(t, map[string]string{".git/HEAD": "", ".git/modules/": ""})
	if err := os.Chmod(filepath.Join(unread, ".git/modules"), 0o311); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 { // root reads it all the same
		if _, err := guardRepo(unread, nil); err == nil {
			t.Error("a .git/modules that cannot be read: taken")
		}
	}
	for name, dir := range map[string]string{
		"very many files beside submodules": repoWith(t, beside),
		"a link for .git":                   repoWith(t, map[string]string{"elsewhere/HEAD": "", ".git": "->elsewhere"}),
		"very many submodules":              repoWith(t, many),
	} {
		if _, err := guardRepo(dir, nil); err == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := os.Lstat(filepath.Join(dir, ".git/commondir")); err == nil {
			t.Errorf("%s: a file of ours is left", name)
		}
	}
	for name, dir := range map[string]string{
		"no repository":   repoWith(t, map[string]string{"x": ""}),
		"a file for .git": repoWith(t, map[string]string{".git": "gitdir: ../x\n"}),
	} {
		g := held(t, dir)
		if got := slices.Contains(g.paths, ".git"); got != strings.HasPrefix(name, "a file") {
			t.Errorf("%s: guarded %q", name, g.paths)
		}
		g.release(true)
	}
}

// git works with the files of ours in place.
func TestGitWorksWithTheGuardsFiles(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("git %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	g := held(t, dir)
	git("commit", "-q", "--allow-empty", "-m", "x")
	if log := git("log", "--oneline"); !strings.Contains(log, "x") {
		t.Errorf("log is %q", log)
	}
	g.release(true)
	git("status")
}
