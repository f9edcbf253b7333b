package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/egress/capture"
	"foldyard/internal/host/control"
)

// result is what one command line printed, and how it ended.
type result struct {
	code     int
	out, err string
}

// fy runs a command line in process, in a directory and state of its own.
func fy(t *testing.T, args ...string) result {
	t.Helper()
	dir := t.TempDir()
	repo := filepath.Join(dir, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	in, out, errs := file("in"), file("out"), file("err")
	vars := map[string]string{"FOLDYARD_HOME": filepath.Join(dir, "state"), "HOME": filepath.Join(dir, "home"), "NO_COLOR": "1"}
	code := Main(Env{
		Args: args, Stdin: in, Stdout: out, Stderr: errs, Dir: repo, Now: time.Now, Version: "v0", Program: "/nonexistent/fy",
		Getenv: func(n string) string { return vars[n] }, Environ: func() []string { return nil },
	})
	read := func(f *os.File) string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return result{code, read(out), read(errs)}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		err  string // what stderr holds
	}{
		{"version", 0, ""},
		{"--help", 0, ""},
		{"run --help", 0, ""},
		{"nonsense", 2, "unknown command"},
		{"version --nonsense", 2, "unknown flag"},
		{"version more", 2, "unknown command"},
		{"allow", 2, "requires at least 1 arg"},
		{"allow a.test --once --permanent", 2, "none of the others can be"},
		{"allow a.test --ttl 2m", 2, "--ttl goes with --once"},
		{"enforce maybe", 2, "invalid argument"},
		{"learn --for 25h", 2, "24h"},
		{"ask", 2, "fy ask allow ID"},
		{"run", 125, "wants a command"},
		{"run --nonsense -- true", 125, "unknown flag"},
		{"exec", 125, "wants a command"},
		{"shell more", 125, "unknown command"},
		{"run -- true", 125, "start supervisor"}, // its program does not exist here
		{"run -C / -- true", 125, "cannot be a project"},
		{"status", 3, ""},
		{"verify", 3, "no box runs"},
		{"supervisor status", 1, ""},
		{"supervisor stop", 0, ""},
		{"down", 0, ""},
		{"tui", 2, "not built yet"},
		{"tui --help", 0, ""},
		{"completion bash", 0, ""},
		{"completion noshell", 2, "unknown command"},
		{"completion", 2, "bash"},
		{"allow a.test --once --ttl 0", 2, "above zero"},
		{"allow a.test --ttl 0", 2, "--ttl goes with --once"},
		{"web --whatever", 2, "not built yet"},
		{"secret set x", 1, "no adopted"},
		{"machine", 2, "wants one of"},
		{"log --since yesterday", 2, "want a duration"},
		{"proxy --listen 0.0.0.0:1", 2, "everybody's proxy"},
		{"config schema", 0, ""},
		{"config", 2, "fy config check"},
		{"log", 0, ""},
	} {
		got := fy(t, strings.Fields(c.args)...)
		if got.code != c.code || c.err == "" && got.code == 0 && got.err != "" || !strings.Contains(got.err, c.err) {
			t.Errorf("fy %s: %+v, want %d and %q", c.args, got, c.code, c.err)
		}
	}
}

func TestStatusIsJSONAlsoWhenNothingRuns(t *testing.T) {
	got := fy(t, "status", "--json")
	var st control.Status
	if err := json.Unmarshal([]byte(got.out), &st); err != nil || got.code != 3 || st.Label != "cooperative" || !st.Enforce || st.Box != nil {
		t.Errorf("%+v: %v", got, err)
	}
}

func TestErrorsNameTheNextCommand(t *testing.T) {
	got := fy(t, "verify")
	if got.err != "error: no box runs\nhint: fy up\n" || got.out != "" {
		t.Errorf("%+v", got)
	}
	if h := hints(hint(errors.New("x"), "a", "b")); !cmp.Equal(h, []string{"a", "b"}) {
		t.Errorf("hints %q", h)
	}
	if h := hints(&control.Error{Detail: "x", Hint: "fy doctor"}); !cmp.Equal(h, []string{"fy doctor"}) {
		t.Errorf("hints %q", h)
	}
}

func TestTextOfABoxIsEscaped(t *testing.T) {
	for in, want := range map[string]string{
		"plain grün €":    "plain grün €",
		"a\x1b[31mb":      `a\u001b[31mb`,
		"a\u009bb":        `a\u009bb`,
		"a\u202eb\u2066c": `a\u202eb\u2066c`,
		"bell\a":          `bell\u0007`,
		"bad\xff":         `bad\ufffd`,
		"two\nlines":      "two\nlines",
	} {
		if got := escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
	if got := asciiJSON([]byte(`"€ 😀 é"`)); got != `"\u20ac \ud83d\ude00 \u00e9"` {
		t.Errorf("asciiJSON: %s", got)
	}
}

func TestTableAligns(t *testing.T) {
	var b bytes.Buffer
	table(&b, "> ", [][]string{{"a", "bb", "c"}, {"äöü", "b", ""}, {"a", "", "c"}}, func(_, col int, cell string) string {
		if col == 0 {
			return "\x1b[1m" + cell + "\x1b[m"
		}
		return cell
	})
	want := "> \x1b[1ma\x1b[m    bb  c\n> \x1b[1mäöü\x1b[m  b\n> \x1b[1ma\x1b[m        c\n"
	if b.String() != want {
		t.Errorf("got\n%q\nwant\n%q", b.String(), want)
	}
}

func TestRefusalsFoldByHost(t *testing.T) {
	got := refusalRows([]control.Refusal{
		{Host: "a.test", Port: 443, Reason: "not_granted", Count: 2, Fix: "fy allow a.test"},
		{Host: "a.test", Port: 80, Reason: "not_granted", Count: 1, Fix: "fy allow a.test"},
		{Host: "2001:db8::1", Port: 443, Reason: "udp", Count: 1},
		{Host: "1.1.1.1", Reason: "icmp", Count: 1},
		{Host: "x\x1b.test", Port: 1, Reason: "bad_target"},
	})
	want := [][]string{{"a.test:443,80", "not granted", "fy allow a.test"}, {"[2001:db8::1]:443", "udp", ""}, {"1.1.1.1", "icmp", ""}, {`x\u001b.test:1`, "bad target", ""}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestSince(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	a := &app{Env: Env{Now: func() time.Time { return now }}}
	for in, want := range map[string]time.Time{"90m": now.Add(-90 * time.Minute), "2d": now.AddDate(0, 0, -2), "2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} {
		if got, err := a.since(in); err != nil || !got.Equal(want) {
			t.Errorf("since(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "yesterday", "-1d", "99999999d", "5"} {
		if _, err := a.since(bad); err == nil {
			t.Errorf("since(%q) was taken", bad)
		}
	}
}

func TestRecordsReadWell(t *testing.T) {
	for _, c := range []struct {
		r       capture.Record
		target  string
		outcome string
	}{
		{capture.Record{Method: "GET", Scheme: "https", Host: "a.test", Port: 443, Path: "/x?y", Status: 200, RespBytes: capture.N(2048), Millis: capture.N(12)}, "GET https://a.test/x?y", "200, 2.0 KiB, 12 ms"},
		{capture.Record{Method: "GET", Scheme: "http", Host: "::1", Port: 8080, Path: "/", Status: 403, Reason: "not_granted"}, "GET http://[::1]:8080/", "403, not_granted"},
		{capture.Record{Host: "a.test", Port: 22, Mode: capture.ModeTunnel}, "a.test:22", "tunnel"},
		{capture.Record{Method: "CONNECT", Host: "a.test", Port: 443, Status: 403, Reason: "not_granted"}, "CONNECT a.test:443", "403, not_granted"},
		{capture.Record{Host: "1.1.1.1", Reason: "icmp", DeniedTimes: 9}, "1.1.1.1", "icmp, 9 times"},
	} {
		if got := recordTarget(&c.r); got != c.target {
			t.Errorf("target %q, want %q", got, c.target)
		}
		if got := outcome(&c.r); got != c.outcome {
			t.Errorf("outcome %q, want %q", got, c.outcome)
		}
	}
}

func TestHostsAreLookedForAsRecordsWriteThem(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a.test": "a.test", "A.Test.": "a.test", "*.A.test.": "*.a.test", "b\u00fccher.test": "xn--bcher-kva.test",
		"2001:DB8::1": "2001:db8::1", "192.0.2.1": "192.0.2.1", "[evil.test]:443": "[evil.test]:443", "*": "*",
	} {
		if got := recorded(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
