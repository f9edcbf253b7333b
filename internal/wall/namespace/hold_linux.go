package namespace

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"foldyard/internal/box/wire"
)

// held is a keeper's process, whatever becomes of its id.
type held struct{ pidfd int }

func hold(pid int) (*held, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	return &held{fd}, nil
}

func (h *held) kill() error {
	if err := unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the box: %w", err)
	}
	return nil
}

func (h *held) close() { unix.Close(h.pidfd) }

// Probe runs the battery, p's ProbeVerb, in the box's namespaces and returns its JSON. With asRoot it keeps all capabilities of the
// box's user namespace.
func (c *Client) Probe(ctx context.Context, p *Program, plan []byte, asRoot bool) ([]byte, error) {
	m := &wire.Message{Op: "probe", Data: plan}
	if asRoot {
		m.Names = []string{"root"}
	}
	a, files, err := c.ask(ctx, m, p.f)
	closeAll(files)
	if err != nil {
		return nil, err
	}
	return a.Data, nil
}
