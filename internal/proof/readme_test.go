package proof

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// ringsTable is README's table of rings: what the code and the evidence say.
func ringsTable(states []ClaimState) string {
	var b strings.Builder
	b.WriteString("| ring | kind | holds against | today |\n| --- | --- | --- | --- |\n")
	for _, r := range []Ring{Capture, Allowlist, Namespace, VMFirewall, Gateway, HostFirewall} {
		i := slices.IndexFunc(states, func(s ClaimState) bool { return s.Ring == r })
		against, shown := "nobody: cooperative", "no claim is made"
		switch {
		case r.Kind() != Enforcement:
			if shown = "sees and logs"; r == Allowlist {
				against, shown = "nobody alone: cooperative", "refuses what is not granted"
			}
		case i < 0:
			against = "–"
		case r == VMFirewall:
			against, shown = boundary(r, AsUser)+", if `fy verify` has shown it", states[i].By()
		default:
			against = boundary(r, AsRoot) + ", if `fy verify --as-root` has shown it; not a kernel exploit"
			shown = states[i].By()
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r, r.Kind(), against, shown)
	}
	return b.String()
}

var ringsPlace = regexp.MustCompile(`(?s)(<!-- rings: go test ./internal/proof -run Readme -update -->\n).*?(<!-- -->\n)`)

func TestReadmeTableOfRings(t *testing.T) {
	path := filepath.Join(root, "README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !ringsPlace.Match(text) {
		t.Fatal("README has no place for the table of rings")
	}
	want := ringsPlace.ReplaceAllString(string(text), "${1}"+ringsTable(Hold(Claims(), stored(t), time.Time{}))+"${2}")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("the table of rings is not what the code and the evidence say: go test ./internal/proof -run Readme -update")
	}
}
