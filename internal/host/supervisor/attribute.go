package supervisor

import (
	"context"
	"net/netip"
	"time"

	"foldyard/internal/egress/capture"
)

// attributeTimeout bounds what a record may wait for the name of a process.
const attributeTimeout = 250 * time.Millisecond

// attributions bounds the questions that are asked at once.
const attributions = 4

// attribute names the process in a box that owns the socket at remote, by the box's own word. It is nil when that is not known.
func (s *Supervisor) attribute(id string, _, remote netip.AddrPort) *capture.Process {
	b := s.box(id)
	if b == nil || b.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), attributeTimeout)
	defer cancel()
	select { // a box that floods connections gets few of them named, and its keeper few questions
	case s.attributing <- struct{}{}:
		defer func() { <-s.attributing }()
	case <-ctx.Done():
		return nil
	}
	p, err := b.client.Who(ctx, remote)
	if err != nil {
		return nil
	}
	return &capture.Process{PID: p.Pid, Exe: p.Exe, Cmd: p.Cmd}
}
