package container

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// dialTimeout bounds a connection to a port in the container; an emulated machine takes its time.
const dialTimeout = 30 * time.Second

// connected is what Connect writes once it is connected.
const connected = '+'

// Stream is a connection to a port in a container.
type Stream struct {
	out io.Reader
	in  *frames
	raw io.Closer // what in writes to
	cmd *exec.Cmd
	end sync.Once
}

// Dial connects to a port that something in the box id listens on.
func Dial(ctx context.Context, h Host, id string, port int) (*Stream, error) {
	argv := h.Argv([]string{"podman", "exec", "--interactive", Name(id), Program, DialVerb, strconv.Itoa(port)})
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it ends when the stream is closed
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("reach the VM: %w", err)
	}
	s := &Stream{out: out, in: &frames{w: in}, raw: in, cmd: cmd}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	var b [1]byte
	_, err = io.ReadFull(out, b[:])
	if !stop() || err != nil || b[0] != connected {
		_ = s.Close()
		return nil, fmt.Errorf("reach the box's port %d: nothing listens there", port)
	}
	return s, nil
}

// Read reads what the port sends.
func (s *Stream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write sends to the port.
func (s *Stream) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := min(len(p)-n, maxFrame)
		if err := s.in.send(frameData, p[n:n+k]); err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// CloseWrite ends what is sent; what comes goes on.
func (s *Stream) CloseWrite() error { return s.in.send(frameEnd, nil) }

// Close ends the connection. It may be called again, and by several goroutines.
func (s *Stream) Close() error {
	s.end.Do(func() {
		_ = s.raw.Close()        // Connect ends with its input
		_ = s.cmd.Process.Kill() // it may have ended
		_ = s.cmd.Wait()         // its status says no more
	})
	return nil
}

// Connect is what Dial starts in the container: it connects to a port there and relays its standard streams. The other side being gone
// without a word ends it; a word that its input has ended does not.
func Connect(port string, in io.Reader, out *os.File) int {
	var c net.Conn
	var err error
	d := net.Dialer{Timeout: dialTimeout / 2}
	for _, host := range []string{"127.0.0.1", "::1"} {
		if c, err = d.Dial("tcp", net.JoinHostPort(host, port)); err == nil { //nolint:noctx // the timeout bounds it
			break
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fy:", err)
		return 1
	}
	defer c.Close()
	if _, err := out.Write([]byte{connected}); err != nil {
		return 1
	}
	go func() {
		defer c.Close()
		buf := make([]byte, maxFrame)
		for {
			kind, data, err := readFrame(in, buf)
			switch {
			case err != nil:
				return
			case kind == frameData:
				if _, err := c.Write(data); err != nil {
					return
				}
			case kind == frameEnd:
				if t, ok := c.(*net.TCPConn); ok {
					_ = t.CloseWrite() // it may have ended
				}
			}
		}
	}()
	_, _ = io.Copy(out, c) // either side may end it
	return 0
}
