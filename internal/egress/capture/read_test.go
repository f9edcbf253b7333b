package capture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

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

// Without a Log's goroutine, which makes the same input cover now this, now
// that: each such input is taken for a new one, and minimized for a minute.
func FuzzRead(f *testing.F) {
	f.Add([]byte("{\"ts\":\"2026-11-30T12:00:00Z\",\"host\":\"a\"}\n{}\n\x00\n"))
	f.Add(appendRecord(nil, full()))
	after := appendRecord(nil, &Record{TS: noon, Host: "after.test"})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		s := segments{dir: dir, name: "egress", max: 64 << 20}
		if err := os.Remove(s.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		write(t, s.path(), string(b))
		if err := Read(t.Context(), dir, Filter{}, func(r *Record) error { checkLine(t, appendRecord(nil, r)); return nil }); err != nil {
			t.Error(err)
		}
		// Whatever was there, what is logged after it is read, and the file stays lines.
		if err := errors.Join(s.open(), s.write(after, noon), s.close()); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir, Filter{Host: "after.test"}); len(got) == 0 {
			t.Error("the record after it is lost")
		}
	})
}
