package term

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func filter(t *testing.T, in string) string {
	t.Helper()
	var out bytes.Buffer
	f := NewFilter(&out)
	if n, err := f.Write([]byte(in)); err != nil || n != len(in) {
		t.Fatalf("write %q: %d, %v", in, n, err)
	}
	return out.String()
}

func TestWhatDrawsPasses(t *testing.T) {
	for _, s := range []string{
		"plain\r\n\ttext\a\b", "grün € 日本 🙂", "\x00",
		"\x1b[1;31mred\x1b[m", "\x1b[38:2::255:0:0mtrue colour\x1b[0m", "\x1b[2J\x1b[H", "\x1b[?25l\x1b[?25h", "\x1b[?1049h\x1b[?2004h",
		"\x1b7\x1b8\x1b=\x1b>", "\x1b(0lqk\x1b(B", "\x1b[3;20r", "\x1b[4 q", "\x1b[!p", "\x1b[22;0t\x1b[23;0t", "\x1b[>1u\x1b[<u", "\x1bM", "\x1b#8",
		"\x1b]0;title\x1b\\", "\x1b]8;;https://example.com/\x1b\\link\x1b]8;;\x1b\\",
	} {
		if got := filter(t, s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := filter(t, "\x1b]2;bell\a"); got != "\x1b]2;bell\x1b\\" {
		t.Errorf("title ended by BEL: %q", got)
	}
}

// Each input is an attack between two marks: nothing of it may reach the terminal, the marks must.
func TestWhatActsIsDropped(t *testing.T) {
	for name, s := range map[string]string{
		"clipboard":                  "\x1b]52;c;ZXZpbA==\a",
		"clipboard, ST":              "\x1b]52;c;ZXZpbA==\x1b\\",
		"clipboard query":            "\x1b]52;c;?\a",
		"colour query":               "\x1b]11;?\a",
		"notification":               "\x1b]9;msg\a",
		"file transfer":              "\x1b]1337;File=name=eA==:AAAA\a",
		"shell integration":          "\x1b]133;A\a",
		"cursor report":              "\x1b[6n",
		"status report":              "\x1b[5n\x1b[?6n",
		"device attributes":          "\x1b[c\x1b[0c\x1b[>c\x1b[=c\x1bZ",
		"version query":              "\x1b[>q\x1b[>0q",
		"title report":               "\x1b[21t",
		"window moves":               "\x1b[3;0;0t\x1b[2t",
		"mode query":                 "\x1b[?2026$p\x1b[4$p",
		"terminal parameters":        "\x1b[x\x1b[1x",
		"checksum of the screen":     "\x1b[1;1;1;1;1;1*y",
		"keyboard query":             "\x1b[?u\x1b[?4m",
		"graphics query":             "\x1b[?1;1;0S",
		"answerback":                 "\x05",
		"printer":                    "\x1b[5i\x1b[4i\x1b[?5i",
		"device control":             "\x1bP+q544e\x1b\\\x1bP$qm\x1b\\",
		"device control with bell":   "\x1bPq\x1b\\",
		"application command":        "\x1b_Gi=1,a=q;AAAA\x1b\\",
		"privacy, start of string":   "\x1b^x\x1b\\\x1bXx\x1b\\",
		"screen title":               "\x1bkx\x1b\\",
		"leave UTF-8":                "\x1b%@",
		"8-bit answers":              "\x1b G",
		"C1 in UTF-8":                "\u009b\u0090\u009d\u0085",
		"C1 bytes":                   "\x9b\x90\x9d",
		"overlong escape":            "\xc0\x9b",
		"delete":                     "\x7f",
		"title with a control":       "\x1b]0;a\x01b\a",
		"link with bidi":             "\x1b]8;;http://a\u202e/\a",
		"broken off by CAN":          "\x1b]52;c;ZXZ\x18",
		"parameters out of alphabet": "\x1b[1<m",
		"endless control sequence":   "\x1b[" + strings.Repeat("1;", 500) + "m",
		"endless title":              "\x1b]0;" + strings.Repeat("x", 5000) + "\a",
	} {
		if got := filter(t, "<"+s+">"); got != "<>" {
			t.Errorf("%s: %q left %q", name, s, got)
		}
		// The same, a byte a write: a terminal does not care where reads end.
		var out bytes.Buffer
		f := NewFilter(&out)
		for _, b := range []byte("<" + s + ">") {
			if _, err := f.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != "<>" {
			t.Errorf("%s, byte by byte: left %q", name, out.String())
		}
	}
}

func TestSequenceInsideAnotherIsReadAsTheTerminalDoes(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"\x1b[31\x1b[6n>", ">"},
		{"\x1b]0;x\x1b[6n>", ">"},          // ESC breaks the title off
		{"\x1bPabc\x1b]52;c;eA==\a>", ">"}, // and a device control string
		{"\x1b]0;x\x1b[1m>", "\x1b[1m>"},   // control: the second sequence is whole
		{"\x1b[3\n1m", "\n1m"},             // a control inside ends it here
		{"\xe2\x82", ""},                   // unfinished: waits
		{"\xe2\x82A", "A"},                 // broken off
		{"\xe2\xe2\x82\xac", "€"},          // and found again
		{"\x1b\x1b[6n>", ">"}, {"\x1b(\x1b[6n>", ">"},
	} {
		if got := filter(t, c.in); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestModesAreResetAtTheEnd(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"plain", ""},
		{"\x1b[31mx\x1b[0m", ""},
		{"\x1b[31mx", "\x1b[m"},
		{"\x1b[?25l", "\x1b[?25h"},
		{"\x1b[?25l\x1b[?25h", ""},
		{"\x1b[?1049;2004h\x1b[?2004l", "\x1b[?1049l"},
		{"\x1b[?1000h\x1b[?1006h", "\x1b[?1000l\x1b[?1006l"},
		{"\x1b=", "\x1b>"},
		{"\x1b]8;;http://a.test/\a", "\x1b]8;;\x1b\\"},
		{"\x1b[>1u\x1b[>1u", "\x1b[<2u"},
		{"\x1b[5;9r\x1b[2 q", "\x1b[r\x1b[0 q"},
		{"\x1b[?1049h\x1bc", ""},
	} {
		var out bytes.Buffer
		f := NewFilter(&out)
		if _, err := io.WriteString(f, c.in); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		if err := f.Close(); err != nil || out.String() != c.want {
			t.Errorf("%q: reset %q, %v, want %q", c.in, out.String(), err, c.want)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestWriteErrorIsReported(t *testing.T) {
	if _, err := NewFilter(broken{}).Write([]byte("x")); err == nil {
		t.Error("a terminal that is gone went unnoticed")
	}
}

// The oracle is another reading: what came out, filtered again, stays as it is, and holds nothing that answers.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"\x1b[6n", "\x1b]52;c;x\a", "\x1b]0;t\x1b\\", "a\x1bP\x1b[6n", "\xc2\x9b6n", "\x1b[?25l€"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		once := filter(t, string(in))
		if twice := filter(t, once); twice != once {
			t.Fatalf("%q → %q → %q", in, once, twice)
		}
		for _, bad := range []string{"\x1b]52", "\x1bP", "\x1b_", "\x1b[6n", "\x1b[c", "\x05", "\u009b"} {
			if strings.Contains(once, bad) {
				t.Fatalf("%q let %q through", in, bad)
			}
		}
		if cut < 0 || cut > len(in) {
			return
		}
		var out bytes.Buffer
		g := NewFilter(&out)
		_, _ = g.Write(in[:cut]) // a buffer never fails
		_, _ = g.Write(in[cut:])
		if out.String() != once {
			t.Fatalf("cut at %d: %q, whole %q", cut, out.String(), once)
		}
	})
}
