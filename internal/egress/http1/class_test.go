package http1

import (
	"strings"
	"testing"
)

// Every byte at every place of two words: reading eight at a time judges as the table does.
func TestClassesByWord(t *testing.T) {
	for n := range 18 {
		for at := range n {
			for c := range 256 {
				b := []byte(strings.Repeat("a", n))
				b[at] = byte(c)
				s := string(b)
				if isValue(s) != all(s, inValue) || isTarget(s) != all(s, inTarget) {
					t.Fatalf("%q: value %v, target %v", s, isValue(s), isTarget(s))
				}
				for _, d := range []byte{0, 9, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x24, 0x7e, 0x7f, 0x80, 0xff} { // borrows between neighbours
					b[(at+1)%n] = d
					if s := string(b); isValue(s) != all(s, inValue) || isTarget(s) != all(s, inTarget) {
						t.Fatalf("%q: value %v, target %v", s, isValue(s), isTarget(s))
					}
				}
			}
		}
	}
	if isTarget("") || isToken("") || isScheme("") || !isValue("") {
		t.Error("the empty string")
	}
}

func TestClasses(t *testing.T) {
	for c := range 256 {
		s := string([]byte{byte(c)})
		if want := c > ' ' && c < 0x7f && !strings.Contains("\"(),/:;<=>?@[\\]{}", s); isToken(s) != want {
			t.Errorf("%q is a token: %v", s, !want)
		}
		if want := c == '\t' || c >= ' ' && c != 0x7f; isValue(s) != want {
			t.Errorf("%q is a value: %v", s, !want)
		}
		if want := c > ' ' && c != 0x7f && c != '#'; isTarget(s) != want {
			t.Errorf("%q is a target: %v", s, !want)
		}
	}
}
