package proxy

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
)

func TestClassify(t *testing.T) {
	h := clientHello(t, "a.test")
	for name, c := range map[string]struct {
		b      string
		strict bool
		want   spoke
		more   bool
	}{
		"nothing":            {"", false, spokeNothing, true},
		"request":            {"GET / HTTP/1.1\r\n", false, spokeHTTP, false},
		"request, absolute":  {"GET http://a.test/ HTTP/1.0\r\nHost", false, spokeHTTP, false},
		"half a request":     {"GET /lo", false, spokeNothing, true},
		"half, strict":       {"GE", true, spokeHTTP, false},
		"TLS":                {h, false, spokeTLS, false},
		"TLS, one byte":      {h[:1], false, spokeTLS, true},
		"looks like TLS":     {"\x16\x05", false, spokeOther, false},
		"SSH":                {"SSH-2.0-OpenSSH\r\n", false, spokeOther, false},
		"SSH, half":          {"SSH-2.0-Open", false, spokeOther, false},
		"SMTP":               {"EHLO a.test\r\n", false, spokeOther, false},
		"redis":              {"PING\r\n", false, spokeOther, false},
		"letter, then bytes": {"I\x00\x00\x00", false, spokeOther, false},
		"Postgres":           {"\x00\x00\x00\x08\x04\xd2\x16\x2f", false, spokeOther, false},
		"other, strict":      {"EHLO a.test\r\n", true, spokeHTTP, false}, // the parser says what is wrong
		"bytes, strict":      {"\x00\x01", true, spokeOther, false},
		"HTTP/2":             {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false, spokeH2C, false},
		"HTTP/2, half":       {"PRI * HT", true, spokeHTTP, true},
	} {
		s, more := classify([]byte(c.b), looking{strict: c.strict})
		if s.kind != c.want || more != c.more {
			t.Errorf("%s: kind %d more %v, want %d %v", name, s.kind, more, c.want, c.more)
		}
	}
}

func TestHelloIsReadInPieces(t *testing.T) {
	h := clientHello(t, "a.test")
	for i := 2; i < len(h); i++ {
		if s, more := classify([]byte(h[:i]), looking{hellos: wholeHello}); s.kind != spokeTLS || s.hello || !more {
			t.Fatalf("%d of %d bytes: %+v more %v", i, len(h), s, more)
		}
	}
	if s, more := classify([]byte(h), looking{hellos: wholeHello}); !s.hello || s.sni != "a.test" || more {
		t.Errorf("whole: %+v more %v", s, more)
	}
	if s, more := classify([]byte(clientHello(t, "")), looking{hellos: wholeHello}); !s.hello || s.sni != "" || more {
		t.Errorf("without SNI: %+v more %v", s, more)
	}
}

// A ClientHello that never ends is not waited for for ever.
func TestHelloIsBounded(t *testing.T) {
	const record = "\x16\x03\x01\x40\x00" // 16 KiB follow
	endless := record + "\x01\x00\xf0\x00\x03\x03" + strings.Repeat("x", 16<<10-6)
	for len(endless) < maxHello {
		endless += record + strings.Repeat("x", 16<<10)
	}
	if s, more := classify([]byte(endless[:maxHello-1]), looking{hellos: wholeHello}); s.kind != spokeTLS || s.hello || !more {
		t.Errorf("control: a byte less: %+v more %v", s, more)
	}
	if s, more := classify([]byte(endless[:maxHello]), looking{hellos: wholeHello}); s.hello || more {
		t.Errorf("%+v more %v", s, more)
	}
}

func clientHello(t testing.TB, name string) string {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(b, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).Handshake() //nolint:gosec // a test
	}()
	buf := make([]byte, 8<<10)
	n, err := a.Read(buf)
	ok(t, err)
	a.Close()
	<-done
	return string(buf[:n])
}

// What is settled stays so, however the bytes go on.
func FuzzClassify(f *testing.F) {
	h := clientHello(f, "a.test")
	for _, s := range []string{"GET / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n", h, "SSH-2.0-x\r\n", "\x00\x01"} {
		f.Add(s, uint(3), false, false)
		f.Add(s, uint(len(s)), true, true)
	}
	f.Fuzz(func(t *testing.T, s string, cut uint, strict, whole bool) {
		how := looking{strict: strict, hellos: hellos(whole)}
		cut = min(cut, uint(len(s)))
		early, more := classify([]byte(s[:cut]), how)
		late, _ := classify([]byte(s), how)
		if !more && early.kind != late.kind {
			t.Fatalf("%q is %d, %q is %d", s[:cut], early.kind, s, late.kind)
		}
	})
}
