package proxy

import (
	"context"
	"sync"
	"time"

	"foldyard/internal/egress/policy"
)

// registry knows every live connection.
type registry struct {
	mu     sync.Mutex // guards the fields that follow
	conns  map[*client]struct{}
	gauges map[string]*gauge

	connsPerBox, tunnelsPerBox, requestsPerBox, refusingPerBox int64
}

// gauge counts what one box holds.
type gauge struct {
	conns, tunnels     meter
	requests, refusing meter // in flight; refused by that bound and not told yet

	serving int             // goroutines of connections; guarded by registry.mu
	quiet   []chan struct{} // closed when serving is 0; guarded by registry.mu
}

func (r *registry) init(l Limits) {
	r.conns = make(map[*client]struct{})
	r.gauges = make(map[string]*gauge)
	r.connsPerBox, r.tunnelsPerBox = int64(l.ConnsPerBox), int64(l.TunnelsPerBox)
	r.requestsPerBox, r.refusingPerBox = int64(l.Requests), int64(l.Refusing)
}

func (r *registry) gauge(box string) *gauge {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gauges[box]
	if g == nil {
		g = &gauge{}
		g.conns.max, g.tunnels.max = r.connsPerBox, r.tunnelsPerBox
		g.requests.max, g.refusing.max = r.requestsPerBox, r.refusingPerBox
		r.gauges[box] = g
	}
	return g
}

func (r *registry) forget(box string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gauges, box)
}

// add registers c, unless the engine has stopped, and counts its goroutine in:
// Close takes the same lock between stopping and waiting.
func (r *registry) add(c *client) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.e.ctx.Err() != nil {
		return false
	}
	r.conns[c] = struct{}{}
	c.gauge.serving++
	c.e.wg.Add(1)
	return true
}

// served is the end of c's goroutine: what there was to record is recorded.
func (r *registry) served(c *client) {
	defer c.e.wg.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.gauge.serving--; c.gauge.serving > 0 {
		return
	}
	for _, q := range c.gauge.quiet {
		close(q)
	}
	c.gauge.quiet = nil
}

// quiet is closed when no connection of the box is served any more.
func (r *registry) quiet(box string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := make(chan struct{})
	if g := r.gauges[box]; g != nil && g.serving > 0 {
		g.quiet = append(g.quiet, q)
	} else {
		close(q)
	}
	return q
}

func (r *registry) remove(c *client) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.conns[c]; !ok {
		return false
	}
	delete(r.conns, c)
	return true
}

func (r *registry) all() []*client {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*client, 0, len(r.conns))
	for c := range r.conns {
		out = append(out, c)
	}
	return out
}

func (r *registry) limits() []Limit {
	r.mu.Lock()
	defer r.mu.Unlock()
	conns := Limit{Name: "connections_per_box", Value: r.connsPerBox}
	tunnels := Limit{Name: "tunnels_per_box", Value: r.tunnelsPerBox}
	requests := Limit{Name: "requests_per_box", Value: r.requestsPerBox}
	for _, g := range r.gauges {
		conns.Current = max(conns.Current, g.conns.current.Load())
		conns.Hits += g.conns.hits.Load()
		tunnels.Current = max(tunnels.Current, g.tunnels.current.Load())
		tunnels.Hits += g.tunnels.hits.Load()
		requests.Current = max(requests.Current, g.requests.current.Load())
		requests.Hits += g.requests.hits.Load()
	}
	return []Limit{conns, tunnels, requests}
}

// stream is one HTTP/2 request.
type stream struct {
	doing  activity
	cancel context.CancelCauseFunc
}

// Reconsider asks the policy in force about everything that runs and ends
// what it would refuse now, and tunnels that it would have decrypted; nothing
// else. Call it after every change of policy and when an entry expires.
func (e *Engine) Reconsider() {
	snap, now := e.cfg.Policy(), e.cfg.Now()
	for _, c := range e.live.all() {
		c.reconsider(snap, now)
	}
}

func (c *client) reconsider(snap *policy.Snapshot, now time.Time) {
	c.mu.Lock()
	over := c.doing.over(snap, now)
	busy := c.doing.kind != idle
	for s := range c.streams {
		busy = true
		if s.doing.over(snap, now) {
			s.cancel(errPolicy)
		}
	}
	if !busy && c.granted {
		q := policy.Query{Box: c.box.ID, Target: c.target, Now: now}
		over = !snap.Connect(q).Verdict.Permits()
	}
	c.mu.Unlock()
	if over {
		c.cut(endPolicy)
	}
}

// over reports whether policy ends the activity. A request that runs when its
// grant of level once expires may finish; tunnels and sockets may not.
func (a *activity) over(snap *policy.Snapshot, now time.Time) bool {
	q := a.query
	q.Now = now
	var d policy.Decision
	switch a.kind {
	case idle:
		return false
	case request, socket:
		d = snap.Request(q)
	case passed:
		if d = snap.Connect(q); d.Verdict.Permits() && d.Mode != policy.Tunnel {
			return true
		}
	case rawTCP:
		if d = snap.Connect(q); d.Verdict.Permits() && !snap.RawFallback(q) {
			return true
		}
	}
	if d.Verdict.Permits() && (d.Internal || !a.decision.Internal) {
		return false
	}
	expired := a.decision.Level == policy.Once && !a.decision.Expires.IsZero() && !now.Before(a.decision.Expires)
	return a.kind != request || !expired || d.Reason == policy.ReasonDeniedRule || d.Reason == policy.ReasonPolicyUnreadable
}
