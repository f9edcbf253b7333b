package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLimits: every bound in docs/limits.md names a test that exists, and one that status shows a test which knows it by that name. That
// the names and the numbers are those of the code is shown in internal/host/supervisor.
func TestLimits(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	counted := regexp.MustCompile("\\(`([a-z_]+)`")
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || strings.HasPrefix(cells[1], " what ") || strings.HasPrefix(cells[1], " ---") {
			continue
		}
		rows++
		what := strings.TrimSpace(cells[1])
		tests := regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`").FindAllStringSubmatch(cells[5], -1)
		if len(tests) == 0 && strings.TrimSpace(cells[5]) != "as those" {
			t.Errorf("%s: no test shows it", what)
		}
		known := ""
		for _, m := range tests {
			if !declared(t, m[1], m[2]) {
				t.Errorf("%s: %s has no %s", what, m[1], m[2])
			}
			known += source(t, m[1], m[2])
		}
		if m := counted.FindStringSubmatch(what); m != nil && !strings.Contains(known, `"`+m[1]+`"`) {
			t.Errorf("%s: no test that is named knows %q", what, m[1])
		}
		if record := strings.TrimSpace(cells[4]); record == "" {
			t.Errorf("%s: is there a record?", what)
		}
	}
	if rows < 45 {
		t.Errorf("%d rows: the table is not read as it is written", rows)
	}
}
