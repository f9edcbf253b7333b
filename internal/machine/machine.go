// Package machine says what a backend's virtual machine is: one interface,
// whose implementations lima, podman and an in-memory fake pass the suite in
// machinetest. Start with Machine. It may not decide policy, speak to a box,
// or run anything as root in a machine after it has booted.
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// State is what a machine is, as a connection and the disk show it.
type State string

// The states of a machine.
const (
	Absent  State = "absent"  // there is none
	Stopped State = "stopped" // it exists, and does not run
	Running State = "running" // it answered
	Broken  State = "broken"  // half made, or it runs and does not answer; Up mends it
	Foreign State = "foreign" // someone else made one of this name: left alone
)

// Status is a machine as it is now.
type Status struct {
	State State
	Why   string // for Broken and Foreign
}

// Spec is what a machine is to be. Up makes it so.
type Spec struct {
	CPUs   int
	Memory int64  // bytes
	Disk   int64  // bytes
	Image  string // https URL or path
	Digest string // of Image, sha256:… or sha512:…
	Kernel string // path; "" boots the image's own
	Initrd string

	Repo  string // mounted at its own path, writable
	Share string // mounted at SharePath, read-only: foldyard's own program

	UID      int    // of the operator, and of the machine's user
	Band     uint16 // first of the project's ports on the host
	Services int    // how many of them the machine may reach
	DNS      uint16 // one of those
	SSH      uint16 // on the host's loopback, not one of those
	CA       string // PEM
	Firewall bool
}

// SharePath is where Spec.Share is mounted.
const SharePath = "/opt/foldyard"

// User is the name of the user that commands in a machine run as.
const User = "fy"

// Report is what the machine says about its own construction. It is the
// guest's word: probes, not this, show what holds.
type Report struct {
	Digest string // of the boot script that ran to its end
	Walled string // user ids that the firewall holds
	BootID string
}

// Command is a command in a machine.
type Command struct {
	Argv  []string
	Stdin io.Reader // nil: none
	TTY   bool
}

// Machine is one project's virtual machine. Every method may be called again
// after it was interrupted, at whatever point, and comes to the same end.
type Machine interface {
	// Kind is the backend's name.
	Kind() string
	// Gateway is the host's address as the machine sees it.
	Gateway() netip.Addr
	// State looks. It starts nothing and mends nothing.
	State(ctx context.Context) (Status, error)
	// Up makes the machine what spec says, and starts it. A running machine
	// that was made otherwise is stopped first. say is told each step, in a
	// line; it may be nil.
	Up(ctx context.Context, spec Spec, say func(string)) (Report, error)
	// Stop ends it. Stopping what does not run is no error.
	Stop(ctx context.Context) error
	// Remove deletes it with its disk. Removing what is not there is no error.
	Remove(ctx context.Context) error
	// Run runs a command as the machine's user and returns its standard
	// output. A command that fails is an *ExitError.
	Run(ctx context.Context, c Command) ([]byte, error)
	// Argv is a command line for this computer that does what Run does, with
	// the caller's own standard streams.
	Argv(c Command) []string
}

// ExitError is a command that ran and failed.
type ExitError struct {
	Code   int
	Stderr string // its end
}

func (e *ExitError) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return fmt.Sprintf("exit status %d: %s", e.Code, e.Stderr)
}

// Error is a machine that cannot be had, and what to do about it.
type Error struct {
	Detail string
	Fix    string // one command or one sentence
	Err    error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Detail
	}
	return e.Detail + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// MaxOutput bounds what a command in a machine may print, in bytes: the machine and all that is in it are strangers.
const MaxOutput = 64 << 20

// Output gathers what a command prints. Beyond MaxOutput its writes fail, which ends the command.
type Output struct {
	b   bytes.Buffer
	err error
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	if o.b.Len()+len(p) > MaxOutput {
		o.err = fmt.Errorf("a command in the VM printed over %d MiB", MaxOutput>>20)
		return 0, o.err
	}
	return o.b.Write(p)
}

// Err says that there was more.
func (o *Output) Err() error { return o.err }

// Bytes is what was printed.
func (o *Output) Bytes() []byte { return o.b.Bytes() }

func (o *Output) String() string { return o.b.String() }

// Finding is one thing that was looked at on this computer, or in a machine that runs.
type Finding struct {
	Name   string
	State  string // ok, warn or fail
	Detail string
	Fix    string // "" when ok
}

// Found is the finding of a check that returned err.
func Found(name, detail string, err error) Finding {
	var e *Error
	switch {
	case err == nil:
		return Finding{name, "ok", detail, ""}
	case errors.As(err, &e):
		return Finding{name, "fail", err.Error(), e.Fix}
	}
	return Finding{name, "fail", err.Error(), "fy machine status"}
}

// ErrNotRunning is what Run returns when the machine does not run.
var ErrNotRunning = errors.New("the machine does not run")

// Check says what is wrong with a Spec whatever the backend.
func (s Spec) Check() error {
	switch {
	case s.CPUs < 1 || s.CPUs > 512:
		return fmt.Errorf("cpus %d: want 1 to 512", s.CPUs)
	case s.Memory < 512<<20:
		return fmt.Errorf("memory of %d bytes: want 512MiB or more", s.Memory)
	case s.Memory%(1<<20) != 0:
		return fmt.Errorf("memory of %d bytes: want whole MiB", s.Memory)
	case s.Disk < 2<<30:
		return fmt.Errorf("disk of %d bytes: want 2GiB or more", s.Disk)
	case s.Repo == "" || s.Repo[0] != '/':
		return fmt.Errorf("repo %q: want an absolute path", s.Repo)
	case s.UID <= 0:
		return errors.New("a machine is not run by root: use an ordinary user")
	case s.Band == 0 || s.Services < 1 || int(s.Band)+s.Services > 65536:
		return fmt.Errorf("band %d: want a range of ports", s.Band)
	}
	return nil
}
