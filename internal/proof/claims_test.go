package proof

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	update = flag.Bool("update", false, "write docs/claims.md anew")
	record = flag.String("record", "", "file with the output of fy verify --json, to be kept as evidence in docs/evidence")
)

const root = "../.."

// TestRecordEvidence keeps a verify as evidence:
//
//	fy verify --json >v.json; go test ./internal/proof -run TestRecordEvidence -record v.json
func TestRecordEvidence(t *testing.T) {
	if *record == "" {
		t.Skip("nothing to record: see -record")
	}
	text, err := os.ReadFile(*record)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	s := Show(r)
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	name := string(s.Ring) + "-" + strings.ReplaceAll(s.Platform, "/", "-") + "-" + string(s.As) + ".json"
	if err := os.WriteFile(filepath.Join(root, "docs/evidence", name), append(out, '\n'), 0o644); err != nil { //nolint:gosec // a document
		t.Fatal(err)
	}
	t.Logf("%s: %s, %d rows passed, open %q; now -run TestClaimsDocument -update", name, s.Verdict, len(s.Passed), s.Open)
}

func stored(t *testing.T) []Shown {
	t.Helper()
	all, err := Published()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// claimsDocument is docs/claims.md as it must be.
func claimsDocument(states []ClaimState) string {
	return `# What foldyard claims

Made from internal/proof/claims.go and docs/evidence (go test ./internal/proof -run TestClaimsDocument -update). Nothing
we write says more of a ring than this table does, and a test keeps us to it. A claim is about a box that ` + "`fy verify`" + `
has shown: on your computer, run it.

` + ClaimsTable(states) + `
Rings that are not built make no claim: gateway, host firewall. What gets out all the same is in
[residuals.md](residuals.md).
`
}

func TestClaimsDocument(t *testing.T) {
	path := filepath.Join(root, "docs/claims.md")
	want := claimsDocument(Hold(Claims(), stored(t), time.Time{}))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/claims.md is not what the claims and the evidence say: go test ./internal/proof -run TestClaimsDocument -update")
	}
}

func TestClaimsNameTestsThatExist(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range Claims() {
		if ids[c.ID] || c.Text == "" || c.Boundary == "" || len(c.Rows) == 0 || len(c.Platforms) == 0 || c.As == "" {
			t.Errorf("claim %+v", c)
		}
		ids[c.ID] = true
		for _, name := range c.Tests {
			dir, test, ok := strings.Cut(name, ": ")
			if !ok || !hasTest(t, filepath.Join(root, dir), test) {
				t.Errorf("claim %s rests on %q, which does not exist", c.ID, name)
			}
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "func "+name+"(") {
			return true
		}
	}
	return false
}

func TestHoldTakesNoLess(t *testing.T) {
	claim := Claim{ID: "x", Ring: Namespace, Text: "t", Boundary: "b", As: AsUser, Platforms: []string{"linux/amd64"}, Rows: []string{"a", "b"}, Tests: []string{"d: T"}}
	good := Shown{Ring: Namespace, As: AsUser, Verdict: VerdictPass, At: at, Platform: "linux/amd64", Passed: []string{"a", "b", "c"}}
	change := func(f func(*Shown)) Shown { s := good; f(&s); return s }
	tests := []struct {
		name     string
		evidence []Shown
		now      time.Time
		shown    bool
	}{
		{"shown", []Shown{good}, at, true},
		{"nothing", nil, at, false},
		{"old", []Shown{good}, at.Add(Fresh + time.Hour), false},
		{"a row is missing", []Shown{change(func(s *Shown) { s.Passed = []string{"a"} })}, at, false},
		{"unproven", []Shown{change(func(s *Shown) { s.Verdict = VerdictUnproven })}, at, false},
		{"another platform", []Shown{change(func(s *Shown) { s.Platform = "linux/arm64" })}, at, false},
		{"another power", []Shown{change(func(s *Shown) { s.As = AsRoot })}, at, false},
		{"another ring", []Shown{change(func(s *Shown) { s.Ring = Gateway })}, at, false},
		{"a newer one showed less", []Shown{good, change(func(s *Shown) { s.Verdict = VerdictFail; s.At = at.Add(time.Hour) })}, at, false},
		{"an older one showed less", []Shown{good, change(func(s *Shown) { s.Verdict = VerdictFail; s.At = at.Add(-time.Hour) })}, at, true},
	}
	for _, tt := range tests {
		st := Hold([]Claim{claim}, tt.evidence, tt.now)[0]
		if got := len(st.Shown) == 1; got != tt.shown {
			t.Errorf("%s: shown %v, want %v", tt.name, got, tt.shown)
		}
		if by := st.By(); tt.shown == strings.Contains(by, "not yet shown") {
			t.Errorf("%s: says %q", tt.name, by)
		}
	}
}

func TestShowTellsNothingOfTheComputer(t *testing.T) {
	r := report(AsUser, VerdictFail)
	r.Rows[0].Detail = "/home/operator/.ssh"
	text, err := json.Marshal(Show(r))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"operator", "b1", "boot\"", "Digest"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q is in %s", secret, text)
		}
	}
}

// Words of prose.
var (
	enforcing = regexp.MustCompile(`(?i)\b(enforc\w*|block(s|ed|ing)?|prevent\w*|walls?|walled|locked|firewall\w*|impossible|isolat\w*|sandbox\w*|confin\w*|guarantee\w*|secured?|airtight|escape-proof|bulletproof)\b`)
	hedge     = regexp.MustCompile(`(?i)not built|not yet|not shown|unproven|cooperative|planned|out of scope|no claim|nothing|nobody|does not hold|no wall|holds against no|would|is (only )?visibility|fails? when|residual|probe|evidence|without one`)
	otherRing = map[Ring]*regexp.Regexp{
		VMFirewall:   regexp.MustCompile(`(?i)VM firewall|\bVMs?\b|virtual machine|\blima\b|\bguest\b`),
		Gateway:      regexp.MustCompile(`(?i)\bgateway\b`),
		HostFirewall: regexp.MustCompile(`(?i)host firewall`),
	}
	otherPlace = regexp.MustCompile(`(?i)macOS|darwin|podman`)
)

// sentence says what is wrong with one sentence: an enforcing word about a
// ring, or a place, that nothing has shown.
func sentence(text string, shown map[Ring]bool) string {
	if !enforcing.MatchString(text) || hedge.MatchString(text) {
		return ""
	}
	for ring, re := range otherRing {
		if re.MatchString(text) && !shown[ring] {
			return "speaks of the " + string(ring) + ", which nothing has shown"
		}
	}
	if otherPlace.MatchString(text) {
		return "speaks of a place where nothing has been shown"
	}
	if !shown[Namespace] {
		return "speaks of the namespace wall, which nothing has shown"
	}
	return ""
}

// TestProseClaimsNoMoreThanIsShown keeps README and docs to the honesty rule.
func TestProseClaimsNoMoreThanIsShown(t *testing.T) {
	shown := map[Ring]bool{}
	for _, st := range Hold(Claims(), stored(t), time.Time{}) {
		if st.Ring.Kind() == Enforcement && len(st.Shown) > 0 {
			shown[st.Ring] = true
		}
	}
	for _, path := range prose(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sentences(string(text)) {
			if why := sentence(s.text, shown); why != "" {
				t.Errorf("%s:%d: %s:\n\t%s", path, s.line, why, s.text)
			}
		}
	}
}

// prose lists the documents: all but the generated table.
func prose(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") && d.Name() != "claims.md" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

type said struct {
	line int
	text string
}

// sentences splits Markdown into sentences, table rows and list items, and
// leaves code out.
func sentences(text string) []said {
	var out []said
	var par []string
	start, code := 0, false
	end := func() {
		whole := strings.Join(par, " ")
		for _, s := range regexp.MustCompile(`[.!?:;] `).Split(whole, -1) {
			if strings.TrimSpace(s) != "" {
				out = append(out, said{start, s})
			}
		}
		par = nil
	}
	for i, line := range strings.Split(text, "\n") {
		trim := strings.TrimSpace(line)
		if strings.HasPrefix(trim, "```") {
			code = !code
			end()
			continue
		}
		if code {
			continue
		}
		if trim == "" || strings.HasPrefix(trim, "|") || strings.HasPrefix(trim, "- ") || strings.HasPrefix(trim, "#") || regexp.MustCompile(`^\d+\. `).MatchString(trim) {
			end()
		}
		if trim != "" {
			if par == nil {
				start = i + 1
			}
			par = append(par, regexp.MustCompile("`[^`]*`").ReplaceAllString(trim, "CODE"))
		}
		if strings.HasPrefix(trim, "|") {
			end()
		}
	}
	end()
	return out
}

func TestSentencesAreJudged(t *testing.T) {
	linux := map[Ring]bool{Namespace: true}
	tests := []struct {
		text string
		ok   bool
	}{
		{"A box on Linux is locked against root in the box", true},
		{"The wall holds for UDP as well", true},
		{"The gateway blocks everything else", false},
		{"On macOS the box is locked", false},
		{"The VM firewall prevents that", false},
		{"The VM firewall is not built", true},
		{"With podman nothing is enforced", true},
		{"With podman every request is enforced", false},
		{"The gateway is another way in", true},
	}
	for _, tt := range tests {
		if why := sentence(tt.text, linux); (why == "") != tt.ok {
			t.Errorf("%q: %q", tt.text, why)
		}
	}
	if sentence("A box on Linux is locked against root in the box", map[Ring]bool{}) == "" {
		t.Error("a ring without evidence may call itself locked")
	}
	got := sentences("# A wall\n\nOne. Two is\nlocked.\n\n- item `fy enforce`\n\n```\nlocked\n```\n| a | b |\n")
	want := []said{{1, "# A wall"}, {3, "One"}, {3, "Two is locked."}, {6, "- item CODE"}, {11, "| a | b |"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, path := range append(prose(t), filepath.Join(root, "docs/claims.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", path, m[1])
			}
		}
	}
}
