package namespace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// guard protects entries of a repo that is mounted already.
type guard struct {
	repo    int
	at      string // where it is in the box
	pinned  map[string]bool
	open    func(string) bool // paths that config.toml leaves open
	gitDirs int               // that are protected
	left    int               // entries beside them that may be looked at
	links   []string
	markers []marker
	err     error
}

// gitModules bounds how many submodules and worktrees a repo may have, and what else is beside them.
const gitModules = 1000

func (g *guard) protect(writable []string) {
	open := func(p string) bool { return LeftOpen(writable, p) }
	g.git(".git", open)
	if !open(".git") {
		g.hooks(g.at, open)
	}
	for _, p := range Protected() {
		if !strings.HasPrefix(p, ".git/") && !open(p) {
			g.readOnly(p)
		}
	}
}

// git protects a repository's .git: a directory with all that belongs to it, or a file of one line that says where that is.
func (g *guard) git(dir string, open func(string) bool) {
	var st unix.Stat_t
	if open(dir) || unix.Fstatat(g.repo, dir, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFLNK:
		if g.err == nil {
			g.err = fmt.Errorf("%s is a symbolic link, which no mount keeps as it is: put a file \"gitdir: PATH\" there instead, or run with --ro", dir)
		}
		return
	default:
		g.readOnly(dir)
		return
	}
	g.open, g.left = open, gitModules
	WalkGit(g, dir)
}

// There implements GitTree.
func (g *guard) There(p string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(g.repo, p, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && g.err == nil {
		g.err = &os.PathError{Op: "look at", Path: p, Err: err}
	}
	return err == nil
}

// Worktree implements GitTree.
func (g *guard) Worktree(dir string, extended bool) {
	if extended {
		g.mark(dir, "config.worktree", "")
	}
	for _, n := range []string{"config.worktree", "commondir", "gitdir"} {
		g.readOnly(path.Join(dir, n))
	}
}

// Subdirs implements GitTree. A box could make so many entries, or take away the right to read them, that some were not seen: then
// there is no box.
func (g *guard) Subdirs(dir string) []string {
	if g.err != nil {
		return nil
	}
	fd, err := openBelow(g.repo, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		var st unix.Stat_t
		if unix.Fstatat(g.repo, dir, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			g.links = append(g.links, dir)
		}
		return nil
	case err != nil:
		g.err = fmt.Errorf("look for git directories: %w", err)
		return nil
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	entries, err := f.ReadDir(g.left + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		g.err = fmt.Errorf("look for git directories: %w", err)
		return nil
	}
	if g.left -= len(entries); g.left < 0 {
		g.err = fmt.Errorf("%s: over %d submodules, worktrees and other entries beside them: take some away, or run with --ro", dir, gitModules)
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

// readOnly mounts an entry read-only over itself, if it exists, and pins the directories above it: one that only holds mounts could be
// renamed away and made anew.
func (g *guard) readOnly(rel string) {
	if g.err != nil {
		return
	}
	var st unix.Stat_t
	err := unix.Fstatat(g.repo, rel, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		g.links = append(g.links, rel)
		return
	}
	for i := range rel {
		if rel[i] == '/' {
			g.pin(rel[:i])
		}
	}
	g.over(rel, readOnly)
}

func (g *guard) pin(dir string) {
	if !g.pinned[dir] {
		g.pinned[dir] = true
		g.over(dir, plain)
	}
}

func (g *guard) over(rel string, attr uint64) {
	if g.err != nil {
		return
	}
	fail := func(err error) {
		if err != nil && g.err == nil {
			g.err = fmt.Errorf("protect %s: %w", rel, err)
		}
	}
	target, err := openBelow(g.repo, rel, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		fail(err)
		return
	}
	defer unix.Close(target)
	fail(lay(target, "", target, attr))
}
