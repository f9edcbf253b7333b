package supervisor

import (
	"strings"
	"testing"

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
