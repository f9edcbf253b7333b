package cli

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"foldyard/internal/host/control"
)

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// all reads what a pump wrote until out is closed.
func all(t *testing.T, r *os.File) chan string {
	t.Helper()
	ch := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r) // as far as it can be read
		ch <- string(b)
	}()
	return ch
}

func TestOutputIsWholeWhenTheCommandEnds(t *testing.T) {
	r := &relay{a: &app{}}
	from, box := pipe(t)
	out, to := pipe(t)
	p := r.pump(from, to)
	got := all(t, out)
	text := strings.Repeat("x", 1<<20)
	if _, err := io.WriteString(box, text); err != nil { // more than any pipe holds
		t.Fatal(err)
	}
	box.Close()
	p.finish()
	to.Close()
	if s := <-got; s != text {
		t.Errorf("%d bytes of %d", len(s), len(text))
	}
}

func TestPipeHeldByALeftoverDoesNotHang(t *testing.T) {
	r := &relay{a: &app{}}
	from, box := pipe(t) // a background process keeps its end
	out, to := pipe(t)
	p := r.pump(from, to)
	got := all(t, out)
	if _, err := io.WriteString(box, "last words"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p.finish()
	if d := time.Since(begin); d < lingering || d > 20*lingering {
		t.Errorf("gave up after %s, want about %s", d, lingering)
	}
	to.Close()
	if s := <-got; s != "last words" {
		t.Errorf("got %q", s)
	}
}

func TestCommandStartsWhereTheCallerStands(t *testing.T) {
	repo := t.TempDir()
	for dir, want := range map[string]string{repo: repo, t.TempDir(): repo, repo + "-other": repo} {
		a := &app{Env: Env{Dir: dir}}
		if got := a.dirIn(control.Box{Dir: repo}); got != want {
			t.Errorf("from %s: %s, want %s", dir, got, want)
		}
	}
	if err := os.Mkdir(repo+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if got := (&app{Env: Env{Dir: repo + "/sub"}}).dirIn(control.Box{Dir: repo}); got != repo+"/sub" {
		t.Errorf("from a directory in the repo: %s", got)
	}
}
