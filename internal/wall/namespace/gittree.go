package namespace

import (
	"path"
	"strings"
)

// GitTree is a repo in which a wall protects what git obeys. All paths are in the repo.
type GitTree interface {
	// There tells whether something is at p. What cannot be looked at is not passed over.
	There(p string) bool
	// Subdirs are the directories in one, as many as there may be.
	Subdirs(dir string) []string
	// Config is the configuration of the git directory dir, as far as MaxGitConfig; "" where there is none.
	Config(dir string) string
	// GitDir protects a git directory, and reports whether the search goes on. extended: git reads a config.worktree in it.
	GitDir(dir string, extended bool) bool
	// Worktree protects what the git directory has of a worktree that is elsewhere.
	Worktree(dir string, extended bool)
}

// WalkGit finds the git directory dir of a repo and those that belong to it: its submodules', those of its worktrees, and theirs. Each is
// protected once, those that a configuration names before what only looks like one: that is read-only in every box, while most of what
// lies in modules is a box's to write.
func WalkGit(t GitTree, dir string) {
	w := gitWalk{t: t, seen: map[string]bool{}}
	w.gitDir(dir)
}

type gitWalk struct {
	t     GitTree
	seen  map[string]bool
	ended bool
}

func (w *gitWalk) gitDir(dir string) {
	if w.ended || w.seen[dir] {
		return
	}
	w.seen[dir] = true
	text := w.t.Config(dir)
	// With extensions.worktreeConfig git reads a config.worktree beside the config (git-config(1)).
	extended := strings.Contains(strings.ToLower(text), "worktreeconfig")
	if w.ended = !w.t.GitDir(dir, extended); w.ended {
		return
	}
	names := Submodules(text)
	w.modules(path.Join(dir, "modules"), names)
	for _, name := range w.t.Subdirs(path.Join(dir, "worktrees")) {
		at := path.Join(dir, "worktrees", name)
		w.t.Worktree(at, extended)
		w.modules(path.Join(at, "modules"), names)
	}
}

// modules finds the git directories of submodules in dir, at any depth: a submodule's name may have slashes.
func (w *gitWalk) modules(dir string, names []string) {
	for _, name := range names {
		if p := path.Join(dir, name); !w.ended && !w.seen[p] && w.t.There(p) {
			w.gitDir(p)
		}
	}
	for _, name := range w.t.Subdirs(dir) {
		switch p := path.Join(dir, name); {
		case w.ended:
			return
		case w.seen[p]:
		case w.t.There(path.Join(p, "HEAD")):
			w.gitDir(p)
		default:
			w.modules(p, nil)
		}
	}
}
