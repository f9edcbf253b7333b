package dest

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseHost(t *testing.T) {
	long63, long64 := strings.Repeat("a", 63), strings.Repeat("a", 64)
	name253 := strings.Repeat("a.", 126) + "b"
	for _, tt := range []struct{ in, want string }{ // want "" is an error
		// The controls: ordinary spellings.
		{"a.test", "a.test"},
		{"localhost", "localhost"},
		{"a_b._tcp.test", "a_b._tcp.test"},
		{"r3---sn-x.test", "r3---sn-x.test"},
		{"1.test", "1.test"},
		{"1a", "1a"},
		{"192.0.2.1", "192.0.2.1"},
		{"2001:DB8::1", "2001:db8::1"},
		{"2001:0db8:0:0:0:0:0:1", "2001:db8::1"},

		// A3: one canonical name for letter case and a trailing dot.
		{"EVIL.test.", "evil.test"},
		{"Allowed.Test.", "allowed.test"},
		{"evil.test..", ""},
		{"evil..test", ""},
		{".evil.test", ""},
		{".", ""},
		{"", ""},
		{long63 + ".test", long63 + ".test"},
		{long64 + ".test", ""},
		{name253, name253},
		{name253 + ".", name253},
		{name253 + "b", ""},
		{strings.Repeat("a", 2000), ""},

		// A1: control bytes.
		{"evil.test\x00.allowed.test", ""},
		{"allowed.test\x00", ""},
		{"a\r\n.test", ""},
		{"a.test\n", ""},
		{"a\t.test", ""},
		{"a.test\x7f", ""},

		// A4: brackets around a name, and other borrowed syntax.
		{"[evil.test]", ""},
		{"[::1]", ""},
		{"a.test@evil.test", ""},
		{"a.test/x", ""},
		{`a.test\evil.test`, ""},
		{"a test", ""},
		{" a.test", ""},
		{"a.test%00", ""},
		{"a%2etest", ""},
		{"a.test?", ""},
		{"a.test#", ""},
		{"*.test", ""},
		{"a.test:80", ""},
		{"-x.test", ""},
		{"x-.test", ""},

		// A17: odd spellings of IPv4.
		{"2130706433", ""},
		{"0177.0.0.1", ""},
		{"127.0.0.01", ""},
		{"0x7f.1", ""},
		{"0x7f000001", ""},
		{"0X7F.1", ""},
		{"127.1", ""},
		{"127.0.1", ""},
		{"127.0.0.1.", ""},
		{"127.0.0.1.5", ""},
		{"999.1.1.1", ""},
		{"256.0.0.1", ""},
		{"a.0x", ""},
		{"a.1", ""},
		{"1", ""},
		{"0", ""},
		{"0.0.0.0", "0.0.0.0"},
		{"127.0.0.1", "127.0.0.1"},
		{"１２７.0.0.1", ""},
		{"127。0。0。1", ""},
		{"①②⑦.1", ""},

		// A16: addresses inside addresses, and zones.
		{"::ffff:169.254.169.254", "169.254.169.254"},
		{"::ffff:7f00:1", "127.0.0.1"},
		{"::ffff:0:127.0.0.1", "127.0.0.1"},
		{"64:ff9b::7f00:1", "127.0.0.1"},
		{"64:ff9b::169.254.169.254", "169.254.169.254"},
		{"2002:7f00:1::", "127.0.0.1"},
		{"2002:a9fe:a9fe::1", "169.254.169.254"},
		{"::127.0.0.1", "127.0.0.1"},
		{"::1", "::1"},
		{"::", "::"},
		{"fe80::1%eth0", ""},
		{"fe80::1%25eth0", ""},
		{"fe80::1", "fe80::1"},
		{"1:2", ""},
		{":::", ""},

		// Internationalised names become A-labels.
		{"bücher.test", "xn--bcher-kva.test"},
		{"BÜCHER.test.", "xn--bcher-kva.test"},
		{"xn--bcher-kva.test", "xn--bcher-kva.test"},
		{"XN--BCHER-KVA.test", "xn--bcher-kva.test"},
		{"faß.test", "xn--fa-hia.test"},
		{"ｅvil.test", "evil.test"},
		{"evil。test", "evil.test"},
		{"evil\u00ad.test", "evil.test"},
		{"℀.test", ""},
		{"a\u2044b.test", "xn--ab-c6t.test"}, // looks like a slash, and is another name
		{"a\uff0fb.test", ""},
		{"a\uff20b.test", ""},
		{"a\uff1a80.test", ""},
		{"\u202eevil.test", ""},
		{"xn--a.test", ""},
		{"xn--.test", ""},
		{"xn--abc-.test", ""},
		{"xn--\xff.test", ""},
		{"a\xff.test", ""},
		{"\ufffd.test", ""},
	} {
		h, err := ParseHost(tt.in)
		if got := h.String(); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("ParseHost(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok || !h.IsZero() {
				t.Errorf("ParseHost(%q): error of type %T with host %v", tt.in, err, h)
			}
			for _, c := range err.Error() {
				if c < 0x20 || c > 0x7e && c != '…' {
					t.Errorf("ParseHost(%q): the error is not safe to print: %q", tt.in, err)
				}
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"a.test:443", "a.test:443"},
		{"A.Test.:443", "a.test:443"},
		{"192.0.2.1:1", "192.0.2.1:1"},
		{"[2001:db8::1]:65535", "[2001:db8::1]:65535"},
		{"[::ffff:192.0.2.1]:80", "192.0.2.1:80"},

		// A4
		{"[evil.test]:443", ""},
		{"[192.0.2.1]:443", ""},
		{"[evil.test:443", ""},
		{"evil.test]:443", ""},
		{"[::1]evil.test:443", ""},
		{"[[::1]]:443", ""},
		{"[]:443", ""},
		{"[::1%lo]:443", ""},
		{"[fe80::1%25lo]:443", ""},

		// A1
		{"evil.test\x00.allowed.test:443", ""},
		{"evil.test:443\x00a.test:443", ""},
		{"a.test:443@evil.test:443", ""},
		{"a.test:443 HTTP/1.1\r\nHost: a.test", ""},

		// ports
		{"a.test", ""},
		{"a.test:", ""},
		{":443", ""},
		{"a.test:0", ""},
		{"a.test:00", ""},
		{"a.test:0443", ""},
		{"a.test:65536", ""},
		{"a.test:70000", ""},
		{"a.test:4294967739", ""},
		{"a.test:+443", ""},
		{"a.test:-1", ""},
		{"a.test: 443", ""},
		{"a.test:https", ""},
		{"a.test:４４３", ""},
		{"a.test:443:443", ""},
		{"::1:443", ""},
		{"[::1]", ""},
		{"", ""},

		// A17
		{"127.1:80", ""},
		{"0x7f.1:80", ""},
		{"2130706433:80", ""},
		{"0177.0.0.1:80", ""},
		{"0:80", ""},
	} {
		got, err := Parse(tt.in)
		if (err == nil) != (tt.want != "") || err == nil && got.String() != tt.want {
			t.Errorf("Parse(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
		if err != nil && !got.IsZero() {
			t.Errorf("Parse(%q) gives %v beside an error", tt.in, got)
		}
	}
}

func TestParseAuthorityDefaultPort(t *testing.T) {
	for _, tt := range []struct {
		in   string
		port uint16
		want string
	}{
		{"a.test", 443, "a.test:443"},
		{"a.test:80", 443, "a.test:80"},
		{"[::1]", 80, "[::1]:80"},
		{"a.test", 0, ""},
		{"a.test:0", 443, ""},
		{"a.test:", 443, ""},
		{"::1", 80, ""},
		{"user@a.test", 80, ""},
	} {
		got, err := ParseAuthority(tt.in, tt.port)
		if (err == nil) != (tt.want != "") || err == nil && got.String() != tt.want {
			t.Errorf("ParseAuthority(%q, %d) = %q, %v; want %q", tt.in, tt.port, got, err, tt.want)
		}
	}
}

// A3: whatever a box writes, both sides of a comparison are the same value.
func TestHostsCompareByValue(t *testing.T) {
	a, _ := ParseHost("EVIL.test.")
	b, _ := ParseHost("evil.test")
	c, _ := ParseHost("::ffff:192.0.2.1")
	d := HostFromAddr(netip.MustParseAddr("192.0.2.1"))
	if a != b || c != d || a == c {
		t.Errorf("%v %v %v %v do not compare by value", a, b, c, d)
	}
	if h := HostFromAddr(netip.Addr{}); !h.IsZero() || h.String() != "" {
		t.Errorf("no address gives the host %q", h)
	}
	if h := HostFromAddr(netip.MustParseAddr("fe80::1%eth0")); h.String() != "fe80::1" {
		t.Errorf("a zone survives: %q", h)
	}
}

func TestParseHostAllocates(t *testing.T) {
	for _, s := range []string{"registry.npmjs.test", "192.0.2.1", "2001:db8::1"} {
		if n := testing.AllocsPerRun(100, func() { ParseHost(s) }); n != 0 {
			t.Errorf("ParseHost(%q) allocates %v times", s, n)
		}
	}
}

// Parse, print and parse again is the identity, and nothing else spells the
// canonical text of another host.
func TestParseIsIdempotent(t *testing.T) {
	label := rapid.StringMatching(`[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,12}[a-zA-Z0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		in := strings.Join(rapid.SliceOfN(label, 1, 5).Draw(t, "labels"), ".")
		if rapid.Bool().Draw(t, "dot") {
			in += "."
		}
		h, err := ParseHost(in)
		if err != nil {
			return
		}
		again, err := ParseHost(h.String())
		if err != nil || again != h {
			t.Fatalf("%q → %q → %q, %v", in, h, again, err)
		}
		if !h.IsIP() && h.String() != strings.TrimSuffix(strings.ToLower(in), ".") {
			t.Fatalf("%q became %q", in, h)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a.test:443", "[::1]:80", "EVIL.test.:1", "bücher.test:443", "127.1:80", "[::ffff:1.2.3.4]:9", "xn--a:1", "a\x00b:1", "evil。test:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Parse(s)
		if err != nil {
			if !got.IsZero() {
				t.Fatalf("Parse(%q) gives %v beside an error", s, got)
			}
			return
		}
		text := got.String()
		again, err := Parse(text)
		if err != nil || again != got || again.String() != text {
			t.Fatalf("Parse(%q) = %q, again %q, %v", s, text, again, err)
		}
		if strings.ContainsAny(text, "\x00\r\n\t @/\\%") || got.Port == 0 {
			t.Fatalf("Parse(%q) lets %q through", s, text)
		}
		if h := got.Host; h.IsIP() {
			a := h.Addr()
			if a.Zone() != "" || a.Is4In6() || h != HostFromAddr(a) {
				t.Fatalf("Parse(%q) gives the address %v", s, a)
			}
		} else if len(h.Name()) > 253 || strings.HasSuffix(h.Name(), ".") || strings.ToLower(h.Name()) != h.Name() {
			t.Fatalf("Parse(%q) gives the name %q", s, h.Name())
		}
	})
}

func BenchmarkParseHost(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		ParseHost("registry.npmjs.test")
	}
}
