package main

import (
	"fmt"
	"os"
	"time"
)

// soak puts every kind of load on fy for a while. After the first sixth nothing may grow any more: what fy keeps up to a bound, which
// would look like a leak while it fills, is filled before (leaves, TLS sessions) or by every turn (the buffers of pooled connections).
func (w *world) soak(r *report, length time.Duration) error {
	fy := w.way["fy"]
	r.section("soak")
	r.note("All kinds of load in turn for %s: keep-alive with small and large answers, new connections with and without tickets, h2, new names, bulk both ways, tunnels. "+
		"Before it %d names were asked for, more than the leaves and TLS sessions that are kept.", length, fillTurns*fillNames)
	rows := [][]string{{"minute", "requests", "MiB resident", "descriptors", "threads"}}
	loads := []load{
		{Kind: "requests", Target: w.web(), Conns: 64, For: 20 * time.Second, Size: 1024},
		{Kind: "requests", Target: w.web(), Conns: 64, For: 3 * time.Second, Size: 64 << 10},
		{Kind: "requests", Target: w.web(), Conns: 16, For: 10 * time.Second, Size: 1024, NewConn: true},
		{Kind: "requests", Target: w.web(), Conns: 16, For: 5 * time.Second, Size: 1024, NewConn: true, Tickets: true},
		{Kind: "requests", Target: w.web(), Conns: 64, For: 10 * time.Second, Size: 16 << 10, HTTP2: true},
		{Kind: "requests", Target: target(coldNames, w.addrs.TLS), Conns: 2, Count: 20, Size: 1024, NewConn: true},
		{Kind: "bulk", Target: w.web(), Size: 256 * mib},
		{Kind: "bulk", Target: w.web(), Size: 256 * mib, Up: true},
		{Kind: "raw", Target: w.raw(), Size: gib},
	}
	var resident, open series
	var requests int64
	if err := w.fill(fy); err != nil {
		return err
	}
	begin := time.Now()
	for time.Since(begin) < length {
		for _, o := range loads {
			s, err := w.load(o, fy)
			if err != nil {
				return err
			}
			requests += s.N
		}
		time.Sleep(2 * time.Second)
		rss, err := memory(fy.pid, "VmRSS")
		if err != nil {
			return err
		}
		fds, err := count(fy.pid, "fd")
		if err != nil {
			return err
		}
		threads, err := count(fy.pid, "task")
		if err != nil {
			return err
		}
		resident, open = append(resident, float64(rss)/1024), append(open, float64(fds))
		row := []string{fmt.Sprintf("%.1f", time.Since(begin).Minutes()), fmt.Sprint(requests), short(float64(rss) / 1024), fmt.Sprint(fds), fmt.Sprint(threads)}
		rows = append(rows, row)
		fmt.Fprintln(os.Stderr, "soak:", row)
	}
	r.table(rows...)
	settled := len(resident) / 6
	half := settled + (len(resident)-settled)/2
	r.bounds(
		bound{what: "memory, second half × first half", s: series{resident[half:].mean() / resident[settled:max(half, settled+1)].mean()}, must: 1.1, goal: 1.02, less: true},
		bound{what: "descriptors, second half × first half", s: series{open[half:].mean() / open[settled:max(half, settled+1)].mean()}, must: 1.1, goal: 1.02, less: true},
	)
	return nil
}

const (
	fillTurns, fillNames = 6, 200
	fillPause            = 4 * time.Second // in which one box may have as many leaves minted again
)

// fill asks for more names than fy keeps anything of.
func (w *world) fill(fy *way) error {
	for range fillTurns {
		if _, err := w.load(load{Kind: "requests", Target: target(coldNames, w.addrs.TLS), Conns: 2, Count: fillNames, Size: 1024, NewConn: true}, fy); err != nil {
			return err
		}
		time.Sleep(fillPause)
	}
	return nil
}
