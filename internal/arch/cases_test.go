package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCases: every known case has a row in docs/cases.md, and every test, probe and residual that is named there exists.
func TestCases(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	named := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || !regexp.MustCompile(`^ [AB]\d+ $`).MatchString(cells[1]) {
			continue
		}
		id := strings.TrimSpace(cells[1])
		rows[id]++
		tests := regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(cells[3], -1)
		if want := strings.Count(cells[3], "`") / 2; len(tests) != want {
			t.Errorf("%s: %d of %d names are tests", id, len(tests), want)
		}
		for _, m := range tests {
			named++
			if !declared(t, m[1], m[2]) {
				t.Errorf("%s: %s has no %s", id, m[1], m[2])
			}
		}
		probes := after(cells[4], `probe: `)
		residuals := after(cells[4], `residual: `)
		for _, p := range probes {
			if !contains(t, "internal/proof/probe/specs.go", `"`+p+`"`) {
				t.Errorf("%s: there is no probe %s", id, p)
			}
		}
		for _, r := range residuals {
			if !contains(t, "docs/residuals.md", "**"+r) {
				t.Errorf("%s: docs/residuals.md says nothing of %s", id, r)
			}
		}
		if len(tests)+len(probes)+len(residuals) == 0 {
			t.Errorf("%s rests on nothing", id)
		}
	}
	for part, n := range map[string]int{"A": 48, "B": 32} {
		for i := range n {
			if id := fmt.Sprint(part, i+1); rows[id] != 1 {
				t.Errorf("%s stands in %d rows, want one", id, rows[id])
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d tests are named: the table is not read as it is written", named)
	}
}

// after lists the names that follow a label, up to a semicolon or a full stop.
func after(cell, label string) []string {
	var out []string
	for _, part := range strings.Split(cell, label)[1:] {
		names, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		for n := range strings.SplitSeq(names, ",") {
			out = append(out, strings.TrimRight(regexp.MustCompile(`^[a-z0-9-]+`).FindString(strings.TrimSpace(n)), "-"))
		}
	}
	return out
}

func declared(t *testing.T, dir, name string) bool {
	t.Helper()
	return source(t, dir, name) != ""
}

// source is the text of the file that declares a test.
func source(t *testing.T, dir, name string) string {
	t.Helper()
	if !strings.HasPrefix(dir, "test/") {
		dir = "internal/" + dir
	}
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return string(text)
		}
	}
	return ""
}

func contains(t *testing.T, file, s string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), s)
}
