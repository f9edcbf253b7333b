package supervisor

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
)

// A segment of the log that is full is set aside and compressed, as the operator's [log] says; nothing of it is lost.
func TestFullSegmentsAreCompressed(t *testing.T) {
	opt := options(t, time.Now, "")
	operatorConfig(t, opt, "[log]\nmax_size = \"64KiB\"\n")
	s, err := open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	const n = 150
	for range n {
		s.record(&capture.Record{Host: "a.test", Port: 443, Verdict: capture.VerdictAllow, Path: "/" + strings.Repeat("x", 1000)})
	}
	dir := s.opt.Project.LogDir()
	list := func(pattern string) []string {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); len(list("egress.*.jsonl.gz")) == 0 || len(list("egress.*.jsonl")) > 0; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("rotated: %q compressed, %q not", list("egress.*.jsonl.gz"), list("egress.*.jsonl"))
		}
	}
	s.close()
	got := 0
	err = capture.Read(t.Context(), dir, capture.Filter{}, func(r *capture.Record) error {
		if r.Host == "a.test" {
			got++
		}
		return nil
	})
	if err != nil || got != n {
		t.Errorf("read %d records %v, want all %d", got, err, n)
	}
}
