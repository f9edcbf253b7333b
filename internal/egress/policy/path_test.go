package policy

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNormalPath(t *testing.T) {
	for _, tt := range []struct{ in, want string }{ // want "" is an error
		{"", "/"},
		{"/", "/"},
		{"*", "*"},
		{"/a/b", "/a/b"},
		{"/a?x=/../y", "/a"},
		{"?x", "/"},
		{"/a//b", "/a//b"},
		{"/a;b=c+d,e", "/a;b=c+d,e"},
		{"/%7Euser", "/~user"},
		{"/%41%2d", "/A-"},
		{"/a%2fb", "/a%2Fb"},
		{"/@scope%2Fname", "/@scope%2Fname"},
		{"/%40scope%2fname", "/@scope%2Fname"},
		{"/a%3ab", "/a:b"},
		{"/a%2Bb", "/a%2Bb"},
		{"/ü", "/%C3%BC"},
		{"/%c3%bc", "/%C3%BC"},
		{"/a|b\"", "/a%7Cb%22"},
		{"/a%20b", "/a%20b"},
		{"/file%2etxt", "/file.txt"},
		{"/.../x", "/.../x"},
		{"/.well-known/x", "/.well-known/x"},
		{"/a..b", "/a..b"},
		{"/100%25", "/100%25"},
		{"/100%25x", "/100%25x"},
		{"/%2520", "/%2520"},

		// A7's neighbours: other spellings of another path.
		{"/pub/../admin", ""},
		{"/pub/..", ""},
		{"/pub/.", ""},
		{"/./admin", ""},
		{"/..", ""},
		{"//pub/../admin", ""},
		{"/pub/%2e%2e/admin", ""},
		{"/pub/%2E./admin", ""},
		{"/pub/.%2e/admin", ""},
		{"/pub/..%2fadmin", ""},
		{"/pub/%2e%2e%2fadmin", ""},
		{"/pub%2f..%2fadmin", ""},
		{"/pub%2f%2e%2e/admin", ""},
		{"/pub/..;/admin", ""},
		{"/pub/..;x=y/admin", ""},
		{"/pub/..%3bx/admin", ""},
		{"/pub/.;/admin", ""},
		{"/pub/%252e%252e/admin", ""},
		{"/pub/..%252fadmin", ""},
		{"/pub/%255cadmin", ""},
		{"/pub\\..\\admin", ""},
		{"/pub%5c..%5cadmin", ""},
		{"/pub%5Cadmin", ""},
		{"/a%00", ""},
		{"/a%2500", ""},
		{"/a\x00", ""},
		{"/a%0d%0aX", ""},
		{"/a%7f", ""},
		{"/a b", ""},
		{"/a\tb", ""},
		{"/a#b", ""},
		{"/%", ""},
		{"/%2", ""},
		{"/%2g", ""},
		{"/%u002e", ""},
		{"a", ""},
		{"http://a.test/", ""},
		{"**", ""},
	} {
		got, err := NormalPath(tt.in)
		if got != tt.want && err == nil || (err == nil) != (tt.want != "") {
			t.Errorf("NormalPath(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		glob, path string
		want       bool
	}{
		{"/x", "/x", true},
		{"/x", "/X", false},
		{"/x", "/x/", false},
		{"/x", "/xy", false},
		{"/x/", "/x", false},
		{"/pub/*", "/pub/x", true},
		{"/pub/*", "/pub/", true},
		{"/pub/*", "/pub/x/y", true}, // a * at the end reaches on
		{"/pub/*", "/pub/x%2Fy", true},
		{"/pub/*", "/pub", false},
		{"/pub/*", "/public", false},
		{"/pub/*", "/admin/x", false},
		{"/pub/*", "//pub/x", false},
		{"/pub*", "/public/x", true},
		{"/*/issues", "/a/issues", true},
		{"/*/issues", "/a/b/issues", false},
		{"/*/issues", "/a%2Fb/issues", false},
		{"/*/issues", "//issues", true},
		{"/*/*/issues", "/a/b/issues", true},
		{"/**/issues", "/a/b/c/issues", true},
		{"/**/issues", "/a%2Fb/issues", true},
		{"/**/issues", "/a/issues/x", false},
		{"/**/issues", "/issues/issues", true},
		{"/a*b*c", "/abc", true},
		{"/a*b*c", "/axxbyybzzc", true},
		{"/a*b*c", "/axx/bc", false},
		{"/a**c", "/a/b/c", true},
		{"/**.tgz", "/a/b-1.2.tgz", true},
		{"/**.tgz", "/a/b-1.2.tgz.x", false},
		{"/*.tgz", "/a.tgz.tgz", true},
		{"/**/x/*/y", "/x/1/x/2/y", true},
		{"/**/x/*/y", "/x/1/2/y", false},
		{"/*", "/", true},
		{"/*", "*", false},
	} {
		if got := match(tt.glob, tt.path); got != tt.want {
			t.Errorf("match(%q, %q) = %v", tt.glob, tt.path, got)
		}
	}
}

// The hand-written matcher agrees with the same glob as a regular expression.
func TestMatchAgreesWithRegexp(t *testing.T) {
	glob := rapid.StringMatching(`/([ab/]|\*|\*\*[ab/]|%2F){0,12}`)
	path := rapid.StringMatching(`/([ab/]|%2F){0,16}`)
	rapid.Check(t, func(t *rapid.T) {
		g, p := glob.Draw(t, "glob"), path.Draw(t, "path")
		if strings.Contains(g, "***") {
			t.Skip()
		}
		re := regexp.QuoteMeta(g)
		re = strings.ReplaceAll(re, `\*\*`, "\x00")
		if cut, ok := strings.CutSuffix(re, `\*`); ok {
			re = cut + "\x00"
		}
		// Within a segment: any byte that neither is a slash nor begins %2F.
		re = strings.ReplaceAll(re, `\*`, `(?:[^/%]|2F)*?`)
		re = strings.ReplaceAll(re, "\x00", `.*`)
		// The sample has % in %2F only, so [^/%] needs no look-ahead, and a 2F
		// after a % of the glob's own literal is matched there.
		want := regexp.MustCompile(`^(?s:` + re + `)$`).MatchString(p)
		if got := match(g, p); got != want {
			t.Fatalf("match(%q, %q) = %v, the expression %s says %v", g, p, got, re, want)
		}
	})
}

func TestMatchIsBounded(t *testing.T) {
	glob, path := "/"+strings.Repeat("a*", 500)+"b", "/"+strings.Repeat("a", 8000)
	if match(glob, path) { // with backtracking over each star this would not end
		t.Error("matches")
	}
	if match("/"+strings.Repeat("**a", 300)+"b", path) {
		t.Error("matches")
	}
}

func TestNormalPathIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := "/" + rapid.StringMatching(`([a.;~@:+/ü|]|%2[0-9a-fA-F]|%[3-7][0-9a-fA-F]){0,20}`).Draw(t, "path")
		got, err := NormalPath(in)
		if err != nil {
			return
		}
		if again, err := NormalPath(got); err != nil || again != got {
			t.Fatalf("%q → %q → %q, %v", in, got, again, err)
		}
		a, errA := url.PathUnescape(in)
		b, errB := url.PathUnescape(got)
		if errA != nil || errB != nil || a != b {
			t.Fatalf("%q → %q changes what it means: %q, %q", in, got, a, b)
		}
	})
}

func FuzzNormalPath(f *testing.F) {
	for _, s := range []string{"/a/b", "/@s%2Fn", "/..%2f", "/%25%32e", "/;x", "*", "/a\\b", "/%e4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := NormalPath(s)
		if err != nil {
			return
		}
		if again, err := NormalPath(got); err != nil || again != got {
			t.Fatalf("%q → %q → %q, %v", s, got, again, err)
		}
		for _, seg := range strings.Split(strings.NewReplacer("%2F", "/").Replace(got), "/") {
			if seg == "." || seg == ".." {
				t.Fatalf("NormalPath(%q) = %q", s, got)
			}
		}
		if strings.ContainsAny(got, "\\\x00\r\n ?#") {
			t.Fatalf("NormalPath(%q) = %q", s, got)
		}
	})
}
