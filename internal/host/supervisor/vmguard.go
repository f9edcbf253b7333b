package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"foldyard/internal/host/control"
	"foldyard/internal/wall/namespace"
)

// Bounds of what is looked at in a repo. Every path is a word of the container's command line.
const (
	maxGitDirs = 100 // submodules and worktrees
	maxMark    = 1 << 12
)

// ownCommonDir in a git directory's commondir leads nowhere else: it is what git takes every main git directory for.
const ownCommonDir = ".\n"

// repoGuard is what a container mounts read-only of a repo, since tools on the host execute it or are led by it. It goes by the rules of
// the namespace wall: what decides for git and is missing is made first, as a file of ours, or the box would make it. Those are held,
// by a shared lock, for as long as the box lives.
type repoGuard struct {
	root    *os.Root
	open    func(string) bool // paths that config.toml leaves open
	paths   []string
	marks   []repoMark
	gitDirs int // that are protected
	left    int // directories that may be looked into for more
	err     error
}

type repoMark struct {
	path string
	f    *os.File
}

// guardRepo looks at the repo in dir.
func guardRepo(dir string, writable []string) (*repoGuard, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	g := &repoGuard{root: root, left: maxGitDirs, open: func(p string) bool { return namespace.LeftOpen(writable, p) }}
	g.git(".git")
	if !g.open(".git") {
		g.led(dir)
	}
	for _, p := range namespace.Protected() {
		if !strings.HasPrefix(p, ".git/") {
			g.readOnly(p)
		}
	}
	if g.err != nil {
		g.release(true)
		return nil, g.err
	}
	return g, nil
}

func (g *repoGuard) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// git protects a repository's .git, a directory with all that belongs to it, or a file that says where that is.
func (g *repoGuard) git(dir string) {
	if info, err := g.root.Lstat(dir); err == nil && info.IsDir() && !g.open(dir) {
		namespace.WalkGit(g, dir)
		return
	}
	g.readOnly(dir)
}

// look is Lstat that follows no link on the way to p either: a box could have made one, and what is looked at would not be what the
// container mounts.
func (g *repoGuard) look(p string) (fs.FileInfo, error) {
	for i := range p {
		if p[i] != '/' {
			continue
		}
		switch info, err := g.root.Lstat(p[:i]); {
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			return nil, isLink(p[:i])
		}
	}
	return g.root.Lstat(p)
}

// isLink refuses a link in a place that is to be read-only: no mount is over the link itself, and who could write beside it could put
// something else in its place.
func isLink(p string) error {
	return &control.Error{
		Code: control.CodeBad, Detail: p + " is a symbolic link, which a container cannot hold read-only",
		Hint: `put what it leads to there (for .git, a file "gitdir: PATH"); or let config.toml leave it open ([box] writable); or run with --ro`,
	}
}

// missing tells of an error that there is nothing.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// There implements namespace.GitTree.
func (g *repoGuard) There(p string) bool {
	if g.open(p) {
		return false
	}
	_, err := g.look(p)
	if err != nil && !missing(err) {
		g.fail(err)
	}
	return err == nil
}

// Subdirs implements namespace.GitTree. A box could make so many entries, or take away the right to read them, that some were not seen:
// then there is no box.
func (g *repoGuard) Subdirs(dir string) []string {
	if g.err != nil || !g.There(dir) {
		return nil
	}
	f, err := g.root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		g.fail(err)
		return nil
	}
	defer f.Close()
	entries, err := f.ReadDir(10*maxGitDirs + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		g.fail(err)
		return nil
	}
	if len(entries) > 10*maxGitDirs {
		g.fail(&control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("%s has over %d entries", dir, 10*maxGitDirs), Hint: "take some away, or run with --ro"})
		return nil
	}
	var names []string
	for _, e := range entries {
		switch {
		case e.Type()&fs.ModeSymlink != 0: // git follows one that it takes for a submodule
			g.fail(isLink(path.Join(dir, e.Name())))
			return nil
		case e.IsDir():
			names = append(names, e.Name())
		}
	}
	if g.left -= len(names); g.left < 0 {
		g.many()
		return nil
	}
	slices.Sort(names)
	return names
}

func (g *repoGuard) many() {
	g.fail(&control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("the repo has over %d submodules and worktrees, too many to hold read-only in a container", maxGitDirs), Hint: "run with --ro"})
}

// GitDir implements namespace.GitTree.
func (g *repoGuard) GitDir(dir string, extended bool) bool {
	if g.gitDirs++; g.gitDirs > maxGitDirs+1 { // the repo's own is no submodule's
		g.many()
	}
	g.make(path.Join(dir, "hooks"))
	g.make(path.Join(dir, "info"))
	g.mark(path.Join(dir, "commondir"), ownCommonDir)
	if extended {
		g.mark(path.Join(dir, "config.worktree"), "")
	}
	for _, n := range []string{"config", "config.worktree", "commondir", "hooks", "info"} {
		g.readOnly(path.Join(dir, n))
	}
	return g.err == nil
}

// Worktree implements namespace.GitTree.
func (g *repoGuard) Worktree(dir string, extended bool) {
	if extended {
		g.mark(path.Join(dir, "config.worktree"), "")
	}
	for _, n := range []string{"config.worktree", "commondir", "gitdir"} {
		g.readOnly(path.Join(dir, n))
	}
}

// led protects what .git/config leads git to in the repo: what is missing there is made, empty, or the box would make it.
func (g *repoGuard) led(repo string) {
	files, dirs := namespace.LedBy(g.Config(".git"), repo)
	for _, p := range files {
		if !g.open(p) {
			g.make(path.Dir(p))
			g.mark(p, "")
			g.readOnly(p)
		}
	}
	for _, p := range dirs {
		if g.open(p) {
			continue
		}
		if info, err := g.look(p); err != nil || !info.Mode().IsRegular() { // a file that stays one holds no programs
			g.make(p)
		}
		g.readOnly(p)
	}
}

// make makes the directory p and those above it where they are missing. What is in its way is refused: a box could take it away, and make
// the directory.
func (g *repoGuard) make(p string) {
	if g.err != nil || p == "." || g.open(p) {
		return
	}
	if g.make(path.Dir(p)); g.err != nil {
		return
	}
	if err := g.root.Mkdir(p, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		g.fail(err)
		return
	}
	switch info, err := g.look(p); {
	case err != nil:
		g.fail(err)
	case info.Mode()&fs.ModeSymlink != 0:
		g.fail(isLink(p))
	case !info.IsDir():
		g.fail(notHeld(p))
	}
}

func notHeld(p string) error {
	return &control.Error{
		Code: control.CodeBad, Detail: p + " is not what git wants there, and cannot be held read-only in a container",
		Hint: "take it away; or let config.toml leave it open ([box] writable); or run with --ro",
	}
}

// Config implements namespace.GitTree.
func (g *repoGuard) Config(dir string) string {
	name := path.Join(dir, "config")
	if info, err := g.look(name); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := g.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, namespace.MaxGitConfig))
	if err != nil {
		return ""
	}
	return string(text)
}

// readOnly adds an entry that exists, unless config.toml leaves it open.
func (g *repoGuard) readOnly(p string) {
	if g.err != nil || g.open(p) || slices.Contains(g.paths, p) {
		return
	}
	switch info, err := g.look(p); {
	case err != nil && missing(err):
	case err != nil:
		g.fail(err)
	case info.Mode()&fs.ModeSymlink != 0:
		g.fail(isLink(p))
	case info.IsDir() || info.Mode().IsRegular():
		g.paths = append(g.paths, p)
	default:
		g.fail(notHeld(p))
	}
}

// mark makes a file of ours if it is missing, and holds one that is ours. Somebody's own stays as it is.
func (g *repoGuard) mark(p, content string) {
	for range 100 { // another box may be taking it away at this moment
		if g.err != nil || g.open(p) {
			return
		}
		if info, err := g.look(p); err == nil && !info.Mode().IsRegular() || err != nil && !missing(err) {
			return // readOnly says what is wrong with it
		}
		f, err := g.root.OpenFile(p, os.O_CREATE|os.O_RDWR|syscall.O_NONBLOCK, 0o644)
		if errors.Is(err, fs.ErrPermission) {
			return
		}
		if err != nil {
			g.fail(err)
			return
		}
		gone, ours, err := takeMark(f, content)
		if err == nil && ours && !gone {
			g.marks = append(g.marks, repoMark{p, f})
			return
		}
		_ = f.Close() // nothing was written
		if err != nil {
			g.fail(err)
		}
		if !gone {
			return
		}
	}
	g.fail(fmt.Errorf("mark %s: it does not stay", p))
}

// takeMark locks a file, and fills it if it is ours: it then holds a beginning of content. gone tells that it is being taken away.
func takeMark(f *os.File, content string) (gone, ours bool, err error) {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return true, false, nil
	} else if err != nil {
		return false, false, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, false, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 {
		return true, false, nil
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxMark))
	if err != nil || !info.Mode().IsRegular() || !strings.HasPrefix(content, string(b)) {
		return false, false, err
	}
	_, err = f.WriteAt([]byte(content), 0) // the same from whoever makes it
	return false, err == nil, err
}

// release lets go of the files of ours. Once the box has ended, those that no other box needs are taken away.
func (g *repoGuard) release(ended bool) {
	if g == nil {
		return
	}
	for _, m := range g.marks {
		if ended && syscall.Flock(int(m.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			mine, err := m.f.Stat()
			there, lerr := g.root.Lstat(m.path)
			if err == nil && lerr == nil && os.SameFile(mine, there) {
				_ = g.root.Remove(m.path) // one that stays leads nowhere
			}
		}
		_ = m.f.Close() // what was written is synced by nobody else either
	}
	_ = g.root.Close()
}
