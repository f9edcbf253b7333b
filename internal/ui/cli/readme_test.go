package cli

import (
	"os"
	"strings"
	"testing"
)

// README says which verbs are not built: these, and no others.
func TestReadmeNamesWhatIsNotBuilt(t *testing.T) {
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range unbuilt() {
		names = append(names, "`fy "+c.Name()+"`")
	}
	want := "Verbs that are not built: " + strings.Join(names, ", ") + "."
	if len(names) == 0 {
		want = "Every verb is built."
	}
	if !strings.Contains(string(text), want) {
		t.Errorf("README does not say %q", want)
	}
}
