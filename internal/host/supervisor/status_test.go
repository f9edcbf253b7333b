package supervisor

import (
	"os"
	"strings"
	"testing"

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
	for _, name := range []string{"connections", "connections_per_box", "tunnels_per_box", "requests_per_box", "dials", "held", "header", "header_time", "half_closed", "pooled", "leaves", "names", "log_queue"} {
		if l := find(name); l.Hits != 0 || l.Value == 0 && name != "leaves" {
			t.Errorf("%+v, want a value and no hit", l)
		}
	}
	doc, err := os.ReadFile("../../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range s.limits() {
		if !strings.Contains(string(doc), "(`"+l.Name+"`)") {
			t.Errorf("docs/limits.md does not name %s", l.Name)
		}
	}
	s.recordName(&capture.Record{Via: capture.ViaDNS, Host: "a.test", Verdict: capture.VerdictDeny, Reason: "limit"})
	if l := find("names"); l.Hits != 1 || l.Value != 16384 {
		t.Errorf("%+v, want one hit of 16384", l)
	}
}
