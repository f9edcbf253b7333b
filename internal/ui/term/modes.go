package term

import (
	"slices"
	"strconv"
	"strings"
)

// modes remembers what a box switched on, to switch it off at its end.
type modes struct {
	private map[int]bool // private modes that differ from a terminal's default
	keys    int          // pushed keyboard levels
	other   map[string]bool
}

// Things that are not numbered modes, in the order they are undone.
func undo() [][2]string {
	return [][2]string{
		{"link", "\x1b]8;;\x1b\\"},
		{"keypad", "\x1b>"},
		{"charset", "\x0f\x1b(B"},
		{"scroll", "\x1b[r"},
		{"keys", "\x1b[>4;0m"},
		{"keyboard", "\x1b[=0u"},
		{"cursor", "\x1b[0 q"},
		{"insert", "\x1b[4l"},
		{"sgr", "\x1b[m"},
	}
}

// on by default: autowrap, cursor shown. The rest is off.
func defaultOn(mode int) bool { return mode == 7 || mode == 25 }

func (m *modes) set(what string, on bool) {
	if m.other == nil {
		m.other = map[string]bool{}
	}
	m.other[what] = on
}

// note records what an allowed sequence changes.
func (m *modes) note(seq []byte) {
	s := string(seq)
	switch {
	case strings.HasPrefix(s, "\x1b]8;"):
		_, uri, _ := strings.Cut(s[len("\x1b]8;"):], ";")
		m.set("link", uri != "")
	case s == "\x1b=":
		m.set("keypad", true)
	case s == "\x1b>":
		m.set("keypad", false)
	case s == "\x1bc":
		*m = modes{}
	case strings.HasPrefix(s, "\x1b("):
		m.set("charset", s != "\x1b(B")
	case strings.HasPrefix(s, "\x1b["):
		m.control(s[2:len(s)-1], s[len(s)-1])
	}
}

func (m *modes) control(params string, final byte) {
	switch {
	case strings.HasPrefix(params, "?") && (final == 'h' || final == 'l'):
		for _, p := range strings.Split(params[1:], ";") {
			n, err := strconv.Atoi(p)
			if err != nil {
				continue
			}
			if m.private == nil {
				m.private = map[int]bool{}
			}
			if on := final == 'h'; on == defaultOn(n) {
				delete(m.private, n)
			} else if len(m.private) < 64 {
				m.private[n] = on
			}
		}
	case final == 'm' && strings.HasPrefix(params, ">"):
		m.set("keys", true)
	case final == 'm':
		m.set("sgr", strings.Trim(params, "0") != "")
	case final == 'r' && !strings.HasPrefix(params, "?"):
		m.set("scroll", params != "")
	case final == 'q':
		m.set("cursor", true)
	case final == 'h' || final == 'l':
		m.set("insert", final == 'h')
	case final == 'u' && strings.HasPrefix(params, "="):
		m.set("keyboard", true)
	case final == 'u' && strings.HasPrefix(params, ">"):
		m.keys = min(m.keys+1, 16)
	case final == 'u' && strings.HasPrefix(params, "<"):
		m.keys = max(m.keys-1, 0)
	}
}

// reset returns what undoes the noted changes, "" for none.
func (m *modes) reset() string {
	var b strings.Builder
	for _, u := range undo() {
		if m.other[u[0]] {
			b.WriteString(u[1])
		}
	}
	if m.keys > 0 {
		b.WriteString("\x1b[<" + strconv.Itoa(m.keys) + "u")
	}
	numbers := make([]int, 0, len(m.private))
	for n := range m.private {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		final := "l"
		if defaultOn(n) {
			final = "h"
		}
		b.WriteString("\x1b[?" + strconv.Itoa(n) + final)
	}
	*m = modes{}
	return b.String()
}
