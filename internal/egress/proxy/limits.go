package proxy

import (
	"sync/atomic"
	"time"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/inject"
)

// Limits bounds what boxes can make an engine hold. A zero field means the
// default named beside it, with what happens at the bound.
type Limits struct {
	HeaderBytes   int           // of one message head: 64 KiB, then 431
	HeaderFields  int           // 100, then 431
	HeaderTime    time.Duration // for a whole message head: 30 s, then closed
	Idle          time.Duration // between requests: 90 s, then closed
	Handshake     time.Duration // of TLS with the client: 15 s, then closed
	Sniff         time.Duration // for the first bytes on 443, 80 and judged hosts: 10 s, then closed
	FirstBytes    time.Duration // for either side on other ports: 300 ms, then a raw tunnel
	Dial          time.Duration // for an upstream connection, TLS included: 30 s, then 502
	Stalled       time.Duration // for a write that the box does not take: 5 min, then closed
	HalfClosed    time.Duration // of a tunnel whose other half is silent: 5 min, then closed
	Quiet         time.Duration // a tunnel or WebSocket on which neither side sends: 4 h, then closed (Linux)
	Linger        time.Duration // for the client to read our last words: 1 s, then closed
	IdleUpstream  time.Duration // of a pooled connection: 90 s, then closed
	ConnsPerBox   int           // 1024, then reset
	Conns         int           // 4096, then reset
	TunnelsPerBox int           // 512, then refused (503)
	Requests      int           // of one box at once, whatever their connections: 2048, then refused (503)
	Refusing      int           // HTTP/2 streams of one box whose refusal by Requests is on its way: 128, then the connection is closed
	Held          int           // requests held for the operator: 64, then refused
	Pooled        int           // idle upstream connections: 1024, then the oldest is closed
	Streams       int           // HTTP/2 streams of a connection: 250, then back-pressure
}

func (l Limits) orDefaults() Limits {
	setInt := func(p *int, d int) {
		if *p <= 0 {
			*p = d
		}
	}
	setTime := func(p *time.Duration, d time.Duration) {
		if *p <= 0 {
			*p = d
		}
	}
	setInt(&l.HeaderBytes, 64<<10)
	setInt(&l.HeaderFields, 100)
	setTime(&l.HeaderTime, 30*time.Second)
	setTime(&l.Idle, 90*time.Second)
	setTime(&l.Handshake, 15*time.Second)
	setTime(&l.Sniff, 10*time.Second)
	setTime(&l.FirstBytes, 300*time.Millisecond)
	setTime(&l.Dial, 30*time.Second)
	setTime(&l.Stalled, 5*time.Minute)
	setTime(&l.HalfClosed, 5*time.Minute)
	setTime(&l.Quiet, 4*time.Hour)
	setTime(&l.Linger, time.Second)
	setTime(&l.IdleUpstream, 90*time.Second)
	setInt(&l.ConnsPerBox, 1024)
	setInt(&l.Conns, 4096)
	setInt(&l.TunnelsPerBox, 512)
	setInt(&l.Requests, 2048)
	setInt(&l.Refusing, 128)
	setInt(&l.Held, 64)
	setInt(&l.Pooled, 1024)
	setInt(&l.Streams, 250)
	return l
}

// Limit is the state of one bound. Current is the fullest box's where the
// bound is for a box; Hits counts how often it was met since the start.
type Limit struct {
	Name    string
	Value   int64
	Current int64
	Hits    int64
}

// Limits returns the state of every bound that is counted.
func (e *Engine) Limits() []Limit {
	m := &e.meters
	out := []Limit{
		m.conns.limit("connections"), m.held.limit("held"), e.dialLimit(),
		{Name: "pooled", Value: int64(e.lim.Pooled), Current: int64(e.pool.size()), Hits: e.pool.evicted.Load()},
		{Name: "header", Value: int64(e.lim.HeaderBytes), Hits: m.headers.Load()},
		{Name: "header_time", Value: int64(e.lim.HeaderTime / time.Second), Hits: m.slow.Load()},
		{Name: "handshake_time", Value: int64(e.lim.Handshake / time.Second), Hits: m.handshakes.Load()},
		{Name: "silence", Value: int64(e.lim.Sniff / time.Second), Hits: m.silences.Load()},
		{Name: "idle", Value: int64(e.lim.Idle / time.Second), Hits: m.idle.Load()},
		{Name: "stalled", Value: int64(e.lim.Stalled / time.Second), Hits: m.stalled.Load()},
		{Name: "half_closed", Value: int64(e.lim.HalfClosed / time.Second), Hits: m.halfClosed.Load()},
		{Name: "quiet", Value: int64(e.lim.Quiet / time.Second), Hits: m.quiet.Load()},
		{Name: "held_body", Value: inject.MaxHeld, Hits: m.bodies.Load()},
	}
	out = append(out, e.leafLimits()...)
	return append(out, e.live.limits()...)
}

// leafLimits are the bounds of the certificates that boxes have minted.
func (e *Engine) leafLimits() []Limit {
	l, ok := e.cfg.Leaves.(*ca.Leaves)
	if !ok {
		return nil
	}
	lim := l.Limits()
	return []Limit{
		{Name: "leaves", Value: int64(lim.PerSecond), Hits: e.meters.leaves.Load()},
		{Name: "leaves_kept", Value: int64(lim.Cache), Current: int64(l.Len()), Hits: l.Forgotten()},
	}
}

// dialLimit is the dialer's own bound, where it tells: dials at once; more
// wait a moment, then 503.
func (e *Engine) dialLimit() Limit {
	l := Limit{Name: "dials", Hits: e.meters.dials.Load()}
	if d, ok := e.cfg.Dialer.(interface{ InFlight() (now, limit int) }); ok {
		now, limit := d.InFlight()
		l.Current, l.Value = int64(now), int64(limit)
	}
	return l
}

// meters count what all boxes share.
type meters struct {
	conns, held meter

	// Hits of bounds that are not levels of ours.
	dials, headers, slow, handshakes, silences, idle, stalled, halfClosed, quiet, bodies, leaves atomic.Int64
}

func (m *meters) init(l Limits) {
	m.conns.max = int64(l.Conns)
	m.held.max = int64(l.Held)
}

// meter is one bound. Its zero value lets nothing through.
type meter struct {
	max           int64
	current, hits atomic.Int64
}

func (m *meter) take() bool {
	if m.current.Add(1) <= m.max {
		return true
	}
	m.current.Add(-1)
	m.hits.Add(1)
	return false
}

func (m *meter) give() { m.current.Add(-1) }

func (m *meter) limit(name string) Limit {
	return Limit{Name: name, Value: m.max, Current: m.current.Load(), Hits: m.hits.Load()}
}
