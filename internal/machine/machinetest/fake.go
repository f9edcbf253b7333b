package machinetest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"foldyard/internal/machine"
)

// Fake is a machine in memory: its commands run on this computer.
type Fake struct {
	mu    sync.Mutex // guards what follows
	state machine.State
	spec  machine.Spec
	boots int
	// Fail, if set, is what Up returns.
	Fail error
	// AnyUser lets root have it too.
	AnyUser bool
}

var _ machine.Machine = (*Fake)(nil)

// Kind is "fake".
func (f *Fake) Kind() string { return "fake" }

// Gateway is loopback: the machine is this computer.
func (f *Fake) Gateway() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// State returns what the fake is.
func (f *Fake) State(context.Context) (machine.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == "" {
		return machine.Status{State: machine.Absent}, nil
	}
	return machine.Status{State: f.state}, nil
}

// Up makes the fake run.
func (f *Fake) Up(ctx context.Context, spec machine.Spec, say func(string)) (machine.Report, error) {
	if f.AnyUser {
		spec.UID = max(spec.UID, 1)
	}
	if err := spec.Check(); err != nil {
		return machine.Report{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != machine.Running || f.spec != spec {
		if say != nil {
			say("starts")
		}
		if err := ctx.Err(); err != nil {
			return machine.Report{}, err
		}
		if f.Fail != nil {
			return machine.Report{}, f.Fail
		}
		f.state, f.spec = machine.Running, spec
		f.boots++
	}
	return machine.Report{Digest: "fake", BootID: "fake-" + strconv.Itoa(f.boots)}, nil
}

// Crash ends the fake as if it had been killed.
func (f *Fake) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = machine.Broken
}

// Boots counts the fake's starts.
func (f *Fake) Boots() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boots
}

// Stop stops the fake.
func (f *Fake) Stop(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != "" {
		f.state = machine.Stopped
	}
	return nil
}

// Remove forgets the fake.
func (f *Fake) Remove(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = ""
	return nil
}

// Run runs c on this computer.
func (f *Fake) Run(ctx context.Context, c machine.Command) ([]byte, error) {
	if st, err := f.State(ctx); err != nil || st.State != machine.Running {
		return nil, machine.ErrNotRunning
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = c.Stdin, &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = &machine.ExitError{Code: exit.ExitCode(), Stderr: strings.TrimSpace(errs.String())}
	}
	return out, err
}

// Argv is c as it is.
func (f *Fake) Argv(c machine.Command) []string { return c.Argv }
