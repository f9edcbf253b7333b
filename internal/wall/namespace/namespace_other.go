//go:build !linux

package namespace

import (
	"context"
	"io"
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

// Probe returns ErrUnsupported: what is probed in a machine's box is probed by other means.
func (*Client) Probe(context.Context, *Program, []byte, bool) ([]byte, error) {
	return nil, ErrUnsupported
}

// held is a keeper's process, on Linux: here a keeper is never one.
type held struct{}

func hold(int) (*held, error) { return nil, ErrUnsupported }

func (*held) kill() error { return ErrUnsupported }

func (*held) close() {}
