package capture

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 123e6, time.UTC)

func full() *Record {
	return &Record{
		TS: noon, ID: "x-1", Box: "b1", Via: ViaRedirect, Process: &Process{7, "/usr/bin/curl", "curl https://a.test/"}, Host: "a.test", Port: 443,
		Scheme: "https", Method: "GET", Path: "/hi?a=b", Proto: ProtoHTTP1, Mode: ModeDecrypted, Verdict: VerdictAllow, Reason: "limit", Rule: "a.test",
		Status: 200, Error: "e", Upstream: "192.0.2.1:443", ReqBytes: N(0), RespBytes: N(1 << 40), TTFBMillis: N(0), Millis: N(3), UA: "curl/8",
		Injected: "demo", Replayed: true, DeniedTimes: 3,
	}
}

func TestEncode(t *testing.T) {
	const want = `{"ts":"2026-11-30T12:00:00.123Z","id":"x-1","box":"b1","via":"redirect","process":{"pid":7,"exe":"/usr/bin/curl","cmd":"curl https://a.test/"},` +
		`"host":"a.test","port":443,"scheme":"https","method":"GET","path":"/hi?a=b","proto":"http/1.1","mode":"decrypted","verdict":"allow","reason":"limit",` +
		`"rule":"a.test","status":200,"error":"e","upstream":"192.0.2.1:443","req_bytes":0,"resp_bytes":1099511627776,"ttfb_ms":0,"ms":3,"ua":"curl/8",` +
		`"injected":"demo","replayed":true,"denied_times":3}` + "\n"
	if d := cmp.Diff(want, string(appendRecord(nil, full()))); d != "" {
		t.Error(d)
	}
	const least = `{"ts":"2026-11-30T12:00:00.123Z","process":null}` + "\n"
	if d := cmp.Diff(least, string(appendRecord(nil, &Record{TS: noon}))); d != "" {
		t.Error(d)
	}
	v := reflect.ValueOf(*full())
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the full record of these tests lacks %s", v.Type().Field(i).Name)
		}
	}
}

// The hand-written encoder and encoding/json must agree on every field, name and order, so that --json output is the same.
func TestEncodeAgreesWithJSON(t *testing.T) {
	for _, r := range []*Record{full(), {TS: noon}, {TS: noon, Process: &Process{}, ReqBytes: N(5)}} {
		std, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(std)+"\n", string(appendRecord(nil, r))); d != "" {
			t.Error(d)
		}
	}
}

func TestStrings(t *testing.T) {
	for in, want := range map[string]string{
		"plain ~":               `"plain ~"`,
		"":                      `""`,
		"q\",\"verdict\":\"x\\": `"q\",\"verdict\":\"x\\"`,
		"a\nb\rc\td":            `"a\nb\rc\td"`,
		"\x00\x1b[31m\x07\x7f":  `"\u0000\u001b[31m\u0007\u007f"`,
		"\xc2\x9b31m":           `"\u009b31m"`,
		"\xff\xc2":              `"\ufffd\ufffd"`,
		"\u202egnp.exe":         `"\u202egnp.exe"`,
		"\u2066\u2028\ufeff":    `"\u2066\u2028\ufeff"`,
		"\U000e0041":            `"\udb40\udc41"`,
		"café 漢字 🙂":             `"café 漢字 🙂"`,
		"\ufffd":                `"` + "\ufffd" + `"`,
	} {
		if got := string(appendString(nil, in, 100)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"12345678":             `"12345678"`,
		"123456789":            `"12345…"`,
		"1234\u00e9789":        `"1234…"`, // the cut would go through é
		"\x01\x01\x01\x01\x01": `"\u0001\u0001…"`,
	} {
		if got := string(appendString(nil, in, 8)); got != want {
			t.Errorf("%q in 8: %s, want %s", in, got, want)
		}
	}
}

// checkLine asserts what every line must be, whatever the box put into the record.
func checkLine(t *testing.T, line []byte) *Record {
	t.Helper()
	if len(line) > maxLine {
		t.Errorf("a line of %d bytes", len(line))
	}
	if bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' {
		t.Errorf("not one line: %q", line)
	}
	if !utf8.Valid(line) {
		t.Errorf("not UTF-8: %q", line)
	}
	for _, c := range string(line[:len(line)-1]) {
		if !unicode.IsPrint(c) {
			t.Errorf("%U is not escaped in %q", c, line)
		}
	}
	d := json.NewDecoder(bytes.NewReader(line))
	seen := map[string]bool{}
	depth := 0
	for {
		tok, err := d.Token()
		if err != nil {
			break
		}
		switch tok := tok.(type) {
		case json.Delim:
			depth += map[json.Delim]int{'{': 1, '}': -1, '[': 1, ']': -1}[tok]
		case string:
			if depth == 1 {
				if seen[tok] && tok != "process" {
					t.Errorf("key %q twice in %s", tok, line)
				}
				seen[tok] = true
				if tok == "process" {
					var p *Process
					if err := d.Decode(&p); err != nil {
						t.Fatal(err)
					}
				} else if _, err := d.Token(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var r Record
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	return &r
}

func TestLargestLine(t *testing.T) {
	for _, c := range []string{"a", "\x01", "\"", "é", "\U000e0041", "\xff", "\u202e"} {
		s := strings.Repeat(c, 70_000)
		r := &Record{
			TS: noon, ID: s, Box: s, Via: Via(s), Process: &Process{-1 << 62, s, s}, Host: s, Port: 65535, Scheme: s, Method: s, Path: s,
			Proto: Proto(s), Mode: Mode(s), Verdict: Verdict(s), Reason: s, Rule: s, Status: -1 << 62, Error: s, Upstream: s, ReqBytes: N(-1 << 62),
			RespBytes: N(-1 << 62), TTFBMillis: N(-1 << 62), Millis: N(-1 << 62), UA: s, Injected: s, Replayed: true, DeniedTimes: -1 << 62,
		}
		got := checkLine(t, appendRecord(nil, r))
		if utf8.RuneCountInString(got.Path) > 2048 || !strings.HasSuffix(got.Path, "…") {
			t.Errorf("path of %d characters", utf8.RuneCountInString(got.Path))
		}
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("a.test", "/x", "ua", "GET", int64(1))
	f.Add("a\x1b[31m", "/%0a{\"verdict\":\"forged\"}\n{\"verdict\":\"forged\"}", "q\",\"verdict\":\"forged\\\xc2\x9b31m\t\xff", "G\u202eT", int64(-1))
	f.Fuzz(func(t *testing.T, host, path, ua, method string, n int64) {
		r := &Record{TS: noon, Host: host, Path: path, UA: ua, Method: method, RespBytes: N(n), Verdict: VerdictDeny, Process: &Process{Exe: host, Cmd: path}, Error: ua}
		got := checkLine(t, appendRecord(nil, r))
		if got.Verdict != VerdictDeny || got.Status != 0 {
			t.Errorf("forged: %+v", got)
		}
		if valid := utf8.ValidString(ua); valid && len(ua) <= 100 && got.UA != ua {
			t.Errorf("ua %q became %q", ua, got.UA)
		}
		if n2, ok := got.RespBytes.Get(); !ok || n2 != n {
			t.Errorf("%d became %d", n, n2)
		}
	})
}

func FuzzEscapeTerm(f *testing.F) {
	f.Add("a\x1b]52;c;x\x07\u202e\xff\xc2\x9b")
	f.Fuzz(func(t *testing.T, s string) {
		out := EscapeTerm(s)
		for _, r := range out {
			if !unicode.IsPrint(r) || r == utf8.RuneError && !strings.Contains(s, "\ufffd") {
				t.Errorf("%U left in %q", r, out)
			}
		}
		if again := EscapeTerm(out); again != out {
			t.Errorf("not stable: %q, then %q", out, again)
		}
	})
}

func TestEscapeTerm(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                 "plain",
		"é漢":                    "é漢",
		"\x1b[31m\x07\n\t":      `\x1b[31m\a\n\t`,
		"\xc2\x9b \xff \u202ex": `\u009b \xff \u202ex`,
		"\U000e0041":            `\U000e0041`,
	} {
		if got := EscapeTerm(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestRedactPath(t *testing.T) {
	for in, want := range map[string]string{
		"/a":                                 "/a",
		"/a?":                                "/a?",
		"/a?b=c&d":                           "/a?b=c&d",
		"/token=x?b=c":                       "/token=x?b=c",
		"/a?token=x":                         "/a?token=REDACTED",
		"/a?b=c&access_token=x&d=%2F":        "/a?b=c&access_token=REDACTED&d=%2F",
		"/a?X-Amz-Signature=x&X-Amz-Date=y":  "/a?X-Amz-Signature=REDACTED&X-Amz-Date=y",
		"/a?apiKey=1;API-KEY=2&api%5fkey=3":  "/a?apiKey=REDACTED;API-KEY=REDACTED&api%5fkey=REDACTED",
		"/a?user[password]=x=y&key=":         "/a?user[password]=REDACTED&key=",
		"/a?token=REDACTED":                  "/a?token=REDACTED",
		"/a?keyboard=x&tokens=y&monkey=z":    "/a?keyboard=x&tokens=y&monkey=z",
		"/a?mine=x&Mine=y":                   "/a?mine=REDACTED&Mine=REDACTED",
		"/a?b=?token=x&%74oken=y&%zz=1&=2&&": "/a?b=?token=x&%74oken=REDACTED&%zz=1&=2&&",
	} {
		got := RedactPath(in, "mine")
		if got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
		if again := RedactPath(got, "mine"); again != got {
			t.Errorf("%s: not stable: %s", in, again)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	r := full()
	r.UA = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"
	buf := make([]byte, 0, maxLine)
	b.ReportAllocs()
	for b.Loop() {
		buf = appendRecord(buf[:0], r)
	}
}
