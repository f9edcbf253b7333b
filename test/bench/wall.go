package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (w *world) raw() string { return target(tunnelName, w.addrs.Raw) }

func (w *world) tunnel(r *report, rounds int, _ time.Duration) error {
	r.note("Bytes through CONNECT, 1 GiB a transfer, not decrypted.")
	rows := [][]string{{"", "direct MB/s", "L1 MB/s", "fy MB/s", "L1 CPU s/GiB", "fy CPU s/GiB"}}
	var bs []bound
	for _, up := range []bool{false, true} {
		m, err := w.rounds(2*rounds, load{Kind: "raw", Target: w.raw(), Size: gib, Up: up}, "direct", "L1", "fy") // one differs from the next by a quarter
		if err != nil {
			return err
		}
		what := map[bool]string{false: "down", true: "up"}[up]
		rows = append(rows, []string{what, figures(m["direct"], mbs).spread(), figures(m["L1"], mbs).spread(), figures(m["fy"], mbs).spread(),
			figures(m["L1"], cpuOne).spread(), figures(m["fy"], cpuOne).spread()})
		bs = append(bs,
			bound{what: what + ", CPU × L1", s: ratios(m["fy"], m["L1"], cpuOne), must: 1.25, goal: 1.25, less: true},
			bound{what: what + ", MB/s × L1", s: ratios(m["fy"], m["L1"], mbs), must: .9, goal: .95, soft: true})
	}
	r.table(rows...)
	r.bounds(bs...)
	calls, err := w.spliced()
	if err != nil {
		r.note("splice(2): not looked at: %v.", err)
		return nil
	}
	r.bounds(bound{what: "splice(2) calls in one transfer of 64 MiB, seen by strace", s: series{float64(calls)}, must: 1, goal: 1})
	return nil
}

// mbs is for transfers of 1 GiB.
func mbs(s sample) float64 { return gib / 1e6 * float64(s.N) / s.Seconds }

// spliced counts the splice calls that moved bytes in fy during one transfer.
func (w *world) spliced() (int, error) {
	if _, err := exec.LookPath("strace"); err != nil {
		return 0, errors.New("no strace here")
	}
	trace := filepath.Join(w.dir, "splice")
	c := exec.Command("strace", "-f", "-qq", "-e", "trace=splice", "-o", trace, "-p", strconv.Itoa(w.way["fy"].pid)) //nolint:noctx // ended below
	if err := c.Start(); err != nil {
		return 0, err
	}
	time.Sleep(500 * time.Millisecond) // strace says nothing when it has attached
	_, err := w.load(load{Kind: "raw", Target: w.raw(), Size: 64 * mib}, w.way["fy"])
	c.Process.Signal(os.Interrupt)
	c.Wait()
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(trace)
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if _, result, ok := strings.Cut(strings.TrimSpace(line), " = "); ok && result != "0" && !strings.HasPrefix(result, "-") {
			n++
		}
	}
	if n == 0 && len(b) == 0 {
		return 0, errors.New("strace saw nothing; may it attach?")
	}
	return n, nil
}

// boxStream moves bytes out of a box, through its wall, and compares with a bare relay on the host.
func (w *world) boxStream(r *report, rounds int, _ time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inside := filepath.Join(w.fy.dir, "load")
	if err := copyFile(inside, self); err != nil {
		return err
	}
	defer os.Remove(inside)
	r.note("1 GiB between a program in a box, which knows of no proxy, and an origin on the host: through the wall, redirected, spliced by the supervisor. L1 is the same between two programs of the host.")
	rows := [][]string{{"", "direct MB/s", "L1 MB/s", "box MB/s", "L1 CPU s/GiB", "supervisor CPU s/GiB"}}
	var bs []bound
	for _, up := range []bool{false, true} {
		o := load{Kind: "raw", Target: w.raw(), Size: gib, Up: up}
		sums := map[string][]sample{}
		for range fewer(rounds, gib) {
			var round [3]sample
			for _, i := range mirrored(3) {
				var s sample
				switch i {
				case 2:
					s, err = w.boxLoad(inside, o)
				default:
					s, err = w.load(o, w.way[[]string{"direct", "L1"}[i]])
				}
				if err != nil {
					return err
				}
				round[i].N, round[i].Seconds, round[i].CPU = round[i].N+s.N, round[i].Seconds+s.Seconds, round[i].CPU+s.CPU
			}
			for i, n := range []string{"direct", "L1", "box"} {
				sums[n] = append(sums[n], round[i])
			}
		}
		what := map[bool]string{false: "down", true: "up"}[up]
		rows = append(rows, []string{what, figures(sums["direct"], mbs).spread(), figures(sums["L1"], mbs).spread(), figures(sums["box"], mbs).spread(),
			figures(sums["L1"], cpuOne).spread(), figures(sums["box"], cpuOne).spread()})
		bs = append(bs,
			bound{what: what + ", MB/s × L1 on the host", s: ratios(sums["box"], sums["L1"], mbs), must: .75, goal: .85, soft: true},
			bound{what: what + ", CPU × L1 on the host", s: ratios(sums["box"], sums["L1"], cpuOne), must: 1.6, goal: 1.25, less: true, own: true})
	}
	r.table(rows...)
	r.bounds(bs...)
	return nil
}

// boxLoad runs a load in a box. The supervisor that carries it is fy proxy's: one project has one.
func (w *world) boxLoad(program string, o load) (sample, error) {
	pid := w.way["fy"].pid
	arg, err := json.Marshal(o)
	if err != nil {
		return sample{}, err
	}
	before, err := cpuOf(pid)
	if err != nil {
		return sample{}, err
	}
	text, err := w.fy.runWith(strings.NewReader(""), "run", "-q", "--", program, "__load", string(arg))
	if err != nil {
		return sample{}, err
	}
	after, err := cpuOf(pid)
	if err != nil {
		return sample{}, err
	}
	s := sample{CPU: (after - before).Seconds()}
	return s, json.Unmarshal([]byte(text), &s.result)
}

func copyFile(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}

// start measures how long true takes in a box. It needs a supervisor that has done nothing else.
func (w *world) start(r *report, rounds int, _ time.Duration) error {
	dir := filepath.Join(w.dir, "starts")
	in, err := newInstall(w.fy.fy, dir, "")
	if err != nil {
		return err
	}
	s, err := measureStarts(in, rounds)
	if err != nil {
		return err
	}
	r.note("`fy run -- true`, against `%s`: %d runs of each.", strings.Join(bubblewrap, " "), len(s.Fy))
	rows := [][]string{{"", "ms", "CPU ms"}, {"fy run -- true", spreadOf(s.Fy), short(s.FyCPU)}}
	if s.withoutBubblewrap != "" {
		r.note("No comparison: %s.", s.withoutBubblewrap)
	} else {
		rows = append(rows, []string{"bwrap", spreadOf(s.Bwrap), short(s.BwrapCPU)})
	}
	r.table(rows...)
	bs := []bound{
		{what: "fy run that starts the supervisor, more", s: s.Cold, must: 150, goal: 50, less: true, unit: " ms", soft: true},
		{what: "supervisor's start", s: s.Supervisor, must: 25, goal: 15, less: true, unit: " ms", soft: true},
		{what: "supervisor's memory at rest", s: series{float64(s.IdleRSS) / 1024}, must: 30, goal: 20, less: true, unit: " MiB"},
	}
	if s.withoutBubblewrap == "" {
		bs = append([]bound{
			{what: "fy run, × bwrap", s: s.Wall, must: 3, goal: 1.5, less: true, soft: true},
			{what: "fy run, CPU × bwrap, supervisor's and box's with it", s: s.CPU, must: 12, goal: 3, less: true, own: true},
		}, bs...)
	}
	r.bounds(bs...)
	return nil
}

// spreadOf is for single runs: the median, and from what to what nine of ten were.
func spreadOf(s series) string {
	return fmt.Sprintf("%s (%s..%s)", short(s.median()), short(s.quantile(.05)), short(s.quantile(.95)))
}
