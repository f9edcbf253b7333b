// Command bench measures fy beside fixed limits, in one run: origin, load and limits are programs of its own, every round goes there
// and back through all of them, and figures are ratios inside a round, because the computer it runs on is shared.
//
//	bench [flags] FY      measures the fy at that path, prints a report and writes it
//	bench soak [flags] FY full load for half an hour: memory, descriptors and goroutines must not grow
//
// Everything stays on loopback; make bench gives it a network namespace without anything else.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

func main() {
	runtime.LockOSThread() // see endWithUs
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 {
		if role := roles()[args[0]]; role != nil { // this program, as a part of the measurement
			return role(args[1])
		}
	}
	soaking := len(args) > 0 && args[0] == "soak"
	if soaking {
		args = args[1:]
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := f.Int("rounds", 5, "rounds of a measurement")
	seconds := f.Duration("d", 1500*time.Millisecond, "length of a measurement of requests")
	soak := f.Duration("soak", 30*time.Minute, "length of a soak")
	only := f.String("only", "", "measurements to take, by `WORD` in their name, separated by commas")
	out := f.String("out", "", "`FILE` to write the report to")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("usage: bench [soak] [flags] FY")
	}
	fy, err := filepath.Abs(f.Arg(0))
	if err != nil {
		return err
	}
	w, err := newWorld(fy)
	if err != nil {
		return err
	}
	defer w.close()
	r := &report{fy: fy, rounds: *rounds}
	if soaking {
		err = w.soak(r, *soak)
	} else {
		err = w.measure(r, *rounds, *seconds, words(*only))
	}
	if err != nil {
		return err
	}
	fmt.Print(r.text())
	if *out == "" || *only != "" {
		return nil
	}
	return r.write(*out, soaking)
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// measure takes the measurements whose names hold one of the words.
func (w *world) measure(r *report, rounds int, d time.Duration, only []string) error {
	for _, m := range []struct {
		name string
		take func(*report, int, time.Duration) error
	}{
		{"keep-alive", w.keepAlive},
		{"one connection", w.oneConnection},
		{"http2", w.http2},
		{"new connection", w.newConnection},
		{"cold leaf", w.coldLeaf},
		{"tunnel", w.tunnel},
		{"bulk", w.bulk},
		{"memory", w.memory},
		{"box stream", w.boxStream},
		{"start", w.start},
		{"mitmproxy", w.mitmproxy},
	} {
		if !wanted(m.name, only) {
			continue
		}
		begin := time.Now()
		r.section(m.name)
		if err := m.take(r, rounds, d); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(os.Stderr, "bench: %s, %.0f s\n", m.name, time.Since(begin).Seconds())
	}
	return nil
}

func wanted(name string, only []string) bool {
	for _, o := range only {
		if strings.Contains(name, o) {
			return true
		}
	}
	return len(only) == 0
}
