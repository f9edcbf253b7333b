package namespace

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSubmodules(t *testing.T) {
	text := "[core]\n\tbare = false\n[submodule]\n\tactive = .\n[submodule \"a\"]\n\turl = x\n  [SubModule   \"third party/b\"] url = y\n" +
		"[submodule \"q\\\"]\\\\z\"]\n[submodule \"a\"]\n[submodule \"../up\"]\n[submodule \"/abs\"]\n[submodule \".\"]\n[submodule \"open\n[submodules \"other\"]\n#[submodule \"said\"]\n"
	if got, want := Submodules(text), []string{"a", "third party/b", `q"]\z`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What an earlier box left in .git/modules, which is its own to write, does not take a submodule's protection away from the next box.
func TestSubmodulesAreGuardedWhateverABoxLeft(t *testing.T) {
	for name, left := range map[string]func(modules string) error{
		"nothing": func(string) error { return nil },
		"HEAD is gone": func(m string) error {
			return os.Rename(filepath.Join(m, "group/sub/HEAD"), filepath.Join(m, "group/sub/HEAD.x"))
		},
		"its parent has a HEAD": func(m string) error { return os.WriteFile(filepath.Join(m, "group/HEAD"), nil, 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			c, spec := testBox(t, func(s *Spec) {
				for p, text := range map[string]string{
					".git/config":                   "[submodule \"group/sub\"]\n\turl = x\n",
					".git/modules/group/sub/config": "[submodule \"in\"]\n\turl = x\n", ".git/modules/group/sub/HEAD": "", ".git/modules/group/sub/modules/in/config": "",
				} {
					p = filepath.Join(s.Repo, p)
					if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
						t.Fatal(err)
					}
				}
				if err := left(filepath.Join(s.Repo, ".git/modules")); err != nil {
					t.Fatal(err)
				}
			})
			out, _ := in(t, c, spec, "cd .git/modules/group/sub && for f in config hooks/x modules/in/config modules/in/hooks/x packed-refs; do (echo x >> $f) 2>/dev/null && echo wrote $f; done; mv ../../group ../../g 2>/dev/null && echo moved")
			if out != "wrote packed-refs\n" {
				t.Errorf("got %q, want only the control written", out)
			}
		})
	}
}

func TestGitDirectoriesThatCannotBeSeenAreRefused(t *testing.T) {
	look := func(t *testing.T, dir string) *guard {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		g := &guard{repo: fd, left: gitModules}
		(&gitWalk{t: g}).modules("modules", nil)
		return g
	}
	dir := t.TempDir()
	modules := filepath.Join(dir, "modules")
	if g := look(t, dir); g.err != nil {
		t.Errorf("there are none: %v", g.err)
	}
	if err := os.Mkdir(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range gitModules {
		if err := os.WriteFile(filepath.Join(modules, strconv.Itoa(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if g := look(t, dir); g.err != nil {
		t.Errorf("control: %v", g.err)
	}
	if err := os.WriteFile(filepath.Join(modules, "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if g := look(t, dir); g.err == nil || !strings.Contains(g.err.Error(), "over") {
		t.Errorf("one more than is looked at: %v", g.err)
	}
	if err := os.Rename(modules, modules+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("modules2", modules); err != nil {
		t.Fatal(err)
	}
	if g := look(t, dir); g.err != nil || !slices.Equal(g.links, []string{"modules"}) {
		t.Errorf("a link: %v %q, want it told", g.err, g.links)
	}
	if os.Geteuid() == 0 {
		return // root reads it all the same
	}
	if err := os.Remove(modules); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(modules, 0o311); err != nil {
		t.Fatal(err)
	}
	if g := look(t, dir); g.err == nil {
		t.Error("one that cannot be read is passed over")
	}
}

// Git keeps the submodules of a linked worktree, and the worktrees of a submodule, in git directories of their own.
func TestSubmodulesOfWorktreesAreGuarded(t *testing.T) {
	const worktree, submodule = ".git/worktrees/w/modules/sub", ".git/modules/lib/worktrees/v"
	c, spec := testBox(t, func(s *Spec) {
		for p, text := range map[string]string{
			".git/config": "[submodule \"sub\"]\n\turl = x\n", ".git/worktrees/w/gitdir": "/x", worktree + "/config": "",
			".git/worktrees/w/modules/other/HEAD": "", ".git/worktrees/w/modules/other/config": "",
			".git/modules/lib/HEAD": "", ".git/modules/lib/config": "[extensions]\nworktreeConfig = true\n", submodule + "/gitdir": "/y",
		} {
			p = filepath.Join(s.Repo, p)
			if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	})
	out, _ := in(t, c, spec, "for f in "+worktree+"/config "+worktree+"/hooks/x "+worktree+"/commondir .git/worktrees/w/modules/other/config "+
		submodule+"/gitdir "+submodule+"/config.worktree "+submodule+"/index; do (echo x >> $f) 2>/dev/null && echo wrote $f; done; mv .git/worktrees/w .git/worktrees/v 2>/dev/null && echo moved")
	if out != "wrote "+submodule+"/index\n" {
		t.Errorf("got %q, want only the control written", out)
	}
}
