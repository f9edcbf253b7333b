package namespace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A git directory decides what git on the host executes: by its config, its hooks, and by two files that lead to another
// configuration (gitrepository-layout(5)). What is there is made read-only; what is not there is made first, or the box would make it.

// A git directory that is its own common directory: what git takes every main git directory for. With this in commondir nothing
// changes for git, and nobody can put another path there.
const ownCommonDir = ".\n"

// marker is a file of ours in a git directory. It is taken away when the last box that needs it ends.
type marker struct {
	path string // in the box
	dir  *os.File
	f    *os.File // locked, shared, for as long as the box lives
	bare bool     // nothing of the keeper's is mounted on it
}

// GitDir implements GitTree.
func (g *guard) GitDir(dir string, extended bool) bool {
	if g.gitDirs++; g.gitDirs > gitModules && g.err == nil {
		g.err = fmt.Errorf("over %d submodules: run with --ro", gitModules)
	}
	if g.err != nil {
		return false
	}
	g.pin(dir)
	for _, n := range []string{"hooks", "info"} {
		if err := unix.Mkdirat(g.repo, path.Join(dir, n), 0o755); err != nil && !errors.Is(err, unix.EEXIST) && g.err == nil {
			g.err = &os.PathError{Op: "mkdir", Path: path.Join(dir, n), Err: err}
		}
	}
	g.mark(dir, "commondir", ownCommonDir)
	if extended { // only then does git read it
		g.mark(dir, "config.worktree", "")
	}
	for _, n := range []string{"config", "config.worktree", "commondir", "hooks", "info"} {
		if p := path.Join(dir, n); !g.open(p) {
			g.readOnly(p)
		}
	}
	return g.err == nil
}

// mark makes the file if it is missing, and keeps it if it is ours.
func (g *guard) mark(dir, name, content string) {
	if g.err != nil {
		return
	}
	fail := func(err error) { g.err = fmt.Errorf("mark %s: %w", path.Join(dir, name), err) }
	fd, err := openBelow(g.repo, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		fail(err)
		return
	}
	d := os.NewFile(uintptr(fd), dir)
	for range 100 { // another box may be taking the file away at this moment
		f, gone, err := openMark(d, name, content)
		if gone {
			continue
		}
		if err != nil || f == nil { // somebody's own is made read-only as it is
			d.Close()
			if err != nil {
				fail(err)
			}
			return
		}
		g.markers = append(g.markers, marker{path: path.Join(g.at, dir, name), dir: d, f: f})
		return
	}
	d.Close()
	fail(errors.New("it does not stay"))
}

// openMark opens the file, makes it if it is missing, and locks it. It returns nil where the file is somebody's own; gone says that another
// box took it away meanwhile. A file that holds only the beginning of content is ours: another box is making it, or died doing so.
func openMark(d *os.File, name, content string) (_ *os.File, gone bool, err error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EISDIR) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	f := os.NewFile(uintptr(fd), name)
	gone, ours, err := takeMark(f, content)
	if err != nil || gone || !ours {
		f.Close()
		return nil, gone, err
	}
	return f, false, nil
}

func takeMark(f *os.File, content string) (gone, ours bool, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return true, false, nil
	} else if err != nil {
		return false, false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err == nil && st.Nlink == 0, false, err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<12))
	if err != nil || !strings.HasPrefix(content, string(b)) {
		return false, false, err
	}
	_, err = f.WriteAt([]byte(content), 0) // the same from whoever makes it
	return false, err == nil, err
}

// uncover lifts the mount on the marker from the keeper's own namespace, where it is in the way of taking the marker away. The box's
// namespace, a copy that was made before, keeps its own.
func (m *marker) uncover() {
	m.bare = unix.Unmount(m.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil
}

// release takes the marker away, unless another box still needs it. A mount on a file goes with the file, in every namespace.
func (m *marker) release() {
	defer m.dir.Close()
	defer m.f.Close()
	if !m.bare {
		return // the box moved it away; it is a line of no consequence
	}
	if unix.Flock(int(m.f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		unix.Unlinkat(int(m.dir.Fd()), path.Base(m.path), 0)
	}
}

// Config implements GitTree. A link is told of elsewhere.
func (g *guard) Config(dir string) string {
	fd, err := openBelow(g.repo, path.Join(dir, "config"), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), "config")
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxGitConfig))
	if err != nil {
		return ""
	}
	return string(text)
}
