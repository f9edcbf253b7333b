// Package term stands between a box's output and the operator's terminal: raw mode and window size, and a filter that
// lets through what draws and drops what acts (clipboard, answers typed back, device control). It may not read or write
// anything but the terminal that it is given.
package term

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of one sequence. A longer one is dropped whole.
const (
	maxCSI = 128
	maxOSC = 2048
)

type state uint8

const (
	ground state = iota
	escape       // after ESC
	inter        // ESC and an intermediate byte
	csi
	osc
	str // DCS, APC, PM, SOS: dropped up to their end
)

// Filter writes to a terminal what a box printed, without the sequences that do more than draw. Those are: what makes
// the terminal answer (the answer would be typed into the operator's shell), the clipboard (OSC 52) and every other OSC
// but titles and links, DCS, APC, PM, SOS, printing, and C1 controls in either spelling. It never delays text.
type Filter struct {
	w     io.Writer
	state state
	seq   []byte // of the sequence being read, ESC included
	over  bool   // the sequence is too long
	esc   bool   // in osc or str: the last byte was ESC
	rune  []byte // an unfinished UTF-8 sequence
	out   []byte
	modes modes
}

// NewFilter returns a Filter that writes to w.
func NewFilter(w io.Writer) *Filter { return &Filter{w: w} }

// Write filters p. It reports p as written whole unless the terminal fails.
func (f *Filter) Write(p []byte) (int, error) {
	f.out = f.out[:0]
	for _, b := range p {
		f.next(b)
	}
	if len(f.out) == 0 {
		return len(p), nil
	}
	if _, err := f.w.Write(f.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close ends what the box left on: modes, colours, an open link. It does not close the terminal.
func (f *Filter) Close() error {
	f.state, f.seq, f.rune = ground, f.seq[:0], f.rune[:0]
	reset := f.modes.reset()
	if reset == "" {
		return nil
	}
	_, err := io.WriteString(f.w, reset)
	return err
}

func (f *Filter) next(b byte) {
	// CAN and SUB end any sequence. ESC begins a new one, except where it may be the start of a string's end.
	if f.state != ground {
		switch {
		case b == 0x18 || b == 0x1a:
			f.drop()
			return
		case b == 0x1b && f.state != osc && f.state != str:
			f.begin()
			return
		}
	}
	switch f.state {
	case ground:
		f.text(b)
	case escape:
		f.afterEscape(b)
	case inter:
		switch {
		case b >= 0x20 && b <= 0x2f:
			f.keep(b, 8)
		case b >= 0x30 && b <= 0x7e:
			f.keep(b, 8)
			f.finish(allowEscape(f.seq))
		default:
			f.abort(b)
		}
	case csi:
		switch {
		case b >= 0x20 && b <= 0x3f:
			f.keep(b, maxCSI)
		case b >= 0x40 && b <= 0x7e:
			f.keep(b, maxCSI)
			f.finish(allowCSI(f.seq))
		default:
			f.abort(b)
		}
	case osc, str:
		f.inString(b)
	}
}

func (f *Filter) begin() {
	f.state, f.over, f.esc = escape, false, false
	f.seq = append(f.seq[:0], 0x1b)
}

func (f *Filter) drop() { f.state, f.seq, f.esc = ground, f.seq[:0], false }

// abort drops the sequence: b does not belong in it.
func (f *Filter) abort(b byte) {
	f.drop()
	f.text(b)
}

func (f *Filter) keep(b byte, limit int) {
	if len(f.seq) >= limit {
		f.over = true
		return
	}
	f.seq = append(f.seq, b)
}

func (f *Filter) finish(allowed bool) {
	if allowed && !f.over {
		f.modes.note(f.seq)
		f.out = append(f.out, f.seq...)
	}
	f.drop()
}

func (f *Filter) afterEscape(b byte) {
	switch {
	case b == '[':
		f.keep(b, maxCSI)
		f.state = csi
	case b == ']':
		f.keep(b, maxOSC)
		f.state = osc
	case b == 'P' || b == '_' || b == '^' || b == 'X' || b == 'k': // DCS, APC, PM, SOS; k is screen's title
		f.state = str
	case b >= 0x20 && b <= 0x2f:
		f.keep(b, 8)
		f.state = inter
	case b >= 0x30 && b <= 0x7e:
		f.keep(b, 8)
		f.finish(allowEscape(f.seq))
	default:
		f.abort(b)
	}
}

// inString reads an OSC or a dropped string up to BEL or ST.
func (f *Filter) inString(b byte) {
	switch {
	case f.esc && b == '\\', b == 0x07:
		if f.state == osc && allowOSC(f.seq) && !f.over {
			f.modes.note(f.seq)
			f.out = append(append(f.out, f.seq...), 0x1b, '\\')
		}
		f.drop()
	case f.esc: // ESC and anything else: the string was broken off
		f.begin()
		f.afterEscape(b)
	case b == 0x1b:
		f.esc = true
	case f.state == osc:
		f.keep(b, maxOSC)
	}
}

// text passes printable UTF-8 and the controls that move the cursor or ring.
func (f *Filter) text(b byte) {
	if len(f.rune) > 0 || b >= utf8.RuneSelf {
		f.wide(b)
		return
	}
	switch {
	case b == 0x1b:
		f.begin()
	case b == 0x05: // ENQ answers back
	case b >= 0x20 && b != 0x7f, b >= 0x07 && b <= 0x0f, b == 0:
		f.out = append(f.out, b)
	}
}

// wide gathers one UTF-8 sequence; C1 controls and broken bytes are dropped.
func (f *Filter) wide(b byte) {
	if len(f.rune) > 0 && b < utf8.RuneSelf { // broken off
		f.rune = f.rune[:0]
		f.text(b)
		return
	}
	f.rune = append(f.rune, b)
	if !utf8.FullRune(f.rune) {
		return
	}
	r, n := utf8.DecodeRune(f.rune)
	switch {
	case r == utf8.RuneError && n <= 1:
		rest := append([]byte(nil), f.rune[1:]...)
		f.rune = f.rune[:0]
		for _, c := range rest {
			f.text(c)
		}
		return
	case r >= 0xa0:
		f.out = append(f.out, f.rune...)
	}
	f.rune = f.rune[:0]
}

// allowEscape judges ESC, intermediates and a final byte.
func allowEscape(seq []byte) bool {
	if len(seq) == 2 {
		return strings.IndexByte("78=>DEHMNOc\\", seq[1]) >= 0 // Z (identify) answers
	}
	// Character sets and line size. ESC % leaves UTF-8, ESC SP chooses C1 spellings: both change what this filter reads.
	return strings.IndexByte("()*+#", seq[1]) >= 0 && len(seq) == 3
}

// allowCSI judges a control sequence by its prefix, intermediates and final byte: an allowlist of what draws.
func allowCSI(seq []byte) bool {
	body, final := string(seq[2:len(seq)-1]), seq[len(seq)-1]
	params := strings.TrimRight(body, " !\"#$%&'()*+,-./")
	between := body[len(params):]
	private := ""
	if params != "" && params[0] >= 0x3c {
		private, params = params[:1], params[1:]
	}
	if strings.Trim(params, "0123456789;:") != "" {
		return false
	}
	switch private + between + string(final) {
	case "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "P", "S", "T", "X", "Z", "`", "@",
		"a", "b", "d", "e", "f", "g", "m", "r", "s", "u", "?J", "?K",
		"?h", "?l", // private modes; to save one and restore it later would go round what is undone at the end
		"!p", " q", // soft reset, cursor shape
		">m",             // modified keys
		">u", "<u", "=u": // enhanced keyboard: push, pop, set
		return true
	case "h", "l": // insert mode only: the others lock the keyboard, or change what its keys send
		return params == "4"
	case "t": // window: only the title stack; everything else moves windows or reports
		return strings.HasPrefix(params, "22") || strings.HasPrefix(params, "23")
	}
	return false
}

// allowOSC passes titles and links. A link's target must be printable ASCII, so that nothing hides in it.
func allowOSC(seq []byte) bool {
	kind, rest, _ := strings.Cut(string(seq[2:]), ";")
	for _, r := range rest {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError {
			return false
		}
	}
	switch kind {
	case "0", "1", "2":
		return true
	case "8":
		return strings.IndexFunc(rest, func(r rune) bool { return r > 0x7e }) < 0
	}
	return false
}
