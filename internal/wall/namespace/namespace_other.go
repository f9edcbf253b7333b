//go:build !linux

package namespace

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"foldyard/internal/box/wire"
)

// The hidden verbs, as on Linux; nothing starts them here.
const (
	KeeperVerb = "__keeper"
	AgentVerb  = "__agent"
	ProbeVerb  = "__probe"
)

// Program is fy's own binary in sealed memory, on Linux.
type Program struct{}

// OpenProgram returns ErrUnsupported.
func OpenProgram(string) (*Program, error) { return nil, ErrUnsupported }

// EmbeddedProgram returns ErrUnsupported.
func EmbeddedProgram([]byte) (*Program, error) { return nil, ErrUnsupported }

// LoadProgram returns ErrUnsupported.
func LoadProgram(io.Reader) (*Program, error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Program) Close() error { return nil }

// Reserve is a keeper that waits for a Spec, on Linux.
type Reserve struct{}

// Prepare returns ErrUnsupported.
func Prepare(*Program, User) (*Reserve, error) { return nil, ErrUnsupported }

// Fits says no.
func (*Reserve) Fits(User) bool { return false }

// Close does nothing.
func (*Reserve) Close() {}

// Start returns ErrUnsupported.
func Start(context.Context, *Program, *Reserve, Spec, string, func([]Refusal)) (*Links, error) {
	return nil, ErrUnsupported
}

// Keep is the keeper's main, on Linux.
func Keep() int { return 125 }

// Available says that this is not Linux.
func Available(context.Context) []Finding {
	return []Finding{{Name: "namespaces", State: "fail", Detail: ErrUnsupported.Error(), Fix: "set [machine] backend = \"lima\""}}
}

// Client speaks to a keeper, on Linux.
type Client struct{}

// NewClient returns a client whose every call fails.
func NewClient(string, string) *Client { return &Client{} }

// Facts returns ErrUnsupported.
func (*Client) Facts(context.Context) (*Facts, error) { return nil, ErrUnsupported }

// Probe returns ErrUnsupported.
func (*Client) Probe(context.Context, *Program, []byte, bool) ([]byte, error) {
	return nil, ErrUnsupported
}

// Who returns ErrUnsupported.
func (*Client) Who(context.Context, netip.AddrPort) (*Process, error) { return nil, ErrUnsupported }

// DialPort returns ErrUnsupported.
func (*Client) DialPort(context.Context, int) (*net.TCPConn, error) { return nil, ErrUnsupported }

// Stop returns ErrUnsupported.
func (*Client) Stop(context.Context) error { return ErrUnsupported }

// Links are the sockets of a box, on Linux.
type Links struct {
	Proxy     []net.Listener
	Redirect  []*net.TCPListener
	DNSStream []net.Listener
	DNSPacket []net.PacketConn
}

// Adopt returns ErrUnsupported.
func (*Client) Adopt(context.Context, func([]Refusal)) (*Links, error) { return nil, ErrUnsupported }

// Gone never closes.
func (*Links) Gone() <-chan struct{} { return nil }

// SetGranted returns ErrUnsupported.
func (*Links) SetGranted([]netip.Prefix) error { return ErrUnsupported }

// Kill returns ErrUnsupported.
func (*Links) Kill() error { return ErrUnsupported }

// Close does nothing.
func (*Links) Close() {}

// Session is a command that runs in a box, on Linux.
type Session struct{ Terminal *os.File }

// StartError says that a command could not be started.
type StartError struct {
	Command string
	Errno   syscall.Errno
}

func (e *StartError) Error() string { return e.Command + ": " + e.Errno.Error() }
func (e *StartError) Unwrap() error { return e.Errno }

// Exec returns ErrUnsupported.
func (*Client) Exec(context.Context, wire.Exec, ...*os.File) (*Session, error) {
	return nil, ErrUnsupported
}

// Signal returns ErrUnsupported.
func (*Session) Signal(syscall.Signal) error { return ErrUnsupported }

// Wait returns ErrUnsupported.
func (*Session) Wait() (int, error) { return 0, ErrUnsupported }
