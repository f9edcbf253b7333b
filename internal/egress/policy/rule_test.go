package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"foldyard/internal/egress/dest"
)

func TestParseRule(t *testing.T) {
	for _, tt := range []struct{ in, want string }{ // want "" is an error
		{"a.test", "a.test"},
		{"A.Test.", "a.test"},
		{"bücher.test", "xn--bcher-kva.test"},
		{"localhost", "localhost"},
		{"a.test:443", "a.test:443"},
		{"a.test:5432", "a.test:5432"},
		{"a.test:*", "a.test:*"},
		{"*.a.test", "*.a.test"},
		{"*.A.Test.:22", "*.a.test:22"},
		{"*.test", "*.test"},
		{"https://a.test", "https://a.test"},
		{"HTTPS://A.test", "https://a.test"},
		{"https://a.test:443", "https://a.test"},
		{"http://a.test:80", "http://a.test"},
		{"http://a.test:443", "http://a.test:443"},
		{"https://a.test/", "https://a.test"},
		{"https://a.test:8443/x/*", "https://a.test:8443/x/*"},
		{"a.test/x", "a.test/x"},
		{"a.test/x/", "a.test/x/"},
		{"a.test//x", "a.test//x"},
		{"a.test/**/x*y", "a.test/**/x*y"},
		{"a.test/%7euser/%2f%3a", "a.test/~user/%2F:"},
		{"a.test/@scope%2fname", "a.test/@scope%2Fname"},
		{"a.test/ü", "a.test/%C3%BC"},
		{"GET a.test", "GET a.test"},
		{"POST,GET,POST a.test", "GET,POST a.test"},
		{"GET https://api.test/pub/*", "GET https://api.test/pub/*"},
		{"PROPFIND a.test", "PROPFIND a.test"},
		{"get.test", "get.test"},
		{"192.0.2.1", "192.0.2.1"},
		{"192.0.2.1:22", "192.0.2.1:22"},
		{"192.0.2.1/x", "192.0.2.1/x"},
		{"http://192.0.2.1/x", "http://192.0.2.1/x"},
		{"192.0.2.1/24x", "192.0.2.1/24x"},
		{"192.0.2.1/%32%34", ""}, // prints like a CIDR
		{"https://192.0.2.1:443/24", ""},
		{"192.0.2.0/24", "192.0.2.0/24"},
		{"192.0.2.0/24:22", "192.0.2.0/24:22"},
		{"192.0.2.0/24:*", "192.0.2.0/24:*"},
		{"192.0.2.1/32", "192.0.2.1"},
		{"192.0.2.1/24", ""},
		{"192.0.2.0/33", ""},
		{"192.0.2.0/024", ""},
		{"192.0.2.0/24/x", ""},
		{"2001:db8::1", "2001:db8::1"},
		{"[2001:DB8::1]", "2001:db8::1"},
		{"[2001:db8::1]:22", "[2001:db8::1]:22"},
		{"https://[2001:db8::1]/x", "https://[2001:db8::1]/x"},
		{"2001:db8::/32", "2001:db8::/32"},
		{"[2001:db8::/32]:22", "[2001:db8::/32]:22"},
		{"2001:db8::1/128", "2001:db8::1"},
		{"::ffff:192.0.2.1", "192.0.2.1"}, // A16
		{"64:ff9b::192.0.2.1", "192.0.2.1"},
		{"64:ff9b::/96", ""},
		{"::ffff:10.0.0.0/104", ""},
		{"https://2001:db8::1", ""},

		{"*", ""},
		{"*:443", ""},
		{"https://*", ""},
		{"http://", ""},
		{"https:///x", ""},
		{"ftp://a.test", ""},
		{"://a.test", ""},
		{"a..test", ""},
		{"a.test:0", ""},
		{"a.test:70000", ""},
		{"a.test:", ""},
		{"a.test:x", ""},
		{"a.test:**", ""},
		{"*.", ""},
		{"*.*", ""},
		{"*a.test", ""},
		{"a.*.test", ""},
		{"a.test.*", ""},
		{"*.192.0.2.1", ""},
		{"*.[::1]", ""},
		{"a test", ""},
		{" a.test", ""},
		{"a.test ", ""},
		{"-x.test", ""},
		{"a.test/path with space", ""},
		{"GET", ""},
		{"POST", ""},
		{"GET ", ""},
		{" ", ""},
		{"GET  a.test", ""},
		{"GET, a.test", ""},
		{"GET,,POST a.test", ""},
		{"get a.test", ""},
		{"CONNECT a.test", ""},
		{"TRACE a.test", ""},
		{"999.1.1.1", ""},
		{"127.1", ""}, // A17
		{"0x7f.1", ""},
		{"2130706433", ""},
		{"[::1", ""},
		{"[a.test]", ""}, // A4
		{"[a.test]:443", ""},
		{"[::1]x", ""},
		{"fe80::1%eth0", ""},
		{"", ""},
		{"a.test\x00", ""}, // A1
		{"a.test/\n", ""},
		{"\u202ea.test", ""},
		{"user@a.test", ""},
		{`a.test\b`, ""},
		{"a.test?x", ""},
		{"a.test/x?y", ""},
		{"a.test/x#y", ""},
		{"a.test/../x", ""},
		{"a.test/%2e%2e/x", ""},
		{"a.test/***", ""},
		{"a.test/%zz", ""},
		{"a.test/%2", ""},
		{`a.test/a\b`, ""},
		{"a.test/" + strings.Repeat("x", 3000), ""},
	} {
		r, err := ParseRule(tt.in)
		if got := r.String(); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("ParseRule(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
			continue
		}
		if err != nil {
			if !r.IsZero() {
				t.Errorf("ParseRule(%q) gives %v beside an error", tt.in, r)
			}
			if len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\x00\n\u202e") {
				t.Errorf("ParseRule(%q): the error is not safe to print: %q", tt.in, err)
			}
			continue
		}
		if again, err := ParseRule(r.String()); err != nil || again != r {
			t.Errorf("ParseRule(%q) → %q → %v, %v", tt.in, r, again, err)
		}
	}
}

func TestStarAdvisesEnforceOff(t *testing.T) {
	for _, s := range []string{"*", "https://*", "*:*"} {
		if _, err := ParseRule(s); err == nil || !strings.Contains(err.Error(), "fy enforce off") {
			t.Errorf("ParseRule(%q): %v", s, err)
		}
	}
}

func TestNeedsIntercept(t *testing.T) {
	for s, want := range map[string]bool{
		"a.test": false, "a.test:*": false, "https://a.test": false, "a.test/": false,
		"a.test/x": true, "GET a.test": true, "GET a.test/x": true, "*.a.test/x": true,
	} {
		if got := mustRule(t, s).NeedsIntercept(); got != want {
			t.Errorf("%q: NeedsIntercept %v", s, got)
		}
	}
}

func TestWide(t *testing.T) {
	for s, want := range map[string]bool{
		"*.github.io": true, "*.amazonaws.com": true, "*.workers.dev": true, "*.com": true, "*.co.uk": true, "*.cloudfront.net": true,
		"*.s3.amazonaws.com": true, "*.vercel.app": true, "*.pages.dev": true, "*.azurewebsites.net": true, "*.googleapis.com": true, "*.storage.googleapis.com": true,
		"0.0.0.0/0": true, "::/0": true, "0.0.0.0/7": true,
		"x.github.io": false, "*.x.github.io": false, "github.io": false, "*.example.com": false, "*.test": false, "*.corp.test": false,
		"10.0.0.0/8": false, "192.0.2.0/24": false, "2001:db8::/32": false, "a.test": false,
	} {
		if got := mustRule(t, s).Wide(); got != want {
			t.Errorf("%q: Wide %v", s, got)
		}
	}
}

func TestRuleFor(t *testing.T) {
	for in, want := range map[string]string{
		"a.test:443": "a.test", "a.test:80": "a.test", "a.test:22": "a.test:22",
		"192.0.2.1:443": "192.0.2.1", "[2001:db8::1]:443": "2001:db8::1", "[2001:db8::1]:22": "[2001:db8::1]:22",
	} {
		target, err := dest.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		r := RuleFor(target)
		if r.String() != want || mustRule(t, want) != r || !r.grantsPort(target.Port) || !r.MatchesHost(target.Host) {
			t.Errorf("RuleFor(%s) = %q, want %q", in, r, want)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"a.test", "a.test", true},
		{"a.test", "b.test", false},
		{"a.test", "a.test:22", false},
		{"a.test:*", "a.test:22", true},
		{"a.test", "a.test:443", true},
		{"https://a.test", "http://a.test", false},
		{"https://a.test", "a.test", true},
		{"*.a.test", "a.test", false},
		{"*.a.test", "x.a.test", true},
		{"*.a.test", "*.x.a.test", true},
		{"*.a.test", "*.b.test", false},
		{"*.a.test", "*.aa.test", false},
		{"10.0.0.0/8", "10.1.0.0/16", true},
		{"10.0.0.0/8", "10.1.2.3", true},
		{"10.0.0.0/8", "11.0.0.0/8", false},
		{"10.0.0.0/8", "a.test", false},
	} {
		a, b := mustRule(t, tt.a), mustRule(t, tt.b)
		if a.Overlaps(b) != tt.want || b.Overlaps(a) != tt.want {
			t.Errorf("%q and %q: overlap is not %v both ways", tt.a, tt.b, tt.want)
		}
	}
}

func TestMatchesHost(t *testing.T) {
	for _, tt := range []struct {
		rule, host string
		want       bool
	}{
		{"a.test", "a.test", true},
		{"a.test", "x.a.test", false},
		{"*.a.test", "x.a.test", true},
		{"*.a.test", "x.y.a.test", true},
		{"*.a.test", "a.test", false},
		{"*.a.test", "xa.test", false},
		{"*.a.test", "a.test.evil.test", false},
		{"10.0.0.0/8", "10.1.2.3", true},
		{"10.0.0.0/8", "11.1.2.3", false},
		{"10.0.0.0/8", "a.test", false},
		{"10.0.0.0/8", "::ffff:10.1.2.3", true}, // A16: the host is the IPv4 address
	} {
		h, err := dest.ParseHost(tt.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := mustRule(t, tt.rule).MatchesHost(h); got != tt.want {
			t.Errorf("%q matches %q: %v", tt.rule, tt.host, got)
		}
	}
	if (Rule{}).MatchesHost(dest.Host{}) || mustRule(t, "a.test").MatchesHost(dest.Host{}) {
		t.Error("a rule matches no host")
	}
}

func mustRule(t testing.TB, s string) Rule {
	t.Helper()
	r, err := ParseRule(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// drawRule draws the text of a rule that parses.
func drawRule(t *rapid.T, label string) string {
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteString(rapid.SampledFrom([]string{"", "", "GET ", "GET,POST ", "POST "}).Draw(t, "methods"))
		scheme := rapid.SampledFrom([]string{"", "", "", "https://", "http://"}).Draw(t, "scheme")
		b.WriteString(scheme)
		host := rapid.SampledFrom([]string{
			"a.test", "b.test", "x.a.test", "*.a.test", "*.test", "192.0.2.1", "192.0.2.0/24", "[2001:db8::1]", "[2001:db8::/32]",
		}).Draw(t, "host")
		b.WriteString(host)
		b.WriteString(rapid.SampledFrom([]string{"", "", "", ":443", ":80", ":22", ":*"}).Draw(t, "port"))
		if strings.HasSuffix(b.String(), "test") || strings.Contains(b.String(), "test:") {
			b.WriteString(rapid.SampledFrom([]string{"", "", "/", "/x", "/x/*", "/**/y", "/%2fz"}).Draw(t, "path"))
		}
		return b.String()
	}).Draw(t, label)
}

func TestParseStringParseIsIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawRule(t, "rule")
		r, err := ParseRule(in)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseRule(r.String())
		if err != nil || again != r {
			t.Fatalf("%q → %q → %q, %v", in, r, again, err)
		}
	})
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"a.test", "GET,POST https://*.a.test:8443/x/**", "10.0.0.0/8:*", "[2001:db8::/32]:22", "2001:db8::1", "*", "GET", "a.test/%2F@x:*", "bücher.test"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			if !r.IsZero() {
				t.Fatalf("ParseRule(%q) gives %q beside an error", s, r)
			}
			return
		}
		text := r.String()
		again, err := ParseRule(text)
		if err != nil || again != r || again.String() != text {
			t.Fatalf("ParseRule(%q) = %q, again %q, %v", s, text, again, err)
		}
		for _, c := range []byte(text) {
			if c < 0x20 || c > 0x7e {
				t.Fatalf("ParseRule(%q) prints %q", s, text)
			}
		}
		if r.host.IsZero() && r.suffix == "" && !r.prefix.IsValid() {
			t.Fatalf("ParseRule(%q) has no host", s)
		}
	})
}

func TestRuleIsBounded(t *testing.T) {
	const head = "a.test/"
	at := head + strings.Repeat("x", maxRule-len(head))
	if _, err := ParseRule(at); err != nil {
		t.Fatalf("control: %v", err)
	}
	if _, err := ParseRule(at + "x"); err == nil {
		t.Error("a rule that is too long was taken")
	}
}
