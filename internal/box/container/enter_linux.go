package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pause is the container's first process: it reaps, and ends when it is told to.
func Pause() int {
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT)
	for sig := range ch {
		if sig != unix.SIGCHLD {
			return 0
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return 0
}

// hangup is how long a command may live on after whoever started it is gone.
const hangup = 2 * time.Second

// Enter runs one command in the container: what to run, and its input, come framed on stdin. It returns the command's exit code as
// a shell would; 126 and 127 also mean that it could not be started, and say so on stderr.
func Enter(stdin io.Reader, stdout, stderr *os.File) int {
	c, err := readCommand(stdin)
	if err != nil {
		fmt.Fprintln(stderr, "fy: no command:", err)
		return 125
	}
	attr := &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Sys: &syscall.SysProcAttr{Setsid: true}}
	var input, master *os.File
	if c.TTY {
		m, s, err := terminal(c.Rows, c.Cols)
		if err != nil {
			fmt.Fprintln(stderr, "fy:", err)
			return 125
		}
		master, input = m, m
		attr.Files = []uintptr{s.Fd(), s.Fd(), s.Fd()}
		attr.Sys.Setctty = true
		defer s.Close()
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			fmt.Fprintln(stderr, "fy:", err)
			return 125
		}
		input = w
		attr.Files = []uintptr{r.Fd(), stdout.Fd(), stderr.Fd()}
		defer r.Close()
	}
	pid, err := start(c, attr)
	if err != nil {
		fmt.Fprintf(stderr, "fy: %q: %v\n", c.Argv[0], err)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return 127
		}
		return 126
	}
	copied := make(chan struct{})
	if master != nil {
		go func() {
			defer close(copied)
			_, _ = io.Copy(stdout, master) // EIO once nobody has the terminal open
		}()
	} else {
		close(copied)
	}
	go feed(stdin, input, master, pid)
	var ws unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	select { // what it left behind may hold the terminal for ever
	case <-copied:
	case <-time.After(300 * time.Millisecond):
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// start runs the command as execvp would, with its own PATH.
func start(c command, attr *syscall.ProcAttr) (int, error) {
	file := c.Argv[0]
	if !strings.Contains(file, "/") {
		list := "/usr/local/bin:/usr/bin:/bin"
		for _, kv := range c.Env {
			if v, ok := strings.CutPrefix(kv, "PATH="); ok {
				list = v
			}
		}
		file = ""
		found := error(unix.ENOENT)
		for _, d := range filepath.SplitList(list) {
			if !filepath.IsAbs(d) {
				d = filepath.Join(c.Dir, d)
			}
			p := filepath.Join(d, c.Argv[0])
			st, err := os.Stat(p)
			if err != nil || st.IsDir() {
				continue
			}
			if unix.Access(p, unix.X_OK) != nil {
				found = unix.EACCES
				continue
			}
			file = p
			break
		}
		if file == "" {
			return 0, found
		}
	}
	pid, err := syscall.ForkExec(file, c.Argv, attr)
	if errors.Is(err, unix.ENOEXEC) {
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", file}, c.Argv[1:]...), attr)
	}
	return pid, err
}

// feed passes on input, signals and sizes. When the other side is gone without a word, so is the command.
func feed(from io.Reader, input, master *os.File, pid int) {
	buf := make([]byte, maxFrame)
	for {
		kind, data, err := readFrame(from, buf)
		if err != nil {
			_ = unix.Kill(-pid, unix.SIGHUP)
			_ = unix.Kill(-pid, unix.SIGCONT)
			time.AfterFunc(hangup, func() { _ = unix.Kill(-pid, unix.SIGKILL) })
			return
		}
		switch {
		case kind == frameData:
			_, _ = input.Write(data) // it may read no more
		case kind == frameEnd && master == nil:
			_ = input.Close()
		case kind == frameSignal && len(data) == 1:
			_ = unix.Kill(-pid, syscall.Signal(data[0]))
		case kind == frameSize && len(data) == 4 && master != nil:
			_ = setSize(master, binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]))
		}
	}
}
