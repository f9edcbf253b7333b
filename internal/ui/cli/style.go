package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"foldyard/internal/ui/term"
)

// style colours text for a terminal; the zero style leaves it alone.
type style struct{ on bool }

func newStyle(f *os.File, getenv func(string) string) style {
	return style{getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && term.IsTerminal(f)}
}

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[m"
}

func (s style) red(t string) string    { return s.paint("31", t) }
func (s style) green(t string) string  { return s.paint("32", t) }
func (s style) yellow(t string) string { return s.paint("33", t) }
func (s style) dim(t string) string    { return s.paint("2", t) }
func (s style) bold(t string) string   { return s.paint("1", t) }

// table prints rows in aligned columns, two spaces apart, indented by indent. Cells may be coloured: paint, given the
// column and the padded cell, does that last so that escapes do not count as width.
func table(w io.Writer, indent string, rows [][]string, paint func(row, col int, cell string) string) {
	var width []int
	for _, r := range rows {
		for i := range r {
			r[i] = line(r[i])
			c := r[i]
			if i >= len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for n, r := range rows {
		var b strings.Builder
		b.WriteString(indent)
		last := len(r) - 1
		for last > 0 && r[last] == "" {
			last--
		}
		for i, c := range r[:last+1] {
			pad := ""
			if i < last {
				pad = strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2)
			}
			if paint != nil {
				c = paint(n, i, c)
			}
			b.WriteString(c + pad)
		}
		fmt.Fprintln(w, b.String())
	}
}

// escape makes text that may come from a box safe to print: no controls but newline and tab, no bidi.
func escape(s string) string {
	if strings.IndexFunc(s, unsafe) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unsafe(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// oneLine keeps what may come from a box within its line: a file name may hold a newline, and what follows it would look like ours.
func oneLine(s string) string { return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(s) }

// line makes text that may come from a box safe to print within one line.
func line(s string) string { return oneLine(escape(s)) }

// block makes text that may come from a box safe to print where it may have several lines: those after the first are indented, so that
// none looks like a line of ours.
func block(s string) string {
	return strings.ReplaceAll(escape(strings.TrimRight(s, "\n")), "\n", "\n  ")
}

func unsafe(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x20, r >= 0x7f && r < 0xa0, r == utf8.RuneError:
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0xfeff:
		return true
	}
	return false
}

// ago says how long before now t was, in one unit.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return short(now.Sub(t))
}

func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "x") {
		one += "e"
	}
	return fmt.Sprintf("%d %ss", n, one)
}
