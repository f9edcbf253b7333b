package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"foldyard/internal/box/wire"
)

// Names of the sockets that a keeper hands over.
const (
	linkProxy     = "proxy"
	linkRedirect  = "redirect"
	linkDNSStream = "dns-stream"
	linkDNSPacket = "dns-packet"
)

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Client speaks to the keeper of one box over its socket.
type Client struct {
	socket, nonce string
}

// NewClient names a box. Nothing is opened before it is asked for.
func NewClient(socket, nonce string) *Client { return &Client{socket, nonce} }

func (c *Client) dial(ctx context.Context) (*wire.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, fmt.Errorf("reach the box: %w", err)
	}
	return wire.New(conn.(*net.UnixConn)), nil
}

// ask sends one request and reads its one answer. The answer's files are the caller's.
func (c *Client) ask(ctx context.Context, m *wire.Message, send ...*os.File) (*wire.Message, []*os.File, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	m.Nonce = c.nonce
	if err := conn.Send(m, send...); err != nil {
		return nil, nil, err
	}
	a, files, err := conn.Recv()
	if err != nil {
		return nil, nil, fmt.Errorf("ask the box (%s): %w", m.Op, errors.Join(ctx.Err(), err))
	}
	if a.Op == "failed" {
		closeAll(files)
		return nil, nil, fmt.Errorf("ask the box (%s): %s", m.Op, a.Error)
	}
	return a, files, nil
}

// Facts reads what the host sees of the box.
func (c *Client) Facts(ctx context.Context) (*Facts, error) {
	a, files, err := c.ask(ctx, &wire.Message{Op: "facts"})
	closeAll(files)
	if err != nil {
		return nil, err
	}
	f := new(Facts)
	if err := json.Unmarshal(a.Data, f); err != nil {
		return nil, fmt.Errorf("read the box's facts: %w", err)
	}
	return f, nil
}

// Who names the process in the box that owns the socket with this local address.
func (c *Client) Who(ctx context.Context, socket netip.AddrPort) (*Process, error) {
	b, err := json.Marshal(socket)
	if err != nil {
		return nil, err
	}
	a, files, err := c.ask(ctx, &wire.Message{Op: "who", Data: b})
	closeAll(files)
	if err != nil {
		return nil, err
	}
	p := new(Process)
	if err := json.Unmarshal(a.Data, p); err != nil {
		return nil, fmt.Errorf("read a process: %w", err)
	}
	return p, nil
}

// DialPort connects to a port that something in the box listens on.
func (c *Client) DialPort(ctx context.Context, port int) (*net.TCPConn, error) {
	_, files, err := c.ask(ctx, &wire.Message{Op: "dial", Port: port})
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	if len(files) != 1 {
		return nil, errors.New("reach the box's port: no connection came back")
	}
	conn, err := net.FileConn(files[0])
	if err != nil {
		return nil, fmt.Errorf("reach the box's port: %w", err)
	}
	t, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, errors.New("reach the box's port: not a TCP connection")
	}
	return t, nil
}

// Stop ends the box and everything in it.
func (c *Client) Stop(ctx context.Context) error {
	_, files, err := c.ask(ctx, &wire.Message{Op: "stop"})
	closeAll(files)
	return err
}

// Links are the sockets of a box that the supervisor serves. Closing it leaves the box without a network until somebody adopts it again.
type Links struct {
	Proxy     []net.Listener
	Redirect  []*net.TCPListener
	DNSStream []net.Listener
	DNSPacket []net.PacketConn

	keeper  *held // nil where it is not a process of this computer
	conn    *wire.Conn
	refused func([]Refusal)
	mu      sync.Mutex // one SetGranted at a time; guards keeper
	acks    chan error
	gone    chan struct{}
}

// Adopt takes the box's sockets. refused is called, by one goroutine, with what the rules refused, about once a second.
func (c *Client) Adopt(ctx context.Context, refused func([]Refusal)) (*Links, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Links, error) {
		conn.Close()
		return nil, fmt.Errorf("adopt the box: %w", err)
	}
	if err := conn.Send(&wire.Message{Op: "adopt", Nonce: c.nonce}); err != nil {
		return fail(err)
	}
	l, err := receiveLinks(conn, refused)
	if err != nil {
		return fail(err)
	}
	return l, nil
}

// receiveLinks reads what a keeper hands over on conn, which then belongs to the Links.
func receiveLinks(conn *wire.Conn, refused func([]Refusal)) (*Links, error) {
	m, files, err := conn.Recv()
	if err != nil {
		return nil, fmt.Errorf("the keeper ended: %w", err)
	}
	defer closeAll(files)
	if m.Op != "links" || len(m.Names) != len(files) {
		return nil, errors.New(m.Error)
	}
	l := &Links{conn: conn, refused: refused, acks: make(chan error, 1), gone: make(chan struct{})}
	if m.Pid > 0 {
		if l.keeper, err = hold(m.Pid); err != nil {
			return nil, fmt.Errorf("hold the keeper: %w", err)
		}
	}
	for i, f := range files {
		if err := l.take(m.Names[i], f); err != nil {
			l.closeSockets()
			return nil, err
		}
	}
	go l.hear()
	return l, nil
}

func (l *Links) take(name string, f *os.File) error {
	if name == linkDNSPacket {
		p, err := net.FilePacketConn(f)
		if err == nil {
			l.DNSPacket = append(l.DNSPacket, p)
		}
		return err
	}
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	switch t, tcp := ln.(*net.TCPListener); {
	case name == linkProxy:
		l.Proxy = append(l.Proxy, ln)
	case name == linkDNSStream:
		l.DNSStream = append(l.DNSStream, ln)
	case name == linkRedirect && tcp:
		l.Redirect = append(l.Redirect, t)
	default:
		ln.Close()
		return fmt.Errorf("an unknown socket %q", name)
	}
	return nil
}

func (l *Links) hear() {
	defer close(l.gone)
	for {
		m, files, err := l.conn.Recv()
		closeAll(files)
		if err != nil {
			return
		}
		switch m.Op {
		case "refused":
			var rs []Refusal
			if json.Unmarshal(m.Data, &rs) == nil && l.refused != nil {
				l.refused(rs)
			}
		case "ok":
			l.acks <- nil
		case "failed":
			l.acks <- errors.New(m.Error)
		}
	}
}

// Gone is closed when the box has ended, or another supervisor adopted it.
func (l *Links) Gone() <-chan struct{} { return l.gone }

// SetGranted replaces the raw addresses whose TCP connections are redirected to us; all others are refused at once.
func (l *Links) SetGranted(ps []netip.Prefix) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ps == nil {
		ps = []netip.Prefix{}
	}
	b, err := json.Marshal(ps)
	if err != nil {
		return fmt.Errorf("redirect granted addresses: %w", err)
	}
	if err := l.conn.Send(&wire.Message{Op: "granted", Data: b}); err != nil {
		return fmt.Errorf("redirect granted addresses: %w", err)
	}
	select {
	case err := <-l.acks:
		return err
	case <-l.gone:
		return errors.New("redirect granted addresses: the box has ended")
	}
}

func (l *Links) closeSockets() {
	for _, c := range l.Proxy {
		c.Close()
	}
	for _, c := range l.Redirect {
		c.Close()
	}
	for _, c := range l.DNSStream {
		c.Close()
	}
	for _, c := range l.DNSPacket {
		c.Close()
	}
}

// Kill ends the box without asking it: a box that keeps its keeper busy is ended all the same.
func (l *Links) Kill() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper == nil {
		return errors.New("end the box: its keeper is no process of this computer")
	}
	return l.keeper.kill()
}

// Close gives the sockets up. It may be called once.
func (l *Links) Close() {
	l.conn.Close()
	<-l.gone
	l.closeSockets()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper != nil {
		l.keeper.close()
		l.keeper = nil
	}
}

// Session is a command that runs in a box.
type Session struct {
	// Terminal is the master side, when a terminal was asked for.
	Terminal *os.File

	conn *wire.Conn
}

// StartError says that a command could not be started, with the kernel's reason.
type StartError struct {
	Command string
	Errno   syscall.Errno
}

func (e *StartError) Error() string { return e.Command + ": " + e.Errno.Error() }
func (e *StartError) Unwrap() error { return e.Errno }

// Exec starts a command. stdio are the box's ends of pipes, in, out, error; with a terminal there are none. They stay the caller's, who
// closes them after Exec returned. An unstartable command is a *StartError.
func (c *Client) Exec(ctx context.Context, e wire.Exec, stdio ...*os.File) (*Session, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &Session{conn: conn}
	fail := func(err error) (*Session, error) {
		conn.Close()
		if s.Terminal != nil {
			s.Terminal.Close()
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.Send(&wire.Message{Op: "exec", Nonce: c.nonce, Exec: &e}, stdio...); err != nil {
		return fail(err)
	}
	for {
		m, files, err := conn.Recv()
		if err != nil {
			return fail(fmt.Errorf("start %s in the box: %w", e.Argv[0], errors.Join(ctx.Err(), err)))
		}
		switch {
		case m.Op == "terminal" && len(files) == 1 && s.Terminal == nil:
			s.Terminal = files[0]
		case m.Op == "started":
			closeAll(files)
			return s, nil
		case m.Op == "failed" && m.Errno != 0:
			closeAll(files)
			return fail(&StartError{e.Argv[0], syscall.Errno(m.Errno)})
		default:
			closeAll(files)
			return fail(fmt.Errorf("start %s in the box: %s", e.Argv[0], m.Error))
		}
	}
}

// Signal sends a signal to the command's process group.
func (s *Session) Signal(sig syscall.Signal) error {
	return s.conn.Send(&wire.Message{Op: "signal", Signal: int(sig)})
}

// Wait waits for the command and returns its exit code as a shell would: 128+n for signal n. It is an error when the box ended first.
func (s *Session) Wait() (int, error) {
	defer s.conn.Close()
	for {
		m, files, err := s.conn.Recv()
		closeAll(files)
		if err != nil {
			return 0, fmt.Errorf("the box ended: %w", err)
		}
		if m.Op != "exited" {
			continue
		}
		ws := syscall.WaitStatus(m.Status)
		if ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return ws.ExitStatus(), nil
	}
}
