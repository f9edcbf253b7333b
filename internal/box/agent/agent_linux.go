package agent

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"foldyard/internal/box/wire"
)

// Main runs the agent. It returns the exit status of the process.
func Main() int {
	// Before there is anybody else in the box: what runs here may not be traced, and its descriptors not be opened, by the box.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 125
	}
	conn, err := wire.FromFile(os.NewFile(descriptor, "keeper"))
	if err != nil {
		return 125
	}
	a := &agent{conn: conn, commands: map[int]*command{}, byPid: map[int]*command{}}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// Caught and dropped: what is ignored would be ignored by every command too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGTTOU, unix.SIGTTIN, unix.SIGTSTP, unix.SIGUSR1, unix.SIGUSR2)
	go func() {
		for range children {
			a.reap()
		}
	}()
	for {
		m, files, err := conn.Recv()
		if err != nil {
			return 0
		}
		a.obey(m, files)
		for _, f := range files {
			f.Close()
		}
	}
}

type agent struct {
	conn *wire.Conn

	// mu guards what follows, and is held from before a fork until its pid is known: a command that ends at once is found.
	mu       sync.Mutex
	commands map[int]*command
	byPid    map[int]*command
}

type command struct {
	session, pid int
	ended        bool
}

func (a *agent) obey(m *wire.Message, files []*os.File) {
	switch m.Op {
	case "start":
		if m.Exec != nil {
			a.start(m.Session, m.Exec, files)
		}
	case "signal":
		a.signal(m.Session, syscall.Signal(m.Signal))
	case "hangup":
		a.signal(m.Session, unix.SIGHUP)
		a.signal(m.Session, unix.SIGCONT)
		a.mu.Lock()
		delete(a.commands, m.Session)
		a.mu.Unlock()
	}
}

func (a *agent) signal(session int, sig syscall.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.commands[session]; c != nil && !c.ended && sig > 0 {
		syscall.Kill(-c.pid, sig)
	}
}

func (a *agent) start(session int, e *wire.Exec, files []*os.File) {
	fail := func(err error) {
		errno := unix.EINVAL
		errors.As(err, &errno)
		a.conn.Send(&wire.Message{Op: "failed", Session: session, Errno: int(errno)})
	}
	if len(e.Argv) == 0 {
		fail(unix.EINVAL)
		return
	}
	attr := &syscall.ProcAttr{Dir: e.Dir, Env: e.Env, Sys: &syscall.SysProcAttr{Setsid: true}}
	switch {
	case e.TTY && len(files) == 1:
		fd := files[0].Fd()
		attr.Files = []uintptr{fd, fd, fd}
		attr.Sys.Setctty = true // Ctty 0: the child's standard input
	case !e.TTY && len(files) == 3:
		for _, f := range files {
			attr.Files = append(attr.Files, f.Fd())
		}
	default:
		fail(unix.EBADF)
		return
	}
	file, err := lookPath(e.Argv[0], e.Env, e.Dir)
	if err != nil {
		fail(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pid, err := syscall.ForkExec(file, e.Argv, attr)
	if errors.Is(err, unix.ENOEXEC) {
		// A script without a first line that says what runs it: as a shell would.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", file}, e.Argv[1:]...), attr)
	}
	if err != nil {
		fail(err)
		return
	}
	c := &command{session: session, pid: pid}
	a.commands[session], a.byPid[pid] = c, c
	a.conn.Send(&wire.Message{Op: "started", Session: session, Pid: pid})
}

// reap collects every child that has ended, ours and orphans of theirs.
func (a *agent) reap() {
	for {
		var ws unix.WaitStatus
		a.mu.Lock()
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err != nil || pid <= 0 {
			a.mu.Unlock()
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		c := a.byPid[pid]
		if c != nil {
			c.ended = true
			delete(a.byPid, pid)
			delete(a.commands, c.session)
		}
		a.mu.Unlock()
		if c != nil {
			a.conn.Send(&wire.Message{Op: "exited", Session: c.session, Status: int(ws)})
		}
	}
}

// lookPath finds the program as execvp would, with the command's own PATH.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	list := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			list = v
		}
	}
	found := error(unix.ENOENT)
	for _, d := range filepath.SplitList(list) {
		if d == "" {
			d = "."
		}
		p := filepath.Join(d, name)
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		st, err := os.Stat(p)
		if err != nil || st.IsDir() {
			continue
		}
		if unix.Access(p, unix.X_OK) != nil {
			found = unix.EACCES
			continue
		}
		return p, nil
	}
	return "", found
}
