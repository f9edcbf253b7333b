package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
)

// note is a record while its outcome is open: made on the first line of
// whatever it is about, finished in a defer, so that nothing ends unrecorded.
type note struct {
	*capture.Record
	c      *client
	host   string // for the record when there is no target
	port   uint16
	began  time.Time
	silent bool // leave no record: others speak for it
	done   bool
	grip   *inject.Grip
}

func (e *Engine) begin(c *client) *note {
	n := new(note)
	n.open(c, e.cfg.Now())
	return n
}

func (n *note) open(c *client, now time.Time) {
	*n = note{c: c, began: now, Record: &capture.Record{
		TS: now, Box: c.box.ID, Via: c.via, Mode: capture.ModeNone,
	}}
	if !c.target.IsZero() {
		n.Host, n.Port = c.host, c.target.Port
	}
}

func (n *note) to(t dest.Target) { n.Host, n.Port = t.Host.String(), t.Port }

// finish hands the record over, once. A record that nobody decided is a
// refusal.
func (e *Engine) finish(n *note) {
	if n.silent || n.done {
		return
	}
	n.done = true
	if n.Verdict == "" {
		n.Verdict = capture.VerdictDeny
	}
	if n.Host == "" {
		n.Host, n.Port = n.host, n.port
	}
	e.credited(n)
	n.Millis = capture.N(n.since(e))
	n.Process = n.c.owner()
	e.cfg.Record(n.Record)
}

func (n *note) since(e *Engine) int64 { return e.cfg.Now().Sub(n.began).Milliseconds() }

// decided notes policy's answer, which the outcome may still turn.
func (n *note) decided(d policy.Decision) {
	n.Rule = d.Rule
	switch d.Verdict {
	case policy.Allow:
		n.Verdict, n.Reason = capture.VerdictAllow, ""
	case policy.WouldDeny:
		n.Verdict, n.Reason = capture.VerdictWouldDeny, string(d.Reason)
	case policy.Refuse:
		n.Verdict, n.Reason = capture.VerdictDeny, string(d.Reason)
	}
}

func (n *note) refused(why policy.Reason, detail string) {
	n.Verdict, n.Reason, n.Error = capture.VerdictDeny, string(why), detail
}

// denied notes a refusal in the shape the client gets. That an upstream
// failed, or a body went wrong on its way, leaves policy's verdict as it was.
func (n *note) denied(d *denial) {
	n.Reason, n.Error = string(d.reason), d.detail
	if !d.upstream() && !d.sent {
		n.Verdict = capture.VerdictDeny
	}
	if n.Host == "" && !d.target.IsZero() {
		n.to(d.target)
	}
}

// failed notes an outcome that went wrong after it was permitted.
func (n *note) failed(why policy.Reason, err error) {
	n.Reason = string(why)
	if err != nil {
		n.Error = err.Error()
	}
}

// brokeOff notes an answer that did not come to its end.
func (n *note) brokeOff(err error) {
	why := policy.ReasonUpstreamUnreachable
	if errors.Is(err, inject.ErrTooMuch) {
		why = policy.ReasonLimit
	}
	n.failed(why, fmt.Errorf("the answer broke off: %w", err))
}

func (n *note) aborted(err error) { n.failed(policy.ReasonClientAbort, err) }

// cut notes that we ended it, and reports whether we did.
func (n *note) cut(why ending) bool {
	switch why {
	case endNone:
		return false
	case endPolicy:
		n.failed(policy.ReasonNotGranted, errPolicy)
	case endAbort:
		n.failed(policy.ReasonClientAbort, errors.New("the client went away"))
	case endStalled:
		n.failed(policy.ReasonLimit, errors.New("the client took nothing for too long"))
	case endTime:
		n.failed(policy.ReasonLimit, errors.New("half-closed for too long"))
	case endQuiet:
		n.failed(policy.ReasonLimit, errors.New("silent for too long"))
	case endFlood:
		n.failed(policy.ReasonLimit, errors.New("too many requests in flight"))
	case endStopped:
		n.failed(policy.ReasonClientAbort, errors.New("the box or the supervisor stopped"))
	}
	return true
}

var errPolicy = errors.New("ended because policy changed")

func (n *note) dialled(a netip.AddrPort) {
	if a.IsValid() {
		n.Upstream = a.String()
	}
}
