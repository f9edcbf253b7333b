package namespace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"foldyard/internal/box/wire"
)

// exec has the agent start a command, and stands between it and the client that asked: neither talks to the other.
func (k *keeper) exec(c *wire.Conn, e *wire.Exec, files []*os.File) {
	defer closeAll(files)
	refuse := func(err error) { c.Send(&wire.Message{Op: "failed", Error: err.Error()}) }
	if e == nil || len(e.Argv) == 0 {
		refuse(errors.New("no command"))
		return
	}
	if e.Launch {
		if k.waiting != nil {
			k.waiting.Stop()
		}
		defer k.finish()
	}
	var master *os.File
	if e.TTY {
		m, s, err := terminal(e.Rows, e.Cols)
		if err != nil {
			refuse(err)
			return
		}
		master = m
		files = append(files, s)
		defer m.Close()
	} else if len(files) != 3 {
		refuse(fmt.Errorf("a command needs three descriptors, got %d", len(files)))
		return
	}
	k.mu.Lock()
	k.next++
	id := k.next
	k.sessions[id] = c
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.sessions, id)
		k.mu.Unlock()
		k.agent.Send(&wire.Message{Op: "hangup", Session: id})
	}()
	if master != nil {
		if err := c.Send(&wire.Message{Op: "terminal"}, master); err != nil {
			return
		}
		master.Close()
	}
	err := k.agent.Send(&wire.Message{Op: "start", Session: id, Exec: e}, files...)
	closeAll(files)
	files = nil
	if err != nil {
		refuse(fmt.Errorf("reach the agent: %w", err))
		return
	}
	for {
		m, extra, err := c.Recv()
		closeAll(extra)
		if err != nil {
			return
		}
		if m.Op == "signal" {
			k.agent.Send(&wire.Message{Op: "signal", Session: id, Signal: m.Signal})
		}
	}
}

// hearAgent passes on what the agent says of the commands it started. The agent is of the box, and a stranger: an odd message ends it.
func (k *keeper) hearAgent() {
	defer k.finish()
	for {
		m, files, err := k.agent.Recv()
		closeAll(files)
		if err != nil {
			return
		}
		switch m.Op {
		case "started", "failed", "exited":
			k.mu.Lock()
			c := k.sessions[m.Session]
			k.mu.Unlock()
			if c != nil {
				c.Unix().SetWriteDeadline(time.Now().Add(10 * time.Second))
				c.Send(&wire.Message{Op: m.Op, Pid: m.Pid, Status: m.Status, Errno: m.Errno})
			}
		default:
			return
		}
	}
}

// terminal makes a pseudo terminal of the box's own devpts, so that its name means something inside.
func terminal(rows, cols uint16) (master, slave *os.File, err error) {
	m, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	master = os.NewFile(uintptr(m), "ptmx")
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("unlock a terminal: %w", err)
	}
	if rows > 0 && cols > 0 {
		unix.IoctlSetWinsize(m, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	s, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", errno)
	}
	return master, os.NewFile(s, "tty"), nil
}

// maxProbeOutput bounds what a probe may say.
const maxProbeOutput = 8 << 20

// probe runs the battery: a program of the host's, joined to the box's user, mount and network namespaces but not to its pid namespace, so
// that nothing in the box can see, trace or kill it, or answer for it. With "root" among the flags it keeps every capability that the
// box's user namespace has: more than the box's own root is ever given.
func (k *keeper) probe(program []*os.File, plan json.RawMessage, flags []string) (json.RawMessage, error) {
	if len(program) != 1 {
		return nil, fmt.Errorf("run the probes: want their program, got %d descriptors", len(program))
	}
	in, feed, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer in.Close()
	defer feed.Close()
	result, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer result.Close()
	defer out.Close()
	said, tell, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer said.Close()
	defer tell.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	fds, err := highFDs(in, out, null, tell, program[0])
	if err != nil {
		return nil, err
	}
	defer fds.closeAll()
	p := nothing
	for _, f := range flags {
		if f == "root" {
			p = every
		}
	}
	l := &list{}
	l.add("join the box's user namespace", unix.SYS_SETNS, k.userNS.Fd(), unix.CLONE_NEWUSER)
	l.add("join the box's mount namespace", unix.SYS_SETNS, k.mountNS.Fd(), unix.CLONE_NEWNS)
	l.add("leave the session", unix.SYS_SETSID)
	l.add("usual umask", unix.SYS_UMASK, 0o022)
	l.ownDescriptors(fds[:3], fds[4], fds[3])
	l.confine(p, filter(k.spec.Nested))
	l.exec(fds[4], []string{"fy", ProbeVerb}, nil)
	pid, err := l.start(0, fds[3])
	fds.closeAll()
	in.Close()
	out.Close()
	tell.Close()
	if err != nil {
		return nil, fmt.Errorf("start the probes: %w", err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
			unix.Kill(pid, unix.SIGKILL)
		case <-done:
		}
	}()
	defer func() {
		close(done)
		unix.Kill(pid, unix.SIGKILL)
		var ws unix.WaitStatus
		unix.Wait4(pid, &ws, 0, nil)
	}()
	if err := l.report(said); err != nil {
		return nil, fmt.Errorf("start the probes: %w", err)
	}
	go func() {
		feed.Write(plan)
		feed.Close()
	}()
	var buf bytes.Buffer
	if _, err := io.Copy(&buf, io.LimitReader(result, maxProbeOutput)); err != nil {
		return nil, fmt.Errorf("read the probes' result: %w", err)
	}
	if !json.Valid(buf.Bytes()) {
		return nil, errors.New("the probes ended without a result")
	}
	return buf.Bytes(), nil
}
