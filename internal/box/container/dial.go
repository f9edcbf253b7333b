package container

import (
	"context"
	"errors"
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
	out  io.Reader
	buf  []byte // a frame
	rest []byte // what was not read of it
	over bool   // no more comes
	in   *frames
	raw  io.Closer // what in writes to
	cmd  *exec.Cmd
	end  sync.Once
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
	s := &Stream{out: out, buf: make([]byte, maxFrame), in: &frames{w: in}, raw: in, cmd: cmd}
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

// Read reads what the port sends. A connection that is cut before its server ended it is io.ErrUnexpectedEOF.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.over {
			return 0, io.EOF
		}
		kind, data, err := readFrame(s.out, s.buf)
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		}
		s.over = kind == frameEnd
		s.rest = data
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

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

// Connect is what Dial starts in the container: it connects to a port there and relays its standard streams, in frames, of which the last
// says that its way ended. The other side being gone without a word ends it; one way's end does not.
func Connect(port string, in io.Reader, out io.Writer) int {
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
	sent := make(chan struct{}) // closed when nothing more goes to the port
	go func() {
		defer c.Close() // the other side is gone, or the port takes no more
		send(c.(*net.TCPConn), in, sync.OnceFunc(func() { close(sent) }))
	}()
	frames := frames{w: out}
	buf := make([]byte, maxFrame)
	for {
		n, err := c.Read(buf)
		if n > 0 && frames.send(frameData, buf[:n]) != nil {
			return 1
		}
		if errors.Is(err, io.EOF) {
			if frames.send(frameEnd, nil) != nil {
				return 1
			}
			<-sent
			return 0
		}
		if err != nil {
			return 1
		}
	}
}

// send passes frames on to c, and tells ended when one says that it was the last, or no more comes. It returns when the other side is gone.
func send(c *net.TCPConn, in io.Reader, ended func()) {
	defer ended()
	buf := make([]byte, maxFrame)
	for {
		kind, data, err := readFrame(in, buf)
		if err != nil {
			return
		}
		switch kind {
		case frameData:
			if _, err := c.Write(data); err != nil {
				return
			}
		case frameEnd:
			_ = c.CloseWrite() // it may have ended
			ended()
		}
	}
}
