// Command shot draws what a program printed on a terminal as an SVG, for the
// documents:
//
//	script -qec 'fy status' /dev/null | shot '$ fy status' >status.svg
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

func main() {
	if err := draw(os.Stdout, os.Stdin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "shot:", err)
		os.Exit(1)
	}
}

const (
	cell = 8.4 // width of a character
	line = 20  // height of a line
	edge = 16
)

// colour is what an SGR parameter asks for, as attributes of a tspan.
var colour = map[string]string{
	"1": `font-weight="bold"`, "2": `fill="#8b949e"`, "31": `fill="#ff7b72"`, "32": `fill="#7ee787"`, "33": `fill="#e3b341"`,
	"34": `fill="#79c0ff"`, "35": `fill="#d2a8ff"`, "36": `fill="#a5d6ff"`,
}

var sgr = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// draw writes in, below lines of its own, as an SVG.
func draw(w io.Writer, in io.Reader, head []string) error {
	lines := head
	s := bufio.NewScanner(in)
	for s.Scan() {
		lines = append(lines, strings.TrimRight(s.Text(), "\r "))
	}
	if err := s.Err(); err != nil {
		return err
	}
	wide := 0
	for _, l := range lines {
		wide = max(wide, utf8.RuneCountInString(sgr.ReplaceAllString(l, "")))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" font-family=\"ui-monospace, monospace\" font-size=\"14\">\n",
		float64(wide)*cell+2*edge, len(lines)*line+2*edge)
	b.WriteString("<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n<g fill=\"#e6edf3\">\n")
	for i, l := range lines {
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\">%s</text>\n", edge, edge+line*i+15, spans(l))
	}
	b.WriteString("</g>\n</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// spans renders one line with its colours.
func spans(l string) string {
	var b strings.Builder
	var on []string
	put := func(text string) {
		text = strings.ReplaceAll(html.EscapeString(text), " ", "\u00a0") // or columns collapse
		if len(on) > 0 && text != "" {
			text = "<tspan " + strings.Join(on, " ") + ">" + text + "</tspan>"
		}
		b.WriteString(text)
	}
	at := 0
	for _, m := range sgr.FindAllStringSubmatchIndex(l, -1) {
		put(l[at:m[0]])
		at = m[1]
		for _, p := range strings.Split(l[m[2]:m[3]], ";") {
			if a, ok := colour[p]; ok {
				on = append(on, a)
			} else {
				on = nil
			}
		}
	}
	put(l[at:])
	return b.String()
}
