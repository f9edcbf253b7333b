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
	gitDirs map[string]bool // that are protected
	left    int
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
	g := &repoGuard{root: root, gitDirs: map[string]bool{}, left: maxGitDirs, open: func(p string) bool { return namespace.LeftOpen(writable, p) }}
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
	info, err := g.root.Lstat(dir)
	if err != nil || g.open(dir) {
		return
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		g.fail(&control.Error{Code: control.CodeBad, Detail: dir + " is a symbolic link, which no mount keeps as it is", Hint: `put a file "gitdir: PATH" there instead, or run with --ro`})
	case !info.IsDir():
		g.readOnly(dir)
	default:
		g.gitDir(dir)
		g.submodules(dir)
		g.modules(path.Join(dir, "modules"))
		extended := g.extended(dir)
		for _, name := range g.subdirs(path.Join(dir, "worktrees")) {
			at := path.Join(dir, "worktrees", name)
			if extended {
				g.mark(path.Join(at, "config.worktree"), "")
			}
			for _, n := range []string{"config.worktree", "commondir", "gitdir"} {
				g.readOnly(path.Join(at, n))
			}
		}
	}
}

// submodules protects the git directories of the submodules that the configuration in dir tells of. That is read-only in every box, while
// most of what lies in .git/modules is a box's to write: it could be made to look like something else.
func (g *repoGuard) submodules(dir string) {
	for _, name := range namespace.Submodules(g.config(dir)) {
		if at := path.Join(dir, "modules", name); !g.gitDirs[at] && g.there(at) && g.count(at) {
			g.gitDir(at)
			g.submodules(at)
		}
	}
}

// there tells whether something is at p. What cannot be looked at is not passed over.
func (g *repoGuard) there(p string) bool {
	_, err := g.root.Lstat(p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		g.fail(err)
	}
	return err == nil
}

// modules protects every other git directory below .git/modules, at any depth: a submodule's name may have slashes.
func (g *repoGuard) modules(dir string) {
	for _, name := range g.subdirs(dir) {
		at := path.Join(dir, name)
		if !g.gitDirs[at] && !g.there(path.Join(at, "HEAD")) {
			g.modules(at)
			continue
		}
		g.gitDir(at)
		g.modules(path.Join(at, "modules"))
	}
}

// subdirs are the directories in one, each counted. A box could make so many entries, or take away the right to read them, that some were
// not seen: then there is no box.
func (g *repoGuard) subdirs(dir string) []string {
	if g.err != nil || !g.there(dir) {
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
		if e.IsDir() && g.count(path.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

// count counts the directory at p, once, and reports whether there may be so many.
func (g *repoGuard) count(p string) bool {
	if g.gitDirs[p] {
		return true
	}
	if g.left--; g.left >= 0 {
		return true
	}
	g.fail(&control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("the repo has over %d submodules and worktrees, too many to hold read-only in a container", maxGitDirs), Hint: "run with --ro"})
	return false
}

// gitDir protects one git directory.
func (g *repoGuard) gitDir(dir string) {
	if g.err != nil || g.gitDirs[dir] {
		return
	}
	g.gitDirs[dir] = true
	for _, n := range []string{"hooks", "info"} {
		if err := g.root.Mkdir(path.Join(dir, n), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			g.fail(err)
		}
	}
	g.mark(path.Join(dir, "commondir"), ownCommonDir)
	if g.extended(dir) {
		g.mark(path.Join(dir, "config.worktree"), "")
	}
	for _, n := range []string{"config", "config.worktree", "commondir", "hooks", "info"} {
		g.readOnly(path.Join(dir, n))
	}
}

// led protects what .git/config leads git to in the repo: what is missing there is made, empty, or the box would make it.
func (g *repoGuard) led(repo string) {
	files, dirs := namespace.LedBy(g.config(".git"), repo)
	for _, p := range files {
		if g.open(p) {
			continue
		}
		if g.root.MkdirAll(path.Dir(p), 0o755) == nil {
			g.mark(p, "")
		}
		g.readOnly(p)
	}
	for _, p := range dirs {
		if !g.open(p) {
			_ = g.root.MkdirAll(p, 0o755) // what is in its way is no directory of programs
			g.readOnly(p)
		}
	}
}

// extended tells whether git reads a config.worktree beside the config in dir (extensions.worktreeConfig, git-config(1)).
func (g *repoGuard) extended(dir string) bool {
	return strings.Contains(strings.ToLower(g.config(dir)), "worktreeconfig")
}

// config reads the configuration of a git directory, as far as namespace.MaxGitConfig; "" where there is none.
func (g *repoGuard) config(dir string) string {
	f, err := g.root.OpenFile(path.Join(dir, "config"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
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

// readOnly adds an entry that exists. A link is left as it is: a mount would be over what it leads to.
func (g *repoGuard) readOnly(p string) {
	info, err := g.root.Lstat(p)
	if err == nil && !g.open(p) && (info.IsDir() || info.Mode().IsRegular()) {
		g.paths = append(g.paths, p)
	}
}

// mark makes a file of ours if it is missing, and holds one that is ours. Somebody's own stays as it is.
func (g *repoGuard) mark(p, content string) {
	for range 100 { // another box may be taking it away at this moment
		if g.err != nil {
			return
		}
		if info, err := g.root.Lstat(p); err == nil && !info.Mode().IsRegular() {
			return
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
