package capture

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, dir string, opt Options) *Log {
	t.Helper()
	l, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func closeLog(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, dir string, f Filter) []*Record {
	t.Helper()
	var out []*Record
	if err := Read(t.Context(), dir, f, func(r *Record) error { out = append(out, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func hosts(recs []*Record) []string {
	out := []string{}
	for _, r := range recs {
		s := r.Host
		if r.DeniedTimes > 0 {
			s += fmt.Sprintf("×%d", r.DeniedTimes)
		}
		if r.Reason == reasonLimit {
			s += "limit:" + r.Error
		}
		out = append(out, s)
	}
	return out
}

func allow(box, host string) *Record { return &Record{Box: box, Host: host, Verdict: VerdictAllow} }
func deny(box, host string) *Record {
	return &Record{Box: box, Host: host, Verdict: VerdictDeny, Reason: "not_granted"}
}

func TestLinesArriveSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		for i := range 3 {
			r := allow("b", fmt.Sprint(i))
			l.Put(r)
			if r.ID == "" || r.TS.IsZero() {
				t.Errorf("no id or time: %+v", r)
			}
			time.Sleep(100 * time.Millisecond) // inside the bubble: no waiting
			synctest.Wait()
			if got := read(t, dir, Filter{}); len(got) != i+1 || !got[i].TS.Equal(r.TS.Truncate(time.Millisecond)) {
				t.Fatalf("after record %d there are %d lines", i, len(got))
			}
			time.Sleep(5 * time.Second) // long enough for the writer to rest
		}
		seen := map[string]bool{}
		for _, r := range read(t, dir, Filter{}) {
			if seen[r.ID] {
				t.Errorf("id %s twice", r.ID)
			}
			seen[r.ID] = true
		}
	})
}

func TestRefusalsAreFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		settle := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		for i := range 5 {
			r := deny("b", "a.test")
			r.Path = fmt.Sprint("/", i)
			l.Put(r)
		}
		l.Put(deny("b2", "a.test"))
		l.Put(deny("b", "b.test"))
		l.Put(allow("b", "a.test"))
		settle(100 * time.Millisecond)
		if d := cmp.Diff([]string{"a.test", "a.test", "b.test", "a.test"}, hosts(read(t, dir, Filter{}))); d != "" {
			t.Errorf("the first of each target is written at once, allowed ones always: %s", d)
		}
		settle(3 * time.Second)
		got := read(t, dir, Filter{Denied: true})
		if d := cmp.Diff([]string{"a.test", "a.test", "b.test", "a.test×4"}, hosts(got)); d != "" {
			t.Errorf("the burst ends in one line: %s", d)
		}
		if got[3].Path != "/4" {
			t.Errorf("the folded line has path %q, not the last one's", got[3].Path)
		}
		settle(10 * time.Second)
		many := deny("b", "a.test")
		many.DeniedTimes = 7 // counted by the kernel
		l.Put(many)
		l.Put(many)
		settle(3 * time.Second)
		if d := cmp.Diff([]string{"a.test×7", "a.test×7"}, hosts(read(t, dir, Filter{Denied: true})[4:])); d != "" {
			t.Errorf("a new burst starts with a line at once: %s", d)
		}
		settle(10 * time.Second)
		l.Put(deny("b", "twice.test"))
		l.Put(deny("b", "twice.test"))
		settle(3 * time.Second)
		if d := cmp.Diff([]string{"twice.test", "twice.test"}, hosts(read(t, dir, Filter{Denied: true})[6:])); d != "" {
			t.Errorf("a line that stands for itself alone says so: %s", d)
		}
		if d := cmp.Diff(hosts(read(t, dir, Filter{Denied: true})), hosts(read(t, dir, Filter{Audit: true}))); d != "" {
			t.Errorf("audit.jsonl has the refusals: %s", d)
		}
	})
}

func TestRateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		for range 1000 {
			l.Put(allow("flood", "a.test"))
		}
		l.Put(allow("other", "c.test"))
		for i := range 30 {
			l.Put(deny("flood", fmt.Sprintf("%d.test", i)))
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		var lines int
		for _, r := range read(t, dir, Filter{Box: "flood"}) {
			if r.Reason != reasonLimit {
				lines++
			}
		}
		if want := 200 + 2 + 10; lines != want { // the first of its kind, the first of its path, and the refusals beyond
			t.Errorf("%d lines of one box in a second, want %d", lines, want)
		}
		if n := len(read(t, dir, Filter{Host: "0.test"})); n != 1 {
			t.Error("a flood of allowed requests hides a refusal")
		}
		if n := len(read(t, dir, Filter{Box: "other"})); n != 1 {
			t.Error("one box's flood hides another's record")
		}
		got := read(t, dir, Filter{Box: "flood"})
		last := got[len(got)-1]
		if last.Reason != reasonLimit || !strings.HasPrefix(last.Error, "818 records") || last.Host != "a.test" {
			t.Errorf("the folded line: %+v", last)
		}
		if s := l.Stats(); s.Folded != 818 || s.Dropped != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A box that repeats many refusals gets no more lines than one that makes as many different ones.
func TestFoldedLinesCountToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		for range 5 * 20 { // for five seconds
			for i := range 40 {
				for range 2 {
					l.Put(deny("b", fmt.Sprintf("%d.test", i+40*int(time.Now().Unix()%10))))
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		perSecond, total := map[int64]int{}, 0
		for _, r := range read(t, dir, Filter{}) {
			perSecond[r.TS.Unix()]++
			if r.Verdict == VerdictDeny || r.Reason == reasonLimit {
				total += times(r)
			}
		}
		for s, n := range perSecond {
			if n > 2*(200+floodRefused+1) { // two windows may meet in one second
				t.Errorf("%d lines in second %d", n, s)
			}
		}
		if total < 5*20*80 {
			t.Errorf("the lines stand for %d refusals, there were %d", total, 5*20*80)
		}
	})
}

func TestManyWriters(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{Rate: 1e6, MaxSize: 50_000, Keep: 1000})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				l.Put(allow(fmt.Sprint(w), fmt.Sprintf("%d.test", i)))
				_ = l.Stats()
			}
		})
	}
	wg.Wait()
	closeLog(t, l)
	next := map[string]int{}
	for _, r := range read(t, dir, Filter{}) {
		if want := fmt.Sprintf("%d.test", next[r.Box]); r.Host != want {
			t.Fatalf("writer %s: %s, want %s", r.Box, r.Host, want)
		}
		next[r.Box]++
	}
	for w := range 8 {
		if n := next[fmt.Sprint(w)]; n != 500 {
			t.Errorf("writer %d: %d records", w, n)
		}
	}
}

func TestFlushWritesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		began := time.Now()
		l.Put(allow("b", "waits.test"))
		if got := hosts(read(t, dir, Filter{})); len(got) != 0 {
			t.Errorf("before: %v", got)
		}
		l.Flush()
		l.Put(deny("b", "refused.test"))
		l.Put(deny("b", "refused.test")) // one that folds
		l.Flush()
		got := hosts(read(t, dir, Filter{}))
		if len(got) < 2 || got[0] != "waits.test" || got[1] != "refused.test" || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), got)
		}
		closeLog(t, l)
		l.Flush() // of a closed one, waits for nothing
	})
}

func TestCloseWritesAll(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{Rate: 2}) // the burst's own line is beyond it too
	for range 4 {
		l.Put(deny("b", "a.test"))
	}
	for range 4 {
		l.Put(allow("b", "b.test"))
	}
	closeLog(t, l)
	got := strings.Join(hosts(read(t, dir, Filter{})), " ")
	if !strings.Contains(got, "×3") || !strings.Contains(got, "b.testlimit:1 records") {
		t.Error(got)
	}
	l.Put(allow("b", "late"))
	if s := l.Stats(); s.Dropped != 1 {
		t.Errorf("after Close: %+v", s)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{Queue: 1000, Rate: 1e6})
		defer closeLog(t, l)
		for range 100 {
			l.Put(allow("b", "a.test"))
		}
		s := l.Stats()
		if s.Dropped == 0 || s.Queued > 1000+maxLine {
			t.Errorf("%+v", s)
		}
		time.Sleep(100 * time.Millisecond)
		l.Put(allow("b", "b.test"))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		got := strings.Join(hosts(read(t, dir, Filter{})), " ")
		if want := fmt.Sprintf("limit:%d records were lost", s.Dropped); !strings.Contains(got, want) || !strings.Contains(got, "b.test") {
			t.Errorf("no line about the loss: %s", got)
		}
	})
}

func TestAuditEvents(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	l.Audit(&Event{Event: "grant", Rule: "a.test", Level: "session", Reason: "\x1b"})
	l.Put(deny("b", "a.test"))
	inj := allow("b", "b.test")
	inj.Injected = "demo"
	l.Put(inj)
	l.Put(allow("b", "c.test"))
	closeLog(t, l)
	b, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
	if err != nil || bytes.Count(b, []byte("\n")) != 3 || !bytes.Contains(b, []byte(`"event":"grant","rule":"a.test","level":"session","reason":"\u001b"`)) {
		t.Errorf("%s %v", b, err)
	}
	var damaged int
	if d := cmp.Diff([]string{"a.test", "b.test"}, hosts(read(t, dir, Filter{Audit: true, Damaged: func(string, int) { damaged++ }}))); d != "" || damaged > 0 {
		t.Errorf("%d damaged: %s", damaged, d)
	}
}

func BenchmarkPutFolded(b *testing.B) {
	l, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	r := full()
	b.ReportAllocs()
	for b.Loop() {
		one := *r
		one.ID, one.TS = "", time.Time{}
		l.Put(&one)
	}
}

func BenchmarkPut(b *testing.B) {
	l, err := Open(b.TempDir(), Options{Rate: 1 << 30, Queue: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	r := full()
	r.Injected, r.Replayed, r.DeniedTimes = "", false, 0
	b.ReportAllocs()
	for b.Loop() {
		one := *r
		one.ID, one.TS = "", time.Time{}
		l.Put(&one)
	}
}
