package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/egress/capture"
	"foldyard/internal/host/control"
)

func TestTallyFoldsAndNamesTheFix(t *testing.T) {
	var b tally
	many := denied("a.test", 443, "not_granted")
	many.DeniedTimes = 5
	rule := denied("d.test", 443, "denied_rule")
	rule.Rule = "GET d.test/x y*"
	for _, r := range []*capture.Record{
		denied("a.test", 443, "not_granted"), many, denied("b.test", 5432, "not_granted"), denied("loop.test", 8080, "address_class"),
		rule, denied("x$(id).test", 443, "bad_target"), denied("a.test", 443, "misaligned"),
	} {
		b.refused(r)
	}
	want := []control.Refusal{
		{Host: "a.test", Port: 443, Reason: "not_granted", Count: 6, Fix: "fy allow a.test"},
		{Host: "a.test", Port: 443, Reason: "misaligned", Count: 1},
		{Host: "b.test", Port: 5432, Reason: "not_granted", Count: 1, Fix: "fy allow b.test:5432"},
		{Host: "d.test", Port: 443, Reason: "denied_rule", Count: 1, Fix: "fy revoke 'GET d.test/x y*'"},
		{Host: "loop.test", Port: 8080, Reason: "address_class", Count: 1, Fix: "fy allow loop.test:8080 --internal"},
		{Host: "x$(id).test", Port: 443, Reason: "bad_target", Count: 1},
	}
	if d := cmp.Diff(want, b.rows()); d != "" {
		t.Error(d)
	}
	for i := range 2 * maxRefusals {
		b.refused(denied("many.test", uint16(i+1), "not_granted"))
	}
	if n := len(b.rows()); n != maxRefusals {
		t.Errorf("%d rows, want at most %d", n, maxRefusals)
	}
}

// A fix that does not help teaches to grant more: what is offered opens the way, or nothing is.
func TestFixForAddressesHelps(t *testing.T) {
	multicast := denied("m.test", 443, "address_class")
	multicast.Error = "dial m.test:443 at 224.0.0.1:443: address class: multicast"
	private := denied("p.test", 443, "address_class")
	private.Error = "dial p.test:443 at 10.0.0.1:443: address class: private"
	for _, row := range []struct {
		r    *capture.Record
		want string
	}{
		{denied("169.254.169.254", 80, "not_granted"), "fy allow 169.254.169.254:80 --internal"},
		{denied("127.0.0.1", 5432, "not_granted"), "fy allow 127.0.0.1:5432 --internal"},
		{denied("fe80::1", 443, "not_granted"), "fy allow '[fe80::1]:443' --internal"},
		{denied("224.0.0.1", 443, "not_granted"), ""},
		{denied("198.18.0.7", 443, "not_granted"), ""},
		{denied("0.0.0.0", 443, "address_class"), ""},
		{denied("10.0.0.1", 443, "address_class"), "fy allow 10.0.0.1:443 --internal"},
		{multicast, ""},
		{private, "fy allow p.test:443 --internal"},
		{denied("192.0.2.1", 443, "not_granted"), "fy allow 192.0.2.1"}, // control
		{denied("a.test", 443, "not_granted"), "fy allow a.test"},       // control
	} {
		to, ok := target(row.r)
		if !ok {
			t.Fatal(row.r.Host)
		}
		if got := fixOf(to, row.r); got != row.want {
			t.Errorf("%s, %s: %q, want %q", to, row.r.Reason, got, row.want)
		}
	}
}

func TestChangedNamesWhatTheHostExecutes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("package.json", "{}")
	write("Makefile", "all:")
	write("scripts/run.sh", "true")
	write("src/main.go", "package main")
	outside := filepath.Join(t.TempDir(), "workflows")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	before := marks(dir)
	if got := changedSince(dir, before); len(got) != 0 {
		t.Fatalf("control: unchanged, and %v", got)
	}
	write("package.json", `{"scripts":{"postinstall":"x"}}`)
	write("scripts/run.sh", "evil")
	write("conftest.py", "evil")
	write("src/main.go", "package evil")
	if err := os.Remove(filepath.Join(dir, "Makefile")); err != nil {
		t.Fatal(err)
	}
	// A link that a box plants is looked at, never followed.
	if err := os.Mkdir(filepath.Join(dir, ".github"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "host.yml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, ".github/workflows")); err != nil {
		t.Fatal(err)
	}
	want := []string{"Makefile", "conftest.py", "package.json", "scripts/run.sh"}
	if d := cmp.Diff(want, changedSince(dir, before)); d != "" {
		t.Error(d)
	}
}

func TestHomeIsEmptiedWithoutFollowingLinks(t *testing.T) {
	dir := t.TempDir()
	home, outside := filepath.Join(dir, "home"), filepath.Join(dir, "outside")
	for _, d := range []string{filepath.Join(home, "go", "mod"), outside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(home, "go/mod/f"), filepath.Join(outside, "keep")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(home, "go/mod"), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := emptyHome(home); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestLastWordsAreKeptOnceAndBounded(t *testing.T) {
	var l lastWords
	if w := l.take("a"); !w.Gone || w.Refused != nil {
		t.Errorf("of nobody: %+v", w)
	}
	l.put(control.Stopped{ID: "a", Refused: []control.Refusal{{Host: "a.test"}}})
	if w := l.take("a"); !w.Gone || len(w.Refused) != 1 {
		t.Errorf("of a: %+v", w)
	}
	if w := l.take("a"); len(w.Refused) != 0 {
		t.Errorf("twice: %+v", w)
	}
	for i := range 10 * maxLastWords {
		l.put(control.Stopped{ID: strconv.Itoa(i)})
	}
	if len(l.list) != maxLastWords {
		t.Errorf("keeps %d", len(l.list))
	}
}
