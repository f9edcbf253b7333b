package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"foldyard/internal/host/state"
)

// Launch says how to start a project's supervisor.
type Launch struct {
	Program string   // the executable
	Args    []string // the hidden verb and its arguments
	Socket  string   // where it will answer
	Lock    string   // what it holds while it lives
	Log     string   // file that its output is appended to
	Binary  string   // identity of this executable, see Binary
	// Prepare, if set, runs before a supervisor is started: what must exist for it.
	Prepare func() error
}

// readyFD is the descriptor on which a supervisor that was launched reports: one line, "ready", "taken" or what went wrong.
const readyFD = 3

// maxLog is the size in bytes beyond which a starting supervisor begins a new log.
const maxLog = 8 << 20

// Bounds of the wait for a supervisor. One that ends may have a virtual machine to stop first.
const (
	startTimeout = 20 * time.Second
	stopTimeout  = 4 * time.Minute
)

// Connect returns a client of the supervisor that runs. started tells whether it had to be started. One that was started
// from another executable is replaced; its boxes go on.
func (l Launch) Connect(ctx context.Context) (c *Client, started bool, err error) {
	c = NewClient(l.Socket)
	c.Binary, c.renew = l.Binary, l.Replace
	if c.probe(ctx) == nil {
		return c, false, nil
	}
	if err := l.start(ctx, c); err != nil {
		return nil, false, err
	}
	return c, true, nil
}

// Replace stops a supervisor, keeps its boxes, and starts one from this executable.
func (l Launch) Replace(ctx context.Context) error {
	if err := l.Stop(ctx, true); err != nil && !NotRunning(err) {
		return err
	}
	c := NewClient(l.Socket)
	defer c.Close()
	return l.start(ctx, c)
}

// Stop stops the supervisor and returns when it has given the project up. NotRunning tells of an error that there was none.
func (l Launch) Stop(ctx context.Context, keep bool) error {
	c := NewClient(l.Socket)
	defer c.Close()
	if err := c.Stop(ctx, keep); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	// The lock, not the process: nobody may have reaped it, and what counts is that the next one can start.
	return poll(ctx, "the supervisor to end", func() bool {
		lock, err := state.TryLock(l.Lock)
		if err == nil {
			_ = lock.Unlock() // we only looked
		}
		return err == nil
	})
}

func poll(ctx context.Context, what string, done func() bool) error {
	t := time.NewTicker(3 * time.Millisecond)
	defer t.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-t.C:
		}
	}
	return nil
}

// start starts a supervisor in a session of its own, and waits until it or another one answers.
func (l Launch) start(ctx context.Context, c *Client) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if l.Prepare != nil {
		if err := l.Prepare(); err != nil {
			return err
		}
	}
	if info, err := os.Lstat(l.Log); err == nil && info.Size() > maxLog {
		if err := os.Rename(l.Log, l.Log+".1"); err != nil {
			return fmt.Errorf("rotate supervisor's log: %w", err)
		}
	}
	log, err := os.OpenFile(l.Log, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open supervisor's log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command(l.Program, l.Args...) //nolint:noctx // it outlives us
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	w.Close()
	_ = cmd.Process.Release() // it is not waited for: it outlives us, or says on the pipe why not
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(io.LimitReader(r, 64<<10)).ReadString('\n')
	line = strings.TrimSpace(line)
	switch {
	case line == "ready":
		return nil
	case line == "taken": // somebody else won the race; theirs is as good
		return poll(ctx, "the supervisor that is starting", func() bool {
			conn, err := c.dial(ctx)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	case line != "":
		return &Error{Code: CodeInternal, Detail: "start supervisor: " + line}
	case ctx.Err() != nil:
		return fmt.Errorf("start supervisor: %w", ctx.Err())
	}
	return &Error{Code: CodeInternal, Detail: fmt.Sprintf("start supervisor: it ended without a word (%v)", err), Hint: "see " + l.Log}
}

// Ready is the launched side of start: it tells the launcher, if there is one, how the start went.
type Ready struct{ f *os.File }

// ReadyPipe takes the pipe that a launched supervisor inherited.
func ReadyPipe() *Ready {
	syscall.CloseOnExec(readyFD)
	return &Ready{os.NewFile(readyFD, "ready")}
}

// Tell reports err, or that the supervisor answers when err is nil. Only the first call counts.
func (r *Ready) Tell(err error) {
	if r == nil || r.f == nil {
		return
	}
	line := "ready"
	if err != nil {
		line = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	_, _ = io.WriteString(r.f, line+"\n") // the launcher may have gone
	_ = r.f.Close()
	r.f = nil
}

// ErrTaken is what a supervisor that lost the start race tells its launcher.
var ErrTaken = errors.New("taken")
