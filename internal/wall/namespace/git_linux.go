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

// gitDir protects one git directory, which lies in the repo at dir.
func (g *guard) gitDir(dir string, extended bool, open func(string) bool) {
	if g.err != nil {
		return
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
		if p := path.Join(dir, n); !open(p) {
			g.readOnly(p)
		}
	}
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
		f, err := openMark(d, name, content)
		if err != nil {
			d.Close()
			fail(err)
			return
		}
		ours, gone, err := takeMark(f, content)
		switch {
		case err != nil:
			f.Close()
			d.Close()
			fail(err)
			return
		case gone:
			f.Close()
			continue
		case !ours: // somebody's own: it is made read-only as it is
			f.Close()
			d.Close()
			return
		}
		g.markers = append(g.markers, marker{path: path.Join(g.at, dir, name), dir: d, f: f})
		return
	}
	d.Close()
	fail(errors.New("it does not stay"))
}

func openMark(d *os.File, name, content string) (*os.File, error) {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|flags, 0o644)
	if errors.Is(err, unix.EEXIST) {
		if fd, err = unix.Openat(int(d.Fd()), name, unix.O_RDONLY|flags, 0); errors.Is(err, unix.ENOENT) {
			fd, err = unix.Openat(int(d.Fd()), name, unix.O_CREAT|unix.O_RDWR|flags, 0o644)
		}
	} else if err == nil {
		f := os.NewFile(uintptr(fd), name)
		if _, err := f.WriteString(content); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// takeMark locks the file, and tells whether it is ours and whether it was taken away meanwhile.
func takeMark(f *os.File, content string) (ours, gone bool, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, true, nil
	} else if err != nil {
		return false, false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, false, err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<12))
	if err != nil {
		return false, false, err
	}
	return string(b) == content && st.Mode&unix.S_IFMT == unix.S_IFREG, st.Nlink == 0, nil
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

// extended tells whether git reads a config.worktree beside the config in dir (extensions.worktreeConfig, git-config(1)).
func (g *guard) extended(dir string) bool {
	fd, err := openBelow(g.repo, path.Join(dir, "config"), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "config")
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxGitConfig))
	return err == nil && strings.Contains(strings.ToLower(string(text)), "worktreeconfig")
}
