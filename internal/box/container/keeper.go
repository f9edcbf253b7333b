package container

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"foldyard/internal/box/wire"
)

// stopTimeout bounds the end of a container.
const stopTimeout = 60 * time.Second

// Keeper answers on a box's socket what a namespace's keeper would: adopt, exec, facts, stop. It lives in the supervisor.
type Keeper struct {
	Host   Host
	ID     string
	Nonce  string
	Digest string
	Proxy  *net.TCPListener // the box's way out, handed to who adopts
	// LaunchWithin ends a box whose launching command did not come in time: who made it may have died. 0: it has none.
	LaunchWithin time.Duration

	once    sync.Once
	done    chan struct{}
	launch  *time.Timer // nil: no launch is waited for
	mu      sync.Mutex  // guards adopted and launch
	adopted *wire.Conn
	l       *net.UnixListener
	serving sync.WaitGroup
}

// Serve listens on socket until the box ends. It returns once it listens.
func (k *Keeper) Serve(ctx context.Context, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for the box: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		_ = l.Close()
		return err
	}
	k.l, k.done = l, make(chan struct{})
	ctx = context.WithoutCancel(ctx)
	if k.LaunchWithin > 0 {
		k.mu.Lock()
		k.launch = time.AfterFunc(k.LaunchWithin, func() { k.finish(ctx) })
		k.mu.Unlock()
	}
	k.serving.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go k.one(ctx, wire.New(c))
		}
	})
	return nil
}

// Gone gives the keeper up without ending the container: the next supervisor takes it back.
func (k *Keeper) Gone() { k.once.Do(k.close) }

func (k *Keeper) close() {
	close(k.done)
	_ = k.l.Close()
	_ = k.Proxy.Close()
	k.mu.Lock()
	if k.launch != nil {
		k.launch.Stop()
	}
	if k.adopted != nil {
		_ = k.adopted.Close()
	}
	k.mu.Unlock()
}

// finish ends the box.
func (k *Keeper) finish(ctx context.Context) {
	k.once.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		_ = Stop(ctx, k.Host, k.ID) // the machine may be gone, and the container with it
		k.close()
	})
}

func (k *Keeper) one(ctx context.Context, c *wire.Conn) {
	defer c.Close()
	_ = c.Unix().SetReadDeadline(time.Now().Add(10 * time.Second))
	m, files, err := c.Recv()
	if err != nil {
		return
	}
	_ = c.Unix().SetReadDeadline(time.Time{})
	fail := func(why string) { _ = c.Send(&wire.Message{Op: "failed", Error: why}) }
	if subtle.ConstantTimeCompare([]byte(m.Nonce), []byte(k.Nonce)) != 1 {
		closeAll(files)
		fail("not this box's nonce")
		return
	}
	if m.Op == "exec" {
		k.exec(ctx, c, m.Exec, files)
		return
	}
	closeAll(files)
	switch m.Op {
	case "adopt":
		k.adopt(c)
	case "facts":
		b, err := json.Marshal(map[string]any{"box": k.ID, "digest": k.Digest, "rules": "vm"})
		if err != nil {
			fail(err.Error())
			return
		}
		_ = c.Send(&wire.Message{Op: "ok", Data: b})
	case "stop":
		k.finish(ctx)
		_ = c.Send(&wire.Message{Op: "ok"})
	default:
		fail("not built for a box in a VM: " + strconv.Quote(m.Op))
	}
}

func (k *Keeper) adopt(c *wire.Conn) {
	f, err := k.Proxy.File()
	if err != nil {
		_ = c.Send(&wire.Message{Op: "failed", Error: err.Error()})
		return
	}
	k.mu.Lock()
	if k.adopted != nil {
		_ = k.adopted.Close()
	}
	k.adopted = c
	k.mu.Unlock()
	err = c.Send(&wire.Message{Op: "links", Names: []string{"proxy"}}, f)
	_ = f.Close()
	if err != nil {
		return
	}
	for {
		m, files, err := c.Recv()
		closeAll(files)
		if err != nil {
			return
		}
		if m.Op == "granted" { // the machine's firewall lets no raw address through, granted or not
			_ = c.Send(&wire.Message{Op: "ok"})
		}
	}
}

// exec runs a command in the container and stands between it and the client that asked.
func (k *Keeper) exec(ctx context.Context, c *wire.Conn, e *wire.Exec, files []*os.File) {
	defer closeAll(files)
	fail := func(err error) { _ = c.Send(&wire.Message{Op: "failed", Error: err.Error()}) }
	if e == nil || len(e.Argv) == 0 || !e.TTY && len(files) != 3 {
		fail(errors.New("a command needs words and three descriptors"))
		return
	}
	if e.Launch {
		k.mu.Lock()
		late := k.launch != nil && !k.launch.Stop()
		k.mu.Unlock()
		if late {
			fail(errors.New("the box has ended: its command did not come in time"))
			return
		}
		defer k.finish(ctx)
	}
	argv := k.Host.Argv([]string{"podman", "exec", "--interactive", Name(k.ID), Program, EnterVerb})
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it ends with its client's connection
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	if err != nil {
		fail(err)
		return
	}
	w := &frames{w: in}
	var master, slave *os.File
	if e.TTY {
		if master, slave, err = terminal(e.Rows, e.Cols); err != nil {
			fail(err)
			return
		}
		defer slave.Close()
		defer master.Close()
		cmd.Stdout, cmd.Stderr = slave, slave
	} else {
		cmd.Stdout, cmd.Stderr = files[1], files[2]
	}
	var typed *os.File // the same terminal once more: a read that waits on it ends when it is closed
	if slave != nil {
		err := rawMode(slave)
		if err == nil {
			typed, err = os.OpenFile(slave.Name(), os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
		}
		if err != nil {
			fail(err)
			return
		}
		defer typed.Close()
	}
	if err := cmd.Start(); err != nil {
		fail(fmt.Errorf("reach the VM: %w", err))
		return
	}
	if master != nil {
		if err := c.Send(&wire.Message{Op: "terminal"}, master); err != nil {
			_ = cmd.Process.Kill()
		}
		_ = master.Close()
	}
	if err := w.open(command{Argv: e.Argv, Env: e.Env, Dir: e.Dir, TTY: e.TTY, Rows: e.Rows, Cols: e.Cols}); err != nil {
		_ = cmd.Process.Kill()
	}
	_ = c.Send(&wire.Message{Op: "started"})
	ended := make(chan struct{})
	var watching sync.WaitGroup
	from := typed
	if !e.TTY {
		closeAll(files[1:])
		from, files = files[0], files[:1]
	}
	go pump(w, from)
	if slave != nil {
		watching.Go(func() { watchSize(w, slave, ended) })
	}
	go func() {
		for {
			m, extra, err := c.Recv()
			closeAll(extra)
			if err != nil {
				_ = in.Close() // Enter ends the command when its input ends without a word
				return
			}
			if m.Op == "signal" && m.Signal > 0 && m.Signal < 65 {
				_ = w.send(frameSignal, []byte{byte(m.Signal)})
			}
		}
	}()
	code := exitCode(cmd.Wait())
	close(ended)
	watching.Wait()  // it holds the terminal
	if code == 255 { // ssh's own failure, or the command's
		runs, err := Runs(ctx, k.Host, k.ID)
		if err != nil {
			fail(errors.New("the connection to the VM was lost"))
			return
		}
		if !runs {
			fail(errors.New("the container has ended"))
			k.finish(ctx)
			return
		}
	}
	_ = c.Send(&wire.Message{Op: "exited", Status: code << 8})
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	}
	return 255
}

// pump frames what the client sends.
func pump(w *frames, from *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && w.send(frameData, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = w.send(frameEnd, nil) // it may have ended
			return
		}
	}
}

// watchSize passes on the size of the client's terminal, which changes without a word.
func watchSize(w *frames, tty *os.File, ended <-chan struct{}) {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	var was [4]byte
	for {
		select {
		case <-ended:
			return
		case <-t.C:
		}
		rows, cols, err := size(tty)
		if err != nil {
			return
		}
		var now [4]byte
		binary.BigEndian.PutUint16(now[:], rows)
		binary.BigEndian.PutUint16(now[2:], cols)
		if now != was {
			was = now
			if w.send(frameSize, now[:]) != nil {
				return
			}
		}
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
