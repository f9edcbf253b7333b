package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// pos is a place in a configuration file; lines and columns count from 1, and
// a column is in bytes. The zero pos is a default's.
type pos struct {
	file      string
	line, col int
	operator  bool // in config.toml
}

func (p pos) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.col)
}

// Fault is one thing that is wrong, or deprecated, in a configuration file.
type Fault struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Col  int    `json:"col"`
	Key  string `json:"key,omitempty"` // dotted
	Text string `json:"text"`
}

// String returns file:line:col: key: text, safe for a terminal.
func (f Fault) String() string {
	s := pos{file: f.File, line: f.Line, col: f.Col}.String()
	if f.Key != "" {
		s += ": " + f.Key
	}
	return s + ": " + f.Text
}

// maxFaults bounds how many faults of one file are told.
const maxFaults = 100

// Faults is every fault that was found, in the order of the files.
type Faults []Fault //nolint:errname // it is a list first

// Error returns one fault a line.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// asError returns fs, sorted, or nil when there is none.
func (fs Faults) asError() error {
	if len(fs) == 0 {
		return nil
	}
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(-cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	fs = slices.Compact(fs)
	if len(fs) > maxFaults {
		more := len(fs) - maxFaults
		fs = append(fs[:maxFaults:maxFaults], Fault{File: fs[0].File, Text: fmt.Sprintf("and %d more", more)})
	}
	return fs
}

// report collects faults and warnings while a file is read.
type report struct {
	faults   Faults
	warnings Faults
}

func (r *report) fault(p pos, key, format string, args ...any) {
	if len(r.faults) >= 10*maxFaults {
		return // nobody reads them
	}
	r.faults = append(r.faults, newFault(p, key, format, args...))
}

func (r *report) warn(p pos, key, format string, args ...any) {
	if len(r.warnings) >= maxFaults {
		return
	}
	r.warnings = append(r.warnings, newFault(p, key, format, args...))
}

func newFault(p pos, key, format string, args ...any) Fault {
	// What a parser says may quote the file.
	text := strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Escape(fmt.Appendf(nil, format, args...)))
	return Fault{File: p.file, Line: p.line, Col: p.col, Key: key, Text: text}
}

// unreadable reports whether a file is not TOML at all.
func (r *report) unreadable() bool {
	return slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Key == "" })
}

// addUnrelated adds what other found, except about keys that r has a fault for
// already, or above or below such a key: what could not be read has no
// meaning. prefix is what r's keys may begin with and other's do not.
func (r *report) addUnrelated(other *report, prefix string) {
	known := slices.Clone(r.faults)
	for _, f := range other.faults {
		related := func(k Fault) bool {
			return above(strings.TrimPrefix(k.Key, prefix), f.Key) || above(f.Key, strings.TrimPrefix(k.Key, prefix))
		}
		if !slices.ContainsFunc(known, related) {
			r.faults = append(r.faults, f)
		}
	}
	r.warnings = append(r.warnings, other.warnings...)
}

// above reports whether the dotted key a is b or a table around it.
func above(a, b string) bool {
	rest, ok := strings.CutPrefix(b, a)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// nearest returns the candidate that s is most likely a misspelling of, or "".
func nearest(s string, candidates []string) string {
	best, bestDistance := "", max(2, len(s)/2)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(s), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the number of single-byte edits between a and b.
func distance(a, b string) int {
	const most = 64
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
