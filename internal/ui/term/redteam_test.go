package term

import (
	"bytes"
	"testing"
)

// What a box saved it could restore after the reset at its end had been worked out; what locks the keyboard was never undone.
func TestNothingOutlivesTheResetAtTheEnd(t *testing.T) {
	for name, s := range map[string]string{
		"save a mode": "\x1b[?1003s", "restore a mode": "\x1b[?1003r", "lock the keyboard": "\x1b[2h", "no echo of one's own": "\x1b[12l",
		"return sends two bytes": "\x1b[20h", "one that is allowed beside one that is not": "\x1b[4;2h",
	} {
		if got := filter(t, "<"+s+">"); got != "<>" {
			t.Errorf("%s: %q reached the terminal", name, got)
		}
	}
	if got := filter(t, "\x1b[4h"); got != "\x1b[4h" {
		t.Errorf("control: insert mode became %q", got)
	}
	var out bytes.Buffer
	f := NewFilter(&out)
	if _, err := f.Write([]byte("\x1b[=31;1u")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[=31;1u\x1b[=0u"; out.String() != want {
		t.Errorf("keys that send sequences: %q, want %q", out.String(), want)
	}
}
