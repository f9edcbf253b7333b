package connect

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
)

func TestTunnelTarget(t *testing.T) {
	for _, c := range []struct {
		target, host string
		minor        int
		want         string // "" is refused
	}{
		{"a.test:443", "a.test:443", 1, "a.test:443"},
		{"A.Test.:443", "a.test:443", 1, "a.test:443"},
		{"a.test:443", "a.test", 1, "a.test:443"},
		{"a.test:443", "", 0, "a.test:443"},
		{"[2001:db8::1]:443", "[2001:db8::1]:443", 1, "[2001:db8::1]:443"},
		{"a.test:443", "", 1, ""},
		{"a.test:443", "b.test:443", 1, ""},
		{"a.test:443", "a.test:80", 1, ""},
		{"a.test", "a.test", 1, ""},
		{"[a.test]:443", "[a.test]:443", 1, ""},
		{"a.test:443@b.test:443", "a.test:443@b.test:443", 1, ""},
		{"2130706433:80", "2130706433:80", 1, ""},
	} {
		got, err := Tunnel(&http1.Request{Method: "CONNECT", Target: c.target, Host: c.host, Minor: c.minor})
		if (err == nil) != (c.want != "") || err == nil && got.String() != c.want {
			t.Errorf("CONNECT %s, Host %q: %v %v, want %q", c.target, c.host, got, err, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		method, target string
		want           Form
		ok             bool
	}{
		{"GET", "/", Form{Path: "/"}, true},
		{"GET", "/a?b#", Form{}, false},
		{"GET", "//x.test/y", Form{Path: "//x.test/y"}, true},
		{"GET", "/a?b=\\", Form{Path: "/a?b=\\"}, true},
		{"GET", "/a\\b", Form{}, false},
		{"GET", "/%5c%0d%0a", Form{Path: "/%5c%0d%0a"}, true},
		{"OPTIONS", "*", Form{Path: "*"}, true},
		{"GET", "*", Form{}, false},
		{"GET", "http://a.test/x?y", Form{SchemeHTTP, "a.test", "/x?y"}, true},
		{"GET", "HTTPS://a.test:8443", Form{SchemeHTTPS, "a.test:8443", "/"}, true},
		{"GET", "http://a.test?q", Form{SchemeHTTP, "a.test", "/?q"}, true},
		{"OPTIONS", "http://a.test", Form{SchemeHTTP, "a.test", "*"}, true},
		{"GET", "http://u@a.test/", Form{}, false},
		{"GET", "http://u:p@a.test/", Form{}, false},
		{"GET", "http://a.test\\@b.test/", Form{}, false},
		{"GET", "http:///x", Form{}, false},
		{"GET", "ftp://a.test/", Form{}, false},
		{"GET", "a.test/", Form{}, false},
		{"GET", "", Form{}, false},
		{"GET", "/a b", Form{}, false},
		{"GET", "/a\x00", Form{}, false},
	} {
		got, err := Parse(c.method, c.target)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%s %q: %+v %v, want %+v ok=%v", c.method, c.target, got, err, c.want, c.ok)
		}
		if err != nil && strings.Contains(err.Error(), c.target) && len(c.target) > 1 {
			t.Errorf("the error repeats the box's text: %v", err)
		}
	}
}

// What is accepted in absolute form is read by net/url as we read it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"/", "http://a.test/x?y", "https://a.test:1?z", "http://a@b/", "//a/b", "http://a\\b/", "*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		got, err := Parse("GET", target)
		if err != nil {
			return
		}
		if got.Path == "" || got.Path[0] != '/' || strings.ContainsAny(got.Path, "\r\n \t\x00#") {
			t.Fatalf("path %q", got.Path)
		}
		if got.Scheme == SchemeNone {
			return
		}
		a, err := dest.ParseAuthority(got.Authority, got.Scheme.Default())
		if err != nil {
			return
		}
		u, err := url.Parse(target)
		if err != nil {
			return
		}
		if b, err := dest.ParseAuthority(u.Host, got.Scheme.Default()); err != nil || a != b || u.User != nil || u.Scheme != got.Scheme.String() {
			t.Fatalf("%q: we read %v, net/url %q", target, a, u.Host)
		}
	})
}

type rw struct {
	io.Reader
	bytes.Buffer
}

func (r *rw) Read(p []byte) (int, error) { return r.Reader.Read(p) }

func socks(in string) (dest.Target, string, *bufio.Reader, error) {
	c := &rw{Reader: strings.NewReader(in)}
	br := bufio.NewReader(c)
	t, err := ReadSocks(br, c)
	return t, c.String(), br, err
}

func TestReadSocks(t *testing.T) {
	const hi = "\x05\x01\x00"
	for name, c := range map[string]struct {
		in    string
		want  string
		reply Reply // of the error
	}{
		"name":            {hi + "\x05\x01\x00\x03\x06A.Test\x01\xbb", "a.test:443", 0},
		"IPv4":            {hi + "\x05\x01\x00\x01\xc0\x00\x02\x07\x00\x50", "192.0.2.7:80", 0},
		"IPv6":            {hi + "\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50", "[2001:db8::1]:80", 0},
		"mapped IPv4":     {hi + "\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01\x00\x50", "127.0.0.1:80", 0},
		"NUL":             {hi + "\x05\x01\x00\x03\x08a.test\x00b\x01\xbb", "", NotAllowed},
		"empty name":      {hi + "\x05\x01\x00\x03\x00\x01\xbb", "", NotAllowed},
		"odd IPv4":        {hi + "\x05\x01\x00\x03\x05127.1\x01\xbb", "", NotAllowed},
		"port 0":          {hi + "\x05\x01\x00\x03\x06a.test\x00\x00", "", NotAllowed},
		"BIND":            {hi + "\x05\x02\x00\x03\x06a.test\x01\xbb", "", CommandUnsupported},
		"UDP":             {hi + "\x05\x03\x00\x03\x06a.test\x01\xbb", "", CommandUnsupported},
		"address type":    {hi + "\x05\x01\x00\x02\x06a.test\x01\xbb", "", AddressUnsupported},
		"reserved byte":   {hi + "\x05\x01\x01\x03\x06a.test\x01\xbb", "", Failed},
		"version":         {hi + "\x04\x01\x00\x03\x06a.test\x01\xbb", "", Failed},
		"auth only":       {"\x05\x01\x02", "", Succeeded},
		"none offered":    {"\x05\x00", "", Succeeded},
		"second method":   {"\x05\x02\x02\x00\x05\x01\x00\x03\x06a.test\x01\xbb", "a.test:443", 0},
		"SOCKS4 greeting": {"\x04\x01", "", Failed},
	} {
		got, wrote, br, err := socks(c.in + "rest")
		if c.want != "" {
			if err != nil || got.String() != c.want || wrote != "\x05\x00" {
				t.Errorf("%s: %v %v, answered %q", name, got, err, wrote)
			}
			if rest, _ := io.ReadAll(br); string(rest) != "rest" {
				t.Errorf("%s: left %q", name, rest)
			}
			continue
		}
		if e, ok := errors.AsType[*SocksError](err); !ok || e.Reply != c.reply {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range len(hi + "\x05\x01\x00\x03\x06a.test\x01\xbb") {
		if _, _, _, err := socks((hi + "\x05\x01\x00\x03\x06a.test\x01\xbb")[:i]); err == nil {
			t.Errorf("cut at %d: no error", i)
		}
	}
}

func FuzzReadSocks(f *testing.F) {
	f.Add("\x05\x01\x00\x05\x01\x00\x03\x06a.test\x01\xbb")
	f.Add("\x05\x02\x02\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50")
	f.Fuzz(func(t *testing.T, in string) {
		got, wrote, _, err := socks(in)
		if len(wrote) > 2 {
			t.Fatalf("answered %q", wrote)
		}
		if err != nil {
			return
		}
		if again, err := dest.Parse(got.String()); err != nil || again != got {
			t.Fatalf("%q: not canonical: %v", in, got)
		}
	})
}
