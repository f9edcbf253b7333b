package namespace

import (
	"slices"
	"testing"
)

// Git executes what core.hooksPath names: wherever that lies in the repo, it is found.
func TestHooksPathsAreFound(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         []string
	}{
		{"none", "[core]\n\tbare = false\n", nil},
		{"plain", "[core]\n\thooksPath = .githooks\n", []string{".githooks"}},
		{"case", "[CORE]\nHOOKSPATH=.githooks", []string{".githooks"}},
		{"on the section's line", "[core] hooksPath = x/y", []string{"x/y"}},
		{"quoted, with a comment", "[core]\n hooksPath = \"a b/#c\" # why", []string{"a b/#c"}},
		{"absolute, inside", "[core]\n hooksPath = /repo/h/", []string{"h"}},
		{"absolute, outside", "[core]\n hooksPath = /repository/h", nil},
		{"outside", "[core]\n hooksPath = ../h\n hooksPath = ~/h\n hooksPath = a/../../h", nil},
		{"dots", "[core]\n hooksPath = ./a/../h", []string{"h"}},
		{"the whole repo", "[core]\n hooksPath = .", nil},
		{"protected already", "[core]\n hooksPath = .git/hooks", nil},
		{"each of two", "[core]\n hooksPath = a\n[user]\n hooksPath = no\n[core]\n hooksPath = b", []string{"a", "b"}},
	} {
		if got := hooksPaths(tt.config, "/repo"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
