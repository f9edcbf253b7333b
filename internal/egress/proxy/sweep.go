package proxy

import (
	"net"
	"time"

	"foldyard/internal/egress/intake/redirect"
)

// Phases of a connection, for the sweeper. It keeps the time of all of them,
// so that a request costs no timer.
const (
	phaseBusy    uint32 = iota // bounded by other means
	phaseIdle                  // between requests
	phaseHead                  // a message head has begun
	phaseWaiting               // upstream works on the answer; the box may go away
	phaseOpen                  // a tunnel or WebSocket
	phaseHalf                  // one of which one half is closed
)

const sweepEvery = 250 * time.Millisecond

// tick is never 0.
func (e *Engine) tick() uint32 { return e.ticks.Load() + 1 }

func (c *client) enter(phase uint32) {
	c.since.Store(c.e.tick())
	c.phase.Store(phase)
}

func (e *Engine) sweeper() {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for n := 0; ; n++ {
		select {
		case <-e.ctx.Done():
			return
		case <-t.C:
		}
		e.ticks.Add(1)
		for _, c := range e.live.all() {
			c.swept()
		}
		if n%16 == 0 {
			e.pool.expire()
		}
	}
}

func (c *client) swept() {
	e := c.e
	now := e.tick()
	in := func(since uint32) time.Duration { return time.Duration(now-since) * sweepEvery }
	if w := c.writing.Load(); w != 0 && in(w) > e.lim.Stalled {
		e.meters.stalled.Add(1)
		c.cut(endStalled)
		return
	}
	phase := c.phase.Load() // before since: enter writes them the other way round
	since := c.since.Load()
	switch phase {
	case phaseIdle:
		if in(since) > e.lim.Idle {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // its reader closes politely
		}
	case phaseHead:
		if in(since) > e.lim.HeaderTime {
			e.meters.slow.Add(1)
			_ = c.SetReadDeadline(time.Unix(1, 0)) // its reader answers 408
		}
	case phaseWaiting:
		if in(since) >= sweepEvery && c.tcp != nil && redirect.Gone(c.tcp) {
			c.cut(endAbort)
		}
	case phaseOpen:
		if d, known := c.quiet(); known && in(since) > e.lim.Quiet && d > e.lim.Quiet {
			e.meters.quiet.Add(1)
			c.cut(endQuiet)
		}
	case phaseHalf:
		switch {
		case in(since) > e.lim.HalfClosed:
			if d, known := c.quiet(); known && d <= e.lim.HalfClosed {
				return // the other half is at work
			}
			e.meters.halfClosed.Add(1)
			c.cut(endTime)
		case c.tcp != nil && redirect.Dead(c.tcp):
			c.cut(endAbort)
		}
	}
}

// quiet returns how long neither side has sent anything, where the kernel
// tells.
func (c *client) quiet() (d time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	up, ok := c.up.(*net.TCPConn)
	if !ok || c.tcp == nil {
		return 0, false
	}
	a, known := redirect.Quiet(c.tcp)
	b, both := redirect.Quiet(up)
	return min(a, b), known && both
}
