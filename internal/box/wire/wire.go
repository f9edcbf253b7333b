// Package wire carries messages and open descriptors over a unix stream socket between fy's own processes: the host's side and the
// keeper, the keeper and the agent. A message is a four-byte big-endian length and that many bytes of JSON; descriptors travel with
// the length. It bounds what it reads, and trusts nothing it was sent: a peer may be a box.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// MaxMessage bounds one message, in bytes of JSON: an argument list and an environment fit, a flood does not.
const MaxMessage = 4 << 20

// MaxFiles bounds the descriptors of one message: all listeners of a box fit, with and without nf_tables.
const MaxFiles = 32

// Message is what the parties say to each other. Op says which of the other fields mean something.
type Message struct {
	Op    string `json:"op"`
	Nonce string `json:"nonce,omitempty"`
	Error string `json:"error,omitempty"`

	Session int             `json:"session,omitempty"` // names one exec between keeper and agent
	Exec    *Exec           `json:"exec,omitempty"`
	Pid     int             `json:"pid,omitempty"`    // in the box's pid namespace
	Status  int             `json:"status,omitempty"` // as wait4 gives it
	Errno   int             `json:"errno,omitempty"`  // why a command could not be started
	Signal  int             `json:"signal,omitempty"`
	Names   []string        `json:"names,omitempty"`
	Port    int             `json:"port,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Exec asks for a command in the box.
type Exec struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	// TTY asks for a terminal of the box's own; then no descriptors are sent, and the answer carries its master side.
	TTY  bool   `json:"tty,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	// Launch ties the box to this connection: when it ends, so does the box.
	Launch bool `json:"launch,omitempty"`
}

// Conn is one end of a connection. Send may be called by several goroutines, Recv by one.
type Conn struct {
	c  *net.UnixConn
	mu sync.Mutex // guards writes to c
}

// New makes a Conn of a connected stream socket, which it then owns.
func New(c *net.UnixConn) *Conn { return &Conn{c: c} }

// FromFile makes a Conn of an inherited descriptor and closes f.
func FromFile(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %s: %w", f.Name(), err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("descriptor %s: a %s, want a unix socket", f.Name(), c.LocalAddr().Network())
	}
	return New(u), nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Unix is the socket underneath, for its peer's credentials and for deadlines.
func (c *Conn) Unix() *net.UnixConn { return c.c }

// Send writes m, with files if there are any. The files stay the caller's.
func (c *Conn) Send(m *Message, files ...*os.File) error {
	if len(files) > MaxFiles {
		return fmt.Errorf("send %s: %d descriptors, want at most %d", m.Op, len(files), MaxFiles)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("send %s: %w", m.Op, err)
	}
	if len(b) > MaxMessage {
		return fmt.Errorf("send %s: %d bytes, want at most %d", m.Op, len(b), MaxMessage)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
			// A command expects a blocking standard input; whoever receives a socket makes it non-blocking again.
			if err := syscall.SetNonblock(fds[i], false); err != nil {
				return fmt.Errorf("send %s: %w", m.Op, err)
			}
		}
		oob = syscall.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 4), uint32(len(b)))
	n, _, err := c.c.WriteMsgUnix(head, oob, nil)
	if err != nil {
		return fmt.Errorf("send %s: %w", m.Op, err)
	}
	if _, err := c.c.Write(append(head[n:], b...)); err != nil {
		return fmt.Errorf("send %s: %w", m.Op, err)
	}
	return nil
}

// Recv reads the next message. The files are the caller's to close. At the end it returns io.EOF.
func (c *Conn) Recv() (*Message, []*os.File, error) {
	var head [4]byte
	var files []*os.File
	fail := func(err error) (*Message, []*os.File, error) {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	for n := 0; n < len(head); {
		oob := make([]byte, syscall.CmsgSpace(4*MaxFiles))
		k, oobn, flags, _, err := c.c.ReadMsgUnix(head[n:], oob)
		if oobn > 0 {
			fs, perr := parseFiles(oob[:oobn])
			files = append(files, fs...)
			if perr != nil {
				return fail(perr)
			}
		}
		switch {
		case err != nil:
			return fail(err)
		case k == 0 && n == 0 && len(files) == 0:
			return fail(io.EOF)
		case k == 0:
			return fail(io.ErrUnexpectedEOF)
		case flags&syscall.MSG_CTRUNC != 0 || len(files) > MaxFiles:
			return fail(errors.New("receive: too many descriptors"))
		}
		n += k
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxMessage {
		return fail(fmt.Errorf("receive: a message of %d bytes, want at most %d", size, MaxMessage))
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.c, b); err != nil {
		return fail(fmt.Errorf("receive: %w", err))
	}
	m := new(Message)
	if err := json.Unmarshal(b, m); err != nil {
		return fail(fmt.Errorf("receive: %w", err))
	}
	return m, files, nil
}

func parseFiles(oob []byte) ([]*os.File, error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receive descriptors: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := syscall.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}
