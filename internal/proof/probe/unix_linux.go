package probe

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// connectUnix tries a unix socket of any type and returns the number of the
// process behind it.
func connectUnix(path string) (pid int, err error) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		fd, cerr := connect(unix.AF_UNIX, kind, 0, &unix.SockaddrUnix{Name: path})
		if cerr != nil {
			if err == nil || cerr != unix.EPROTOTYPE {
				err = cerr
			}
			continue
		}
		cred, gerr := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		closeFD(fd)
		if gerr != nil {
			return 0, nil //nolint:nilerr // connected to nobody we can name
		}
		return int(cred.Pid), nil
	}
	return 0, err
}

// unixPaths tries the sockets of the host that the plan names for a row, at
// their own paths. What answers may be the box's own: the host judges the peer.
func (p *prober) unixPaths(_ context.Context, id string) Finding {
	var t tally
	own := p.boundPaths()
	for _, s := range p.plan.Sockets {
		if s.ID != id {
			continue
		}
		p.tryUnix(&t, s.Path, own)
	}
	p.sameFiles(&t, id)
	f := t.finding("the host has no such socket")
	f.Uncontrolled = ownUnixSocket()
	return f
}

func (p *prober) tryUnix(t *tally, path string, own map[string]bool) {
	if len(path) > 107 {
		t.add(Refused, path, "longer than a socket address")
		return
	}
	t.connect(path, path, own)
}

// connect notes who answers at a path that is reached as at.
func (t *tally) connect(at, path string, own map[string]bool) {
	pid, err := connectUnix(at)
	if err == nil {
		t.peers = append(t.peers, Peer{Path: path, PID: pid, Own: own[path]})
		t.add(Absent, fmt.Sprintf("%q", path), fmt.Sprintf("answered by process %d", pid))
		return
	}
	o, how := fromError(err)
	t.add(o, fmt.Sprintf("%q", path), how)
}

// boundPaths returns the paths of the unix sockets that live in the box's
// network namespace.
func (p *prober) boundPaths() map[string]bool {
	paths := map[string]bool{}
	f, err := os.Open("/proc/1/net/unix")
	if err != nil {
		return paths // then no socket counts as the box's own
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for lines.Scan() && len(paths) < 1<<16 {
		if fields := strings.SplitN(strings.TrimSpace(lines.Text()), " ", 8); len(fields) == 8 {
			paths[strings.TrimSpace(fields[7])] = true
		}
	}
	return paths
}

// abstractUnix tries the host's listener, and names that desktops use.
func (p *prober) abstractUnix(context.Context, string) Finding {
	var t tally
	if p.plan.Abstract != "" {
		_, err := connectUnix("@" + p.plan.Abstract)
		o, how := fromError(err)
		t.add(o, "the host's listener", how)
	}
	own := p.boundPaths()
	for _, name := range []string{"@/tmp/.X11-unix/X0", "@/tmp/.X11-unix/X1", "@/tmp/.ICE-unix/1", "@/org/freedesktop/systemd1/private"} {
		p.tryUnix(&t, name, own)
	}
	f := t.finding("")
	f.Uncontrolled = ownUnixSocket()
	return f
}

// ownUnixSocket is the control of rows about unix sockets.
func ownUnixSocket() string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "no unix socket opens: " + err.Error()
	}
	defer closeFD(fd)
	// Binding to no name lets the kernel choose an abstract one.
	if err := unix.Bind(fd, &unix.SockaddrUnix{}); err != nil {
		return "no unix socket can be bound: " + err.Error()
	}
	if err := unix.Listen(fd, 1); err != nil {
		return "no unix socket can listen: " + err.Error()
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return "no unix socket has a name: " + err.Error()
	}
	name, ok := sa.(*unix.SockaddrUnix)
	if !ok {
		return "a unix socket has no name"
	}
	if _, err := connectUnix(name.Name); err != nil {
		return "a unix socket of our own does not answer: " + err.Error()
	}
	return ""
}

// unixWalk connects to every socket that the walk found.
func (p *prober) unixWalk(context.Context, string) Finding {
	w := p.walked()
	var t tally
	own := p.boundPaths()
	for _, path := range w.sockets {
		if len(path) > 107 {
			p.tryLong(&t, path, own)
			continue
		}
		p.tryUnix(&t, path, own)
	}
	f := t.finding("")
	if t.tried == 0 {
		f = Finding{Outcome: Absent, Detail: fmt.Sprintf("no socket among %d files", w.files)}
	}
	if w.cut != "" {
		f.Uncontrolled = "the walk was cut off: " + w.cut
	} else {
		f.Uncontrolled = ownUnixSocket()
	}
	return f
}

// tryLong connects to a path that does not fit a socket address, by way of its
// directory.
func (p *prober) tryLong(t *tally, path string, own map[string]bool) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.add(Errored, fmt.Sprintf("%q", path), err.Error())
		return
	}
	defer closeFD(dir)
	// The box's /proc does not know this process, so its descriptor has no
	// path there; a short link does as well.
	link := fmt.Sprintf("/tmp/.fyp-%s-%d", p.plan.Nonce[:8], dir)
	if err := unix.Symlink(filepath.Dir(path), link); err != nil {
		t.add(Errored, fmt.Sprintf("%q", path), err.Error())
		return
	}
	defer unix.Unlink(link) //nolint:errcheck // in the box's own /tmp
	short := filepath.Join(link, filepath.Base(path))
	if len(short) > 107 {
		t.add(Errored, fmt.Sprintf("%q", path), "too long to try")
		return
	}
	t.connect(short, path, own)
}
