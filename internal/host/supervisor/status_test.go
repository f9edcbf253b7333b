package supervisor

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/host/control"
	"foldyard/internal/wall/namespace"
)

// What makes a box weaker or duller than usual is said, and nothing of a usual one.
func TestNotesOfHowABoxWasBuilt(t *testing.T) {
	if got := factNotes(namespace.Facts{Rules: "nftables"}); got != nil {
		t.Errorf("control: a usual box is noted: %q", got)
	}
	got := strings.Join(factNotes(namespace.Facts{Rules: "ports", Linked: []string{".husky"}}), "\n")
	for _, want := range []string{"no nf_tables", ".husky is a link"} {
		if !strings.Contains(got, want) {
			t.Errorf("notes %q, want %q", got, want)
		}
	}
}

// What a box can exhaust is told with how often it was met.
func TestLimitsAreTold(t *testing.T) {
	s, _ := world(t, "")
	find := func(name string) control.Limit {
		for _, l := range s.limits() {
			if l.Name == name {
				return l
			}
		}
		t.Fatalf("no limit %s in %+v", name, s.limits())
		return control.Limit{}
	}
	doc, err := os.ReadFile("../../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{} // the bound, by name
	for _, m := range regexp.MustCompile("(?m)^\\| [^|]*\\(`([a-z_]+)`[^|]*\\| ([^|]+) \\|").FindAllStringSubmatch(string(doc), -1) {
		written[m[1]] = m[2]
	}
	for _, l := range s.limits() {
		bound, ok := written[l.Name]
		delete(written, l.Name)
		if l.Hits != 0 || l.Value <= 0 || !ok || !strings.HasPrefix(bound, inWords(l)) {
			t.Errorf("%+v: docs/limits.md says %q, want %q, and no hit", l, bound, inWords(l))
		}
	}
	if len(written) != 0 {
		t.Errorf("status does not show what docs/limits.md says it does: %v", written)
	}
	for range 2 * capture.DefaultRate {
		s.record(&capture.Record{Box: "b", Via: capture.ViaRedirect, Host: "a.test", Port: 443, Verdict: capture.VerdictAllow})
	}
	for name, value := range map[string]int64{"records": capture.DefaultRate, "log_queue": capture.DefaultQueue} {
		if l := find(name); l.Value != value || (l.Hits > 0) != (name == "records") {
			t.Errorf("%+v", l)
		}
	}
	s.recordName(&capture.Record{Via: capture.ViaDNS, Host: "a.test", Verdict: capture.VerdictDeny, Reason: "limit"})
	if l := find("names"); l.Hits != 1 || l.Value != 16384 {
		t.Errorf("%+v, want one hit of 16384", l)
	}
}

// inWords is a bound as docs/limits.md writes it.
func inWords(l control.Limit) string {
	switch l.Name {
	case "header", "held_body", "log_queue":
		if l.Value < 1<<20 {
			return fmt.Sprintf("%d KiB", l.Value>>10)
		}
		return fmt.Sprintf("%d MiB", l.Value>>20)
	case "header_time", "handshake_time", "silence", "idle", "stalled", "quiet", "half_closed":
		switch d := time.Duration(l.Value) * time.Second; {
		case d >= time.Hour:
			return fmt.Sprintf("%d h", d/time.Hour)
		case d >= 2*time.Minute:
			return fmt.Sprintf("%d min", d/time.Minute)
		default:
			return fmt.Sprintf("%d s", l.Value)
		}
	case "names":
		return "16,384"
	}
	return fmt.Sprint(l.Value)
}
