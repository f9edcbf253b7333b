package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// walk is what a look at every file of the box's mounts found.
type walk struct {
	files   int
	sockets []string
	secrets map[int][]string // index in Plan.Secrets → paths that are the same file
	fy      []string         // paths of the launcher that the box could write
	cut     string           // why the walk ended early
}

// Bounds of a walk.
const (
	walkTime    = 20 * time.Second
	walkFiles   = 3_000_000
	walkSockets = 512
	walkDepth   = 64
)

type fileID struct{ dev, ino uint64 }

// walker is one walk in progress.
type walker struct {
	walk
	ctx     context.Context //nolint:containedctx // for the one call that makes it
	end     time.Time
	byInode map[uint64][]int
	plan    Plan
}

// walk looks at every directory below / but /proc, the writable ones first. It
// follows no link and opens nothing but directories.
func (p *prober) walk(ctx context.Context) walk {
	w := &walker{ctx: ctx, end: time.Now().Add(walkTime), plan: p.plan, byInode: map[uint64][]int{}}
	w.secrets = map[int][]string{}
	for i, s := range p.plan.Secrets {
		if s.Ino != 0 {
			w.byInode[s.Ino] = append(w.byInode[s.Ino], i)
		}
	}
	first := map[string]bool{"/proc": true}
	for _, dir := range []string{"/tmp", "/run", "/var", "/dev", "/etc", "/home", p.plan.Home, p.plan.Repo} {
		if dir != "" {
			w.dir(dir, 0, first)
			first[dir] = true
		}
	}
	w.dir("/", 0, first)
	return w.walk
}

func (w *walker) stop() bool {
	switch {
	case w.cut != "":
	case w.ctx.Err() != nil, time.Now().After(w.end):
		w.cut = fmt.Sprintf("out of time after %d files", w.files)
	case w.files > walkFiles:
		w.cut = fmt.Sprintf("more than %d files", walkFiles)
	}
	return w.cut != ""
}

// dir looks at one directory. skip holds directories that are looked at
// elsewhere.
func (w *walker) dir(path string, depth int, skip map[string]bool) {
	if skip[path] || w.stop() {
		return
	}
	if depth > walkDepth || len(path) > 4000 {
		return // made by the box itself: no mount of the host is that deep
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return // not there, or not for the box's eyes
	}
	w.identify(fd, path)
	subdirs := w.list(fd, path)
	closeFD(fd)
	for _, d := range subdirs {
		w.dir(d, depth+1, skip)
	}
}

// list reads a directory and returns its directories.
func (w *walker) list(fd int, path string) (subdirs []string) {
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n <= 0 {
			return subdirs
		}
		for rest := buf[:n]; len(rest) > 19; {
			ino := binary.NativeEndian.Uint64(rest)
			size := int(binary.NativeEndian.Uint16(rest[16:]))
			kind := rest[18]
			if size < 20 || size > len(rest) {
				return subdirs
			}
			name := unix.BytePtrToString((*byte)(unsafe.Pointer(&rest[19])))
			rest = rest[size:]
			if name == "." || name == ".." {
				continue
			}
			w.files++
			full := filepath.Join(path, name)
			switch kind {
			case unix.DT_DIR, unix.DT_UNKNOWN:
				subdirs = append(subdirs, full)
			case unix.DT_SOCK:
				if len(w.sockets) < walkSockets {
					w.sockets = append(w.sockets, full)
				} else {
					w.cut = fmt.Sprintf("more than %d sockets", walkSockets)
				}
			}
			// A listing shows the number of the file below a mount, so it is
			// enough only where nothing is mounted: among the system's own.
			if len(w.byInode[ino]) > 0 || ino == w.plan.Launcher.Ino || !strings.HasPrefix(full, "/usr/") {
				w.match(full)
			}
		}
		if w.stop() {
			return subdirs
		}
	}
}

// identify compares an open directory: the inode number in a listing is the
// one below a mount point.
func (w *walker) identify(fd int, path string) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && len(w.byInode[st.Ino]) > 0 {
		w.compare(path, st)
	}
}

func (w *walker) match(path string) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return
	}
	w.compare(path, st)
	if l := w.plan.Launcher; l.Ino != 0 && (fileID{uint64(st.Dev), st.Ino}) == (fileID{l.Dev, l.Ino}) &&
		unix.Access(path, unix.W_OK) == nil {
		w.fy = append(w.fy, path)
	}
}

func (w *walker) compare(path string, st unix.Stat_t) {
	for _, i := range w.byInode[st.Ino] {
		s := w.plan.Secrets[i]
		if (fileID{uint64(st.Dev), st.Ino}) == (fileID{s.Dev, s.Ino}) && len(w.secrets[i]) < 4 {
			w.secrets[i] = append(w.secrets[i], path)
		}
	}
}
