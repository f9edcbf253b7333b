package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

func cpuOne(s sample) float64 { return s.CPU / float64(s.N) }
func rate(s sample) float64   { return s.perSecond() }
func p50(s sample) float64    { return s.P50 }
func p99(s sample) float64    { return s.P99 }

// details writes what each way did by itself.
func (r *report) details(m map[string][]sample, names ...string) {
	rows := [][]string{{"", "CPU µs a request", "requests/s", "p50 ms", "p99 ms"}}
	for _, n := range names {
		cpu := "–"
		if figures(m[n], cpuOne).median() > 0 {
			cpu = figures(m[n], sample.perRequest).spread()
		}
		rows = append(rows, []string{n, cpu, figures(m[n], rate).spread(), figures(m[n], p50).spread(), figures(m[n], p99).spread()})
	}
	r.table(rows...)
}

func (w *world) web() string { return target(webName, w.addrs.TLS) }

func (w *world) keepAlive(r *report, rounds int, d time.Duration) error {
	names := []string{"direct", "L2", "fy"}
	m, err := w.rounds(rounds, load{Kind: "requests", Target: w.web(), Conns: 32, For: d, Size: 1024}, names...)
	if err != nil {
		return err
	}
	r.note("Decrypted, 1 KiB, 32 connections.")
	r.details(m, names...)
	r.bounds(
		bound{what: "CPU a request, × L2", s: ratios(m["fy"], m["L2"], cpuOne), must: 1.15, goal: .60, less: true},
		bound{what: "requests/s, × L2", s: ratios(m["fy"], m["L2"], rate), must: .85, goal: 1.4, soft: true},
		bound{what: "p99, × L2", s: ratios(m["fy"], m["L2"], p99), must: 1.25, goal: 1, less: true, soft: true},
	)
	return nil
}

func (w *world) oneConnection(r *report, rounds int, d time.Duration) error {
	names := []string{"direct", "L2", "fy"}
	m, err := w.rounds(rounds, load{Kind: "requests", Target: w.web(), Conns: 1, For: d / 2, Size: 1024}, names...)
	if err != nil {
		return err
	}
	var added series
	for i := range m["fy"] {
		added = append(added, (m["fy"][i].P50-m["direct"][i].P50)/(m["L2"][i].P50-m["direct"][i].P50))
	}
	r.note("Decrypted, 1 KiB, one connection: what a request waits longer than without a proxy.")
	r.details(m, names...)
	r.bounds(bound{what: "added p50, × what L2 adds", s: added, must: 1.15, goal: .70, less: true, soft: true})
	return nil
}

func (w *world) http2(r *report, rounds int, d time.Duration) error {
	names := []string{"direct", "L2-h2", "fy"}
	m, err := w.rounds(rounds, load{Kind: "requests", Target: w.web(), Conns: 32, For: d, Size: 1024, HTTP2: true}, names...)
	if err != nil {
		return err
	}
	r.note("Decrypted, h2 on both sides, 1 KiB, 32 streams.")
	r.details(m, names...)
	r.bounds(
		bound{what: "CPU a request, × L2-h2", s: ratios(m["fy"], m["L2-h2"], cpuOne), must: 1.2, goal: 1, less: true},
		bound{what: "requests/s, × L2-h2", s: ratios(m["fy"], m["L2-h2"], rate), must: .85, goal: 1, soft: true},
	)
	return nil
}

func (w *world) newConnection(r *report, rounds int, d time.Duration) error {
	names := []string{"direct", "L2", "fy"}
	o := load{Kind: "requests", Target: w.web(), Conns: 8, For: d, Size: 1024, NewConn: true}
	full, err := w.rounds(rounds, o, names...)
	if err != nil {
		return err
	}
	o.Tickets = true
	again, err := w.rounds(rounds, o, names...)
	if err != nil {
		return err
	}
	r.note("Decrypted, a connection for every request, leaf already minted. Without session tickets:")
	r.details(full, names...)
	r.note("With session tickets:")
	r.details(again, names...)
	resumed := figures(again["fy"], func(s sample) float64 { return float64(s.Resumed) / float64(s.N) })
	r.bounds(
		bound{what: "CPU a connection, × L2", s: ratios(full["fy"], full["L2"], cpuOne), must: 1.15, goal: 1, less: true},
		bound{what: "connections/s, × L2", s: ratios(full["fy"], full["L2"], rate), must: .85, goal: 1, soft: true},
		bound{what: "share of handshakes that resumed (DidResume)", s: resumed, must: .95, goal: .99},
		bound{what: "connections/s resumed, × own full handshake", s: ratios(again["fy"], full["fy"], rate), must: 1, goal: 1.25, soft: true},
	)
	return nil
}

func (w *world) coldLeaf(r *report, rounds int, _ time.Duration) error {
	names := []string{"direct", "L2", "fy"}
	m, err := w.rounds(rounds, load{Kind: "requests", Target: target(coldNames, w.addrs.TLS), Conns: 1, Count: 30, Size: 1024, NewConn: true}, names...)
	if err != nil {
		return err
	}
	var added series
	for i := range m["fy"] {
		added = append(added, (m["fy"][i].P50-m["direct"][i].P50)/(m["L2"][i].P50-m["direct"][i].P50))
	}
	r.note("The first request to a name, one at a time: a leaf is minted, fy resolves the name, and nothing resumes.")
	r.details(m, names...)
	r.bounds(
		bound{what: "added p50, × what L2 adds", s: added, must: 1.15, goal: .9, less: true, soft: true},
		bound{what: "CPU a name, × L2", s: ratios(m["fy"], m["L2"], cpuOne), must: 1.3, goal: 1, less: true, own: true},
	)
	return nil
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

func (w *world) bulk(r *report, rounds int, _ time.Duration) error {
	fy := w.way["fy"]
	idle, err := memory(fy.pid, "VmRSS")
	if err != nil {
		return err
	}
	r.note("One decrypted request, client and origin on this computer. fy had %.1f MiB before.", float64(idle)/1024)
	rows := [][]string{{"", "direct MB/s", "L2 MB/s", "fy MB/s", "L2 CPU s/GiB", "fy CPU s/GiB", "fy peak MiB"}}
	var bs []bound
	for _, size := range []int64{64 * mib, gib} {
		for _, up := range []bool{false, true} {
			if err := forgetPeak(fy.pid); err != nil {
				return err
			}
			m, err := w.rounds(fewer(rounds, size), load{Kind: "bulk", Target: w.web(), Size: size, Up: up}, "direct", "L2", "fy")
			if err != nil {
				return err
			}
			peak, err := memory(fy.pid, "VmHWM")
			if err != nil {
				return err
			}
			speed := func(s sample) float64 { return float64(size) * float64(s.N) / 1e6 / s.Seconds }
			cost := func(s sample) float64 { return s.CPU / (float64(size) * float64(s.N) / gib) }
			what := fmt.Sprintf("%d MiB %s", size/mib, map[bool]string{false: "down", true: "up"}[up])
			rows = append(rows, []string{what, figures(m["direct"], speed).spread(), figures(m["L2"], speed).spread(), figures(m["fy"], speed).spread(),
				figures(m["L2"], cost).spread(), figures(m["fy"], cost).spread(), short(float64(peak) / 1024)})
			bs = append(bs,
				bound{what: what + ", CPU × L2", s: ratios(m["fy"], m["L2"], cost), must: 1.1, goal: 1, less: true},
				bound{what: what + ", MB/s × L2", s: ratios(m["fy"], m["L2"], speed), must: .9, goal: 1, soft: true},
				bound{what: what + ", MiB more at most than idle", s: series{float64(peak-idle) / 1024}, must: 10, goal: 10, less: true},
			)
		}
	}
	r.table(rows...)
	r.bounds(bs...)
	return nil
}

// fewer rounds do for transfers that are long in themselves.
func fewer(rounds int, size int64) int {
	if size >= gib {
		return (rounds + 1) / 2
	}
	return rounds
}

// held is how much memory a connection takes while it does nothing.
func (w *world) held(o load, by *way, n int64) (float64, error) {
	o.Kind, o.Count, o.Size, o.Proxy, o.Roots = "hold", n, 1024, by.proxy, by.roots
	before, err := memory(by.pid, "VmRSS")
	if err != nil {
		return 0, err
	}
	var res result
	p, err := startPart("__load", o, &res)
	if err != nil {
		return 0, err
	}
	time.Sleep(2 * time.Second) // what is given back when a connection rests is given back by now
	after, err := memory(by.pid, "VmRSS")
	if err != nil {
		return 0, err
	}
	if err := p.stop(); err != nil {
		return 0, err
	}
	time.Sleep(time.Second)
	return float64(after-before) / float64(n), nil
}

// memory is measured in a world of its own: memory that other loads left free would hide what a connection takes.
func (w *world) memory(r *report, _ int, _ time.Duration) error {
	w, err := newWorld(w.fy.fy)
	if err != nil {
		return err
	}
	defer w.close()
	const n = 500 // the bound on tunnels of one box is 512
	rows := [][]string{{"KiB a connection at rest", "tunnel", "decrypted"}}
	var fyTunnel, fyWeb float64
	for _, names := range [][2]string{{"L1", "L2"}, {"fy", "fy"}} {
		var kib [2]float64
		for i, o := range []load{{Target: target(tunnelName, w.addrs.Raw), Plain: true}, {Target: w.web()}} {
			if _, err := w.held(o, w.way[names[i]], 50); err != nil { // what is made once
				return err
			}
			if kib[i], err = w.held(o, w.way[names[i]], n); err != nil {
				return err
			}
		}
		rows = append(rows, []string{strings.Join(slices.Compact(names[:]), ", "), short(kib[0]), short(kib[1])})
		fyTunnel, fyWeb = kib[0], kib[1]
	}
	r.note("Resident memory of %d connections at rest.", n)
	r.table(rows...)
	fy := w.way["fy"]
	short := func(n int64) (float64, error) {
		if _, err := w.load(load{Kind: "requests", Target: w.web(), Conns: 8, Count: n, Size: 1024, NewConn: true}, fy); err != nil {
			return 0, err
		}
		kib, err := memory(fy.pid, "VmRSS")
		return float64(kib), err
	}
	few, err := short(2000)
	if err != nil {
		return err
	}
	many, err := short(4000)
	if err != nil {
		return err
	}
	r.bounds(
		bound{what: "tunnel", s: series{fyTunnel}, must: 26, goal: 20, less: true, unit: " KiB"},
		bound{what: "decrypted connection", s: series{fyWeb}, must: 48, goal: 37, less: true, unit: " KiB"},
		bound{what: "memory after 6,000 short connections, × after 2,000", s: series{many / few}, must: 1.1, goal: 1, less: true},
	)
	return nil
}
