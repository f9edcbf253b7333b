package capture

import (
	"compress/gzip"
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

func TestRotation(t *testing.T) {
	for _, zip := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, Options{MaxSize: 4000, Keep: 3, Rate: 1e6, Compress: zip})
			want := []string{}
			for i := range 400 {
				h := fmt.Sprintf("%03d.test", i)
				want = append(want, h)
				l.Put(allow("b", h))
				if i%50 == 49 {
					time.Sleep(time.Second)
					synctest.Wait()
				}
			}
			if gz, err := filepath.Glob(filepath.Join(dir, "egress*.gz")); err != nil || (len(gz) == 3) != zip {
				t.Errorf("compressed: %v %v", gz, err)
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
		})
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

// What stops the log does not stop its callers; Stats says so while it lasts, and a line says what was lost once it is over.
func TestLogThatCannotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		path := filepath.Join(dir, "egress.jsonl")
		settle := func() { time.Sleep(3 * time.Second); synctest.Wait() }
		l.Put(allow("b", "a.test"))
		settle()
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			l.Put(allow("b", "b.test"))
		}
		settle()
		if s := l.Stats(); s.Err == "" || s.Dropped < 3 || s.Written != 1 {
			t.Errorf("while it lasts: %+v", s)
		}
		l.Put(deny("b", "c.test")) // the audit trail is whole, and yet the log is not
		settle()
		if s := l.Stats(); s.Err == "" {
			t.Errorf("while it lasts: %+v", s)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.Put(allow("b", "d.test"))
		settle()
		if s := l.Stats(); s.Err != "" {
			t.Errorf("after it: %+v", s)
		}
		if got := strings.Join(hosts(read(t, dir, Filter{})), " "); !strings.Contains(got, "d.test") || !strings.Contains(got, "records were lost") {
			t.Errorf("after it: %s", got)
		}
		if d := cmp.Diff([]string{"c.test"}, hosts(read(t, dir, Filter{Audit: true}))); d != "" {
			t.Error(d)
		}
	})
}

// What a full disk cut off is not left in the file.
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
