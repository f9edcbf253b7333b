package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// report gathers what was measured.
type report struct {
	fy     string
	rounds int
	b      strings.Builder
	missed []string
}

func (r *report) section(name string) {
	fmt.Fprintf(&r.b, "\n## %s\n\n", strings.ToUpper(name[:1])+name[1:])
}

// table writes rows; the first is the head.
func (r *report) table(rows ...[]string) {
	for i, row := range rows {
		fmt.Fprintf(&r.b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&r.b, "|%s\n", strings.Repeat(" --- |", len(row)))
		}
	}
	r.b.WriteByte('\n')
}

func (r *report) note(format string, args ...any) { fmt.Fprintf(&r.b, format+"\n\n", args...) }

// bound is a figure with what it must be, and what it should be.
type bound struct {
	what       string
	s          series
	must, goal float64
	less       bool // the figure may be at most must, else it must be at least that
	unit       string
	soft       bool // wall time on a shared computer: told, not held against anybody
	own        bool // no goal of the project's: a bound that shows when it gets worse
}

func (b bound) meets(limit float64) bool {
	if b.less {
		return b.s.median() <= limit
	}
	return b.s.median() >= limit
}

// bounds writes a table of figures against their bounds.
func (r *report) bounds(bs ...bound) {
	rows := [][]string{{"figure", "median (least..most)", "must", "goal", ""}}
	for _, b := range bs {
		sign := "≥ "
		if b.less {
			sign = "≤ "
		}
		verdict := "missed"
		switch {
		case b.meets(b.goal):
			verdict = "goal"
		case b.meets(b.must):
			verdict = "met"
		case b.soft:
			verdict = "missed, by the clock"
		default:
			r.missed = append(r.missed, b.what)
		}
		if b.own {
			verdict += ", our own bound"
		}
		rows = append(rows, []string{b.what, b.s.spread() + b.unit, sign + short(b.must) + b.unit, sign + short(b.goal) + b.unit, verdict})
	}
	r.table(rows...)
}

func (r *report) text() string { return strings.TrimLeft(r.b.String(), "\n") }

// soakHead begins the part of the page that a soak writes; the rest is the bench's.
const soakHead = "\n# Soak\n"

// write writes the report with the computer and the versions, so that it can be read later. The page has two parts, and each kind of
// run leaves the other's as it is.
func (r *report) write(path string, soak bool) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	bench, soaked, found := strings.Cut(string(old), soakHead)
	missed := ""
	if len(r.missed) > 0 {
		missed = "\nMissed: " + strings.Join(r.missed, "; ") + ".\n"
	}
	body := "\n" + machine(r.fy) + "\n" + missed + r.b.String()
	if soak {
		soaked, found = "\nWritten by `make soak`.\n"+body, true
	} else {
		bench = fmt.Sprintf(`# Bench

Written by `+"`make bench`"+`; do not edit. Figures are ratios inside a round of one run, there and back through every way, as median
(least..most) over %d rounds. Client, proxy and origin share the processors, so the figures to trust are those of processor time;
those by the clock are told for what they are worth. L1 is a bare spliced CONNECT tunnel, L2 a bare http.Server with ReverseProxy,
a pooled Transport and TLS on both sides: programs of test/bench. fy runs with a policy of a hundred grants and with its log on.
`, r.rounds) + body
	}
	if found {
		bench = strings.TrimRight(bench, "\n") + "\n" + soakHead + soaked
	}
	return os.WriteFile(path, []byte(bench), 0o644) //nolint:gosec // a page of the documentation
}

// machine says where and with what it was measured.
func machine(fy string) string {
	first := func(argv ...string) string {
		out, err := exec.Command(argv[0], argv[1:]...).Output() //nolint:noctx // asks for a version
		if err != nil {
			return "none"
		}
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return line
	}
	model := "unknown"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	load := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	return strings.Join([]string{
		"- " + time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		fmt.Sprintf("- %s, %d processors, load %s at the end", model, runtime.NumCPU(), load),
		"- " + first("uname", "-sr"),
		"- " + runtime.Version() + ", " + first(fy, "version"),
		"- bubblewrap: " + first("bwrap", "--version") + "; mitmproxy: " + first("mitmdump", "--version"),
	}, "\n")
}
