package namespace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"foldyard/internal/box/wire"
)

// Program is a binary of ours in sealed memory: what keeper, agent and probes are executed from. Nobody can write to it, and it is no
// file of the host's that an exe link in /proc could lead to.
type Program struct {
	f *os.File
}

// OpenProgram loads the executable at path. The caller closes it.
func OpenProgram(path string) (*Program, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load the program: %w", err)
	}
	defer src.Close()
	return LoadProgram(src)
}

// EmbeddedProgram copies an executable that is part of this one into sealed memory, and gives back the memory that reading it took:
// the file on disk still has it. The caller closes it.
func EmbeddedProgram(b []byte) (*Program, error) {
	p, err := LoadProgram(bytes.NewReader(b))
	page := os.Getpagesize()
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if skip := (page - int(start)%page) % page; skip+page < len(b) {
		whole := b[skip : skip+(len(b)-skip)/page*page]
		unix.Madvise(whole, unix.MADV_DONTNEED) // a private mapping of a file that nobody wrote to: it is read again when it is needed
	}
	return p, err
}

// LoadProgram copies an executable into sealed memory. The caller closes it.
func LoadProgram(src io.Reader) (*Program, error) {
	const mfdExec = 0x10 // MFD_EXEC, Linux 6.3; without it a hardened sysctl would make the memory not executable
	fd, err := unix.MemfdCreate("fy", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdExec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("fy", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("load the program: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "fy")
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, fmt.Errorf("load the program: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the program: %w", err)
	}
	return &Program{f}, nil
}

// Close releases the memory; running boxes keep theirs.
func (p *Program) Close() error { return p.f.Close() }

// Reserve is a keeper that waits for a Spec. It has namespaces, a network and a root with the host's system in it, the same as every
// box's, but no process in it and nothing of a project: making one takes longer than all the rest of a box's start. It ends when it is
// closed, or whoever holds it dies.
type Reserve struct {
	user  User
	ports bool
	conn  *wire.Conn
	pid   int
}

// Prepare starts a keeper in reserve, for boxes of that user.
func Prepare(p *Program, u User) (*Reserve, error) { return prepare(p, u, false) }

func prepare(p *Program, u User, ports bool) (*Reserve, error) {
	if u.UID <= 0 || u.GID <= 0 {
		return nil, fmt.Errorf("uid %d gid %d: the host's root is never mapped into a box", u.UID, u.GID)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "starter")
	defer theirs.Close() // or its end would not be seen
	conn, err := wire.FromFile(os.NewFile(uintptr(pair[0]), "keeper"))
	if err != nil {
		return nil, err
	}
	pid, err := startKeeper(p, u, theirs, ports)
	if err != nil {
		conn.Close()
		return nil, err
	}
	go reap(pid)
	return &Reserve{u, ports, conn, pid}, nil
}

// Fits tells whether boxes of that user can be made of it.
func (r *Reserve) Fits(u User) bool { return r.user.UID == u.UID && r.user.GID == u.GID }

// waits tells whether the keeper is still there: it says nothing before it was told what to build.
func (r *Reserve) waits() bool {
	raw, err := r.conn.Unix().SyscallConn()
	if err != nil {
		return false
	}
	there := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		there = errors.Is(err, unix.EAGAIN)
	})
	return err == nil && there
}

// Close lets a keeper end that was not used.
func (r *Reserve) Close() { r.conn.Close() }

// Start makes a box, from r if there is one that fits, and adopts it. It returns when the box's first process runs. The keeper is no
// child that ends with the caller: it ends with the box, and whoever holds the nonce can adopt it again. On an error nothing is left
// behind. Start owns r. refused is told, about once a second, what was refused.
func Start(ctx context.Context, p *Program, r *Reserve, spec Spec, socket string, refused func([]Refusal)) (_ *Links, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start box %s: %w", spec.ID, err)
		}
	}()
	if r != nil && !(r.Fits(spec.User) && r.ports == spec.Ports && r.waits()) {
		r.Close()
		r = nil
	}
	l, err := listen(socket)
	if err != nil {
		if r != nil {
			r.Close()
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			os.Remove(socket)
		}
	}()
	starting := make(chan error, 1)
	go func() {
		var err error
		if r == nil {
			r, err = prepare(p, spec.User, spec.Ports)
		}
		starting <- err
	}()
	m, files, err := orderMessage(ctx, spec, l) // while the keeper starts
	defer closeAll(files)
	if serr := <-starting; serr != nil {
		return nil, serr
	}
	defer func() {
		if err != nil {
			unix.Kill(r.pid, unix.SIGKILL)
			r.conn.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { unix.Kill(r.pid, unix.SIGKILL) })
	defer stop()
	if err := r.conn.Send(m, files...); err != nil {
		return nil, err
	}
	r.conn.Unix().SetReadDeadline(time.Now().Add(30 * time.Second))
	links, err := receiveLinks(r.conn, refused)
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	r.conn.Unix().SetReadDeadline(time.Time{})
	return links, nil
}

// reap waits for a keeper, so that no zombie stays; the keeper needs no parent.
func reap(pid int) {
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// orderMessage makes the message that tells a keeper what to build, and that the box's socket is l. The files are the caller's to close,
// l too.
func orderMessage(ctx context.Context, spec Spec, l *os.File) (*wire.Message, []*os.File, error) {
	m, files := &wire.Message{Op: "spec", Names: []string{listenName}}, []*os.File{l}
	var err error
	if spec.Sockets, err = sockets(ctx, spec.Repo); err != nil {
		return nil, files, err
	}
	handed, err := handOver(&spec)
	if err != nil {
		return nil, files, err
	}
	for n, f := range handed {
		m.Names, files = append(m.Names, n), append(files, f)
	}
	o, contents, err := newOrder(&spec)
	if err != nil {
		return nil, files, err
	}
	m.Names, files = append(m.Names, contentsName), append(files, contents)
	m.Data, err = json.Marshal(o)
	return m, files, err
}

func listen(socket string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(socket, 0o600); err != nil { // its directory is its user's alone already
		return nil, err
	}
	return l.File()
}

// startKeeper forks the outer namespaces. The parent writes the maps, because only it may map another user than its own.
func startKeeper(p *Program, u User, starter *os.File, ports bool) (int, error) {
	said, tell, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer said.Close()
	wait, goOn, err := os.Pipe()
	if err != nil {
		tell.Close()
		return 0, err
	}
	defer wait.Close()
	defer goOn.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		tell.Close()
		return 0, err
	}
	defer null.Close()
	fds, err := highFDs(null, starter, p.f, tell)
	if err != nil {
		tell.Close()
		return 0, err
	}
	defer fds.closeAll()
	tell.Close()
	program, report := fds[2], fds[3]

	s := &list{}
	s.wait("that the namespaces are there", report, wait.Fd())
	if os.Geteuid() == 0 {
		s.add("leave root's groups", unix.SYS_SETGROUPS, 0, 0)
		s.add("keep capabilities over the change of user", unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1)
		s.add("become the box's group", unix.SYS_SETRESGID, uintptr(u.GID), uintptr(u.GID), uintptr(u.GID))
		s.add("become the box's user", unix.SYS_SETRESUID, uintptr(u.UID), uintptr(u.UID), uintptr(u.UID))
	}
	all := capData{}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		all[c/32].effective |= 1 << (c % 32)
		all[c/32].permitted |= 1 << (c % 32)
		all[c/32].inheritable |= 1 << (c % 32)
	}
	header := &capHeader{version: unix.LINUX_CAPABILITY_VERSION_3}
	s.hold = append(s.hold, header, &all)
	s.add("hold the outer namespace's capabilities", unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&all)))
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		s.add("keep capability "+strconv.Itoa(int(c)), unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c).soft = true
	}
	s.add("leave the session", unix.SYS_SETSID)
	s.add("usual umask", unix.SYS_UMASK, 0o022)
	s.add("leave the directory", unix.SYS_CHDIR, s.text("/"))
	s.ownDescriptors([]uintptr{fds[0], fds[0], fds[0], fds[1], program}, program, report)
	argv := []string{"fy", KeeperVerb}
	if ports {
		argv = append(argv, portsFlag)
	}
	s.exec(program, argv, nil)

	pid, err := s.start(unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWCGROUP, report)
	if err != nil {
		return 0, fmt.Errorf("make namespaces: %w (see fy doctor)", err)
	}
	fds.close(3)
	fail := func(err error) (int, error) {
		unix.Kill(pid, unix.SIGKILL)
		var ws unix.WaitStatus
		unix.Wait4(pid, &ws, 0, nil)
		return 0, err
	}
	one := make([]byte, 1)
	if _, err := io.ReadFull(said, one); err != nil {
		return fail(fmt.Errorf("make namespaces: the child ended: %w", err))
	}
	if err := writeMaps(pid, u.UID, u.UID, u.GID, u.GID, os.Geteuid() == 0); err != nil {
		return fail(err)
	}
	if _, err := goOn.Write(one); err != nil {
		return fail(fmt.Errorf("make namespaces: %w", err))
	}
	if err := s.report(said); err != nil {
		return fail(fmt.Errorf("enter the outer namespaces: %w", err))
	}
	return pid, nil
}

// writeMaps maps one user and one group (user_namespaces(7)). setgroups stays allowed only for root's children, who must leave root's
// groups first; the box's own namespace denies it in any case.
func writeMaps(pid, insideUID, outsideUID, insideGID, outsideGID int, groups bool) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	setgroups := "deny"
	if groups {
		setgroups = "allow"
	}
	for _, w := range []struct{ file, text string }{
		{"setgroups", setgroups},
		{"gid_map", fmt.Sprintf("%d %d 1\n", insideGID, outsideGID)},
		{"uid_map", fmt.Sprintf("%d %d 1\n", insideUID, outsideUID)},
	} {
		if err := os.WriteFile(filepath.Join(dir, w.file), []byte(w.text), 0); err != nil {
			return fmt.Errorf("map the box's user: %w (see fy doctor)", err)
		}
	}
	return nil
}

// handOver opens, as root, what the keeper could not by path, and id-maps it: what the box's user writes is then its owner's on disk.
// For an ordinary user there is nothing to hand over.
func handOver(spec *Spec) (map[string]*os.File, error) {
	handed := map[string]*os.File{}
	if os.Geteuid() != 0 {
		return handed, nil
	}
	paths := []string{spec.Repo}
	if spec.Home != "" {
		paths = append(paths, spec.Home)
	}
	for _, b := range append(append([]Bind(nil), spec.Caches...), spec.Mounts...) {
		paths = append(paths, b.Source)
	}
	fail := func(err error) (map[string]*os.File, error) {
		for _, f := range handed {
			f.Close()
		}
		return nil, err
	}
	for _, p := range paths {
		if handed[p] != nil {
			continue
		}
		f, err := idMapped(p, spec.User)
		if err != nil {
			return fail(err)
		}
		handed[p] = f
	}
	return handed, nil
}

func idMapped(p string, u User) (*os.File, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: p, Err: err}
	}
	fd, err := cloneTree(at, "")
	if err != nil {
		return nil, fmt.Errorf("clone %s: %w", p, err)
	}
	f := os.NewFile(uintptr(fd), p)
	if int(st.Uid) == u.UID && int(st.Gid) == u.GID {
		return f, nil
	}
	ns, err := mapNamespace(int(st.Uid), u.UID, int(st.Gid), u.GID)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer ns.Close()
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("id-map %s for uid %d: %w (this filesystem has no id-mapped mounts; give the directory to an ordinary user and run fy as that user)", p, u.UID, err)
	}
	return f, nil
}

// mapNamespace makes a user namespace that only holds a map: owners on disk → owners as seen through the mount (mount_setattr(2)).
func mapNamespace(diskUID, uid, diskGID, gid int) (*os.File, error) {
	said, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer said.Close()
	defer tell.Close()
	wait, goOn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	defer goOn.Close()
	l := &list{}
	l.wait("to be mapped", tell.Fd(), wait.Fd())
	pid, err := l.start(unix.CLONE_NEWUSER, tell.Fd())
	if err != nil {
		return nil, fmt.Errorf("make a namespace for the id-map: %w", err)
	}
	defer func() {
		unix.Kill(pid, unix.SIGKILL)
		var ws unix.WaitStatus
		unix.Wait4(pid, &ws, 0, nil)
	}()
	if _, err := io.ReadFull(said, make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("make a namespace for the id-map: %w", err)
	}
	if err := writeMaps(pid, diskUID, uid, diskGID, gid, true); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns/user"))
}

// Bounds of the walk through the repo: its entries, its depth, and the sockets and FIFOs that are covered. Beyond one of them no box is
// started: what was not looked at would not be covered.
const (
	maxWalk    = 5_000_000
	maxDepth   = 256
	maxCovered = 1_000
)

// sockets lists the sockets and FIFOs below dir. A read-only mount does not stop a connect, so each is covered in the box. Directories
// are opened from the one above, so that neither a link nor a deep tree leads the walk anywhere else or makes it slow.
func sockets(ctx context.Context, dir string) ([]string, error) {
	w := &walk{ctx: ctx}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("look for sockets in %q: %w", dir, err)
	}
	if err := w.dir(fd, "", 0); err != nil {
		return nil, fmt.Errorf("look for sockets in %q: %w", dir, err)
	}
	return w.found, nil
}

type walk struct {
	ctx   context.Context //nolint:containedctx // of one call
	n     int
	found []string
}

// dir looks through the directory that fd is open on, and closes it.
func (w *walk) dir(fd int, rel string, depth int) error {
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	if depth > maxDepth {
		return fmt.Errorf("%.200q…: more than %d directories deep: take them away first", rel, maxDepth)
	}
	if err := w.ctx.Err(); err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil // not ours to read, so not the box's either; or gone
	}
	for _, e := range entries {
		if w.n++; w.n > maxWalk {
			return fmt.Errorf("more than %d files", maxWalk)
		}
		switch {
		case e.Type()&(os.ModeSocket|os.ModeNamedPipe) != 0:
			if len(w.found) >= maxCovered {
				return fmt.Errorf("more than %d sockets and FIFOs: take them away first (find . -type s -o -type p)", maxCovered)
			}
			w.found = append(w.found, rel+e.Name())
		case e.IsDir():
			sub, err := unix.Openat(fd, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue // likewise
			}
			if err := w.dir(sub, rel+e.Name()+"/", depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}
