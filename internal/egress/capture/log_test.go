package capture

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
		if lines != 200 {
			t.Errorf("%d lines of one box in a second, want 200", lines)
		}
		if n := len(read(t, dir, Filter{Host: "0.test"})); n != 1 {
			t.Error("a flood of allowed requests hides a refusal")
		}
		if n := len(read(t, dir, Filter{Box: "other"})); n != 1 {
			t.Error("one box's flood hides another's record")
		}
		got := read(t, dir, Filter{Box: "flood"})
		last := got[len(got)-1]
		if last.Reason != reasonLimit || !strings.HasPrefix(last.Error, "830 records") || last.DeniedTimes != 10 {
			t.Errorf("the folded line: %+v", last)
		}
		if s := l.Stats(); s.Folded != 830 || s.Dropped != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestCloseWritesAll(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{Rate: 2})
	for range 4 {
		l.Put(deny("b", "a.test"))
	}
	for range 4 {
		l.Put(allow("b", "b.test"))
	}
	closeLog(t, l)
	got := strings.Join(hosts(read(t, dir, Filter{})), " ")
	if !strings.Contains(got, "a.test×3") || !strings.Contains(got, "limit:3 records") {
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

func TestRotation(t *testing.T) {
	for _, zip := range []bool{false, true} {
		dir := t.TempDir()
		l := open(t, dir, Options{MaxSize: 4000, Keep: 3, Rate: 1e6, Compress: zip})
		want := []string{}
		for i := range 400 {
			h := fmt.Sprintf("%03d.test", i)
			want = append(want, h)
			l.Put(allow("b", h))
			if i%50 == 49 {
				for l.Stats().Queued > 0 {
					time.Sleep(time.Millisecond) //nolint // polling a writer that owns real files
				}
			}
		}
		closeLog(t, l)
		entries, err := filepath.Glob(filepath.Join(dir, "egress*"))
		if err != nil || len(entries) != 4 {
			t.Fatalf("%v %v", entries, err)
		}
		for _, e := range entries {
			if info, err := os.Stat(e); err != nil || info.Size() > 4000 || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v %v", e, info, err)
			}
		}
		got := hosts(read(t, dir, Filter{}))
		if d := cmp.Diff(want[len(want)-len(got):], got); d != "" || len(got) < 60 {
			t.Errorf("%d records, in order and without a gap: %s", len(got), d)
		}
	}
}

func TestCompress(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egress.20261130T120000.000Z.jsonl")
	line := appendRecord(nil, &Record{TS: noon, Host: "a.test"})
	write(t, path, string(line)+string(line))
	if err := compress(path, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, dir, Filter{})); n != 2 || exists(path) {
		t.Errorf("%d records, plain segment there: %v", n, exists(path))
	}
	f, err := os.Open(path + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || string(b) != string(line)+string(line) {
		t.Errorf("%q %v", b, err)
	}
	stopped := make(chan struct{})
	close(stopped)
	write(t, path, string(line))
	if err := compress(path, stopped); err == nil || !exists(path) {
		t.Errorf("stopped: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func write(t *testing.T, path, s string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenMendsTheLastLine(t *testing.T) {
	a, b := string(appendRecord(nil, &Record{TS: noon, Host: "a.test"})), string(appendRecord(nil, &Record{TS: noon, Host: "b.test"}))
	for _, row := range []struct{ name, have, want string }{
		{"whole", a + b, a + b},
		{"torn", a + b[:len(b)/2], a},
		{"only its newline is missing", a + b[:len(b)-1], a + b},
		{"torn first", b[:9], ""},
		{"no line at all", strings.Repeat("x", 3*maxLine), strings.Repeat("x", 2*maxLine)},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "egress.jsonl")
		write(t, path, row.have)
		closeLog(t, open(t, dir, Options{}))
		if got, _ := os.ReadFile(path); string(got) != row.want {
			t.Errorf("%s: %.99q", row.name, got)
		}
	}
}

func TestLogSurvivesRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		l.Put(allow("b", "a.test"))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if err := os.Remove(filepath.Join(dir, "egress.jsonl")); err != nil {
			t.Fatal(err)
		}
		l.Put(allow("b", "b.test"))
		time.Sleep(time.Second)
		synctest.Wait()
		if d := cmp.Diff([]string{"b.test"}, hosts(read(t, dir, Filter{}))); d != "" {
			t.Error(d)
		}
	})
}

// A full disk stops the log, not its callers, and once there is room again the log says how much it lost.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	s := segments{dir: dir, name: "egress", max: 1 << 20, keep: 1}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	line := appendRecord(nil, &Record{TS: noon, Host: "a.test"})
	if err := s.write(line, noon); err != nil {
		t.Fatal(err)
	}
	good := s.f
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full: %v", err)
	}
	s.f = full
	if err := s.write(line, noon); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	s.f = good
	if err := s.write(line, noon); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, dir, Filter{})); n != 2 {
		t.Errorf("%d lines", n)
	}
}

func TestReadSkipsDamage(t *testing.T) {
	dir := t.TempDir()
	line := func(h string) string { return string(appendRecord(nil, &Record{TS: noon, Host: h})) }
	write(t, filepath.Join(dir, "egress.20261130T110000.000Z.jsonl"), line("1.test")+"\x00\xff{\n"+line("2.test"))
	write(t, filepath.Join(dir, "egress.notours.jsonl"), line("no.test"))
	write(t, filepath.Join(dir, "egress.jsonl"), "[]\n{}\nnull\n"+strings.Repeat("x", 10*maxLine)+"\n"+line("3.test")+`{"ts":"2026-11-30T12:00:00Z","host":7}`+"\n"+line("4.test")+line("torn")[:20])
	var damaged []int
	f := Filter{Damaged: func(_ string, n int) { damaged = append(damaged, n) }}
	if d := cmp.Diff([]string{"1.test", "2.test", "3.test", "4.test"}, hosts(read(t, dir, f))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int{2, 1, 2, 3, 4, 6}, damaged); d != "" {
		t.Errorf("damaged lines: %s", d)
	}
}

func TestFilter(t *testing.T) {
	r := &Record{TS: noon, Box: "b", Host: "x.a.test", Verdict: VerdictDeny}
	for _, row := range []struct {
		f    Filter
		want bool
	}{
		{Filter{}, true},
		{Filter{Denied: true, Box: "b", Host: "X.a.test", Since: noon, Until: noon.Add(1)}, true},
		{Filter{Box: "c"}, false},
		{Filter{Host: "a.test"}, false},
		{Filter{Host: "*.a.test"}, true},
		{Filter{Host: "*.x.a.test"}, false},
		{Filter{Since: noon.Add(1)}, false},
		{Filter{Until: noon}, false},
	} {
		if got := row.f.Match(r); got != row.want {
			t.Errorf("%+v: %v", row.f, got)
		}
	}
}

func TestReadOfNoLog(t *testing.T) {
	if got := read(t, filepath.Join(t.TempDir(), "none"), Filter{}); len(got) != 0 {
		t.Error(got)
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		done := make(chan error)
		go func() {
			done <- Follow(ctx, dir, Filter{}, func(r *Record) error { got = append(got, r.Host); return nil })
		}()
		synctest.Wait()
		l := open(t, dir, Options{MaxSize: 700, Keep: 100, Rate: 1e6})
		want := []string{}
		for i := range 60 {
			h := fmt.Sprintf("%d.test", i)
			want = append(want, h)
			l.Put(allow("b", h))
			time.Sleep(time.Duration(i%7) * 37 * time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		closeLog(t, l)
	})
}

func TestFollowWaitsForTheRestOfALine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egress.jsonl")
	line := appendRecord(nil, &Record{TS: noon, Host: "a.test"})
	write(t, path, string(line[:9]))
	tl, err := openSegment(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tl.close()
	var n int
	count := func(*Record) error { n++; return nil }
	if err := tl.read(t.Context(), &Filter{}, count); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(line[9:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := tl.read(t.Context(), &Filter{}, count); err != nil || n != 1 {
		t.Error(n, err)
	}
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

func FuzzRead(f *testing.F) {
	f.Add([]byte("{\"ts\":\"2026-11-30T12:00:00Z\",\"host\":\"a\"}\n{}\n\x00\n"))
	f.Add(appendRecord(nil, full()))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "egress.jsonl")
		write(t, path, string(b))
		if err := Read(t.Context(), dir, Filter{}, func(r *Record) error { checkLine(t, appendRecord(nil, r)); return nil }); err != nil {
			t.Error(err)
		}
		// Whatever was there, what is logged after it is read, and the file stays lines.
		l := open(t, dir, Options{})
		l.Put(&Record{TS: noon, Host: "after.test"})
		closeLog(t, l)
		if got := read(t, dir, Filter{Host: "after.test"}); len(got) == 0 {
			t.Error("the record after it is lost")
		}
	})
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
