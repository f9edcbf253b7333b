package inject

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is searched for. Shorter values turn up by chance.
const (
	minSecret = 16 // bytes of a value that is redacted
	minDummy  = MinDummy
)

// MinDummy is the length, in bytes, from which placeholders are watched for;
// MinSecret that from which values are redacted.
const (
	MinDummy  = 8
	MinSecret = minSecret
)

// matcher finds whole occurrences of any of its patterns, in one pass and
// mostly without looking at each byte (Wu and Manber, 1994). A nil matcher
// finds nothing. It never changes.
type matcher struct {
	patterns []pattern
	min, max int                  // lengths
	shift    [1 << hashBits]uint8 // how far a window may move on, by the hash of its last three bytes
	buckets  map[uint32][]int     // for shift 0: the patterns whose window ends so
	first    [1 << 16 / 64]uint64 // a bit for every two bytes that a pattern begins with
}

// pattern is one form of a value.
type pattern struct {
	text  []byte
	owner int // which of the values given to newMatcher
}

const (
	hashBits = 12
	block    = 3
)

func hash3(a, b, c byte) uint32 {
	return (uint32(a)<<16 | uint32(b)<<8 | uint32(c)) * 0x9E3779B1 >> (32 - hashBits)
}

// newMatcher searches for every form of the values that are at least least
// bytes long.
func newMatcher(values [][]byte, least int) *matcher {
	m := &matcher{}
	seen := map[string]bool{}
	for i, v := range values {
		if len(v) < least {
			continue
		}
		for _, f := range forms(v) {
			if key := fmt.Sprint(i, "\x00", string(f)); !seen[key] && len(f) >= least {
				seen[key] = true
				m.patterns = append(m.patterns, pattern{f, i})
			}
		}
	}
	if len(m.patterns) == 0 {
		return nil
	}
	m.min = len(m.patterns[0].text)
	for _, p := range m.patterns {
		m.min, m.max = min(m.min, len(p.text)), max(m.max, len(p.text))
		two := uint16(p.text[0])<<8 | uint16(p.text[1])
		m.first[two/64] |= 1 << (two % 64)
	}
	m.min = min(m.min, 200) // shifts are bytes
	far := uint8(m.min - block + 1)
	for i := range m.shift {
		m.shift[i] = far
	}
	m.buckets = map[uint32][]int{}
	for i, p := range m.patterns {
		for end := block - 1; end < m.min; end++ {
			h := hash3(p.text[end-2], p.text[end-1], p.text[end])
			m.shift[h] = min(m.shift[h], uint8(m.min-1-end))
			if end == m.min-1 {
				m.buckets[h] = append(m.buckets[h], i)
			}
		}
	}
	return m
}

// each calls found for every occurrence in b, in the order of their starts,
// until it returns false.
func (m *matcher) each(b []byte, found func(start, end, owner int) bool) {
	if m == nil {
		return
	}
	for i := m.min - 1; i < len(b); {
		h := hash3(b[i-2], b[i-1], b[i])
		if s := m.shift[h]; s > 0 {
			i += int(s)
			continue
		}
		start := i - (m.min - 1)
		for _, n := range m.buckets[h] {
			p := &m.patterns[n]
			if bytes.HasPrefix(b[start:], p.text) && !found(start, start+len(p.text), p.owner) {
				return
			}
		}
		i++
	}
}

// in reports whether s holds an occurrence, and of which value.
func (m *matcher) in(s string) (owner int, ok bool) {
	if m == nil {
		return 0, false
	}
	for i := m.min - 1; i < len(s); { // as in each, without a copy
		h := hash3(s[i-2], s[i-1], s[i])
		if far := m.shift[h]; far > 0 {
			i += int(far)
			continue
		}
		for _, n := range m.buckets[h] {
			p := &m.patterns[n]
			if rest := s[i-(m.min-1):]; len(rest) >= len(p.text) && rest[:len(p.text)] == string(p.text) {
				return p.owner, true
			}
		}
		i++
	}
	return 0, false
}

// pending returns where in b an occurrence may begin whose end is yet to come;
// len(b) if nowhere.
func (m *matcher) pending(b []byte) int {
	if m == nil {
		return len(b)
	}
	for h := max(0, len(b)-m.max+1); h < len(b); h++ {
		if h+1 < len(b) {
			if two := uint16(b[h])<<8 | uint16(b[h+1]); m.first[two/64]>>(two%64)&1 == 0 {
				continue
			}
		}
		for i := range m.patterns {
			if t := m.patterns[i].text; len(t) > len(b)-h && bytes.HasPrefix(t, b[h:]) {
				return h
			}
		}
	}
	return len(b)
}

const mask = '*'

// redact returns s with every occurrence masked at equal length, and whether
// there was one; owners of what was found go to hit.
func (m *matcher) redact(s string, hit func(owner int)) string {
	if _, ok := m.in(s); !ok {
		return s
	}
	var out []byte
	src := []byte(s)
	m.each(src, func(start, end, owner int) bool {
		if out == nil {
			out = bytes.Clone(src)
		}
		for i := start; i < end; i++ {
			out[i] = mask
		}
		hit(owner)
		return true
	})
	if out == nil {
		return s
	}
	return string(out)
}

// maxUnusual is up to how many bytes of a value its longest forms are searched
// for, lest what is kept back at a cut grows too long.
const maxUnusual = 512

// forms returns the ways in which a value is commonly written: as it is, in
// base64 at each of its three alignments, percent-encoded, JSON-escaped, in
// hexadecimal, as HTML, and with every character escaped. There are others.
func forms(v []byte) [][]byte {
	out := [][]byte{v}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for align := range 3 {
			out = append(out, aligned(enc, v, align))
		}
	}
	for _, keep := range []string{"", "-._~", "-._~!$&'()*+,;=:@/", "-_.!~*'()", "-._*"} {
		out = append(out, percent(v, keep, "0123456789ABCDEF"), percent(v, keep, "0123456789abcdef"))
		if bytes.IndexByte(v, ' ') >= 0 {
			out = append(out, bytes.ReplaceAll(percent(v, keep+" ", "0123456789ABCDEF"), []byte{' '}, []byte{'+'}))
		}
	}
	if len(v) <= maxUnusual {
		for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
			for _, before := range []string{"", "%", `\u00`, `\x`} {
				out = append(out, each2(v, before, "", digits))
			}
			out = append(out, each2(v, "&#x", ";", digits))
		}
		out = append(out, decimal(v))
	}
	if h := html.EscapeString(string(v)); h != string(v) {
		out = append(out, []byte(h), []byte(strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(h)))
	}
	for _, angles := range []bool{false, true} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(angles)
		if e.Encode(string(v)) == nil {
			t := bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
			t = t[1 : len(t)-1]
			out = append(out, t, bytes.ReplaceAll(t, []byte{'/'}, []byte(`\/`)))
		}
	}
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal)
}

// each2 writes every byte as two digits, with the same text before and after.
func each2(v []byte, before, after, digits string) []byte {
	b := make([]byte, 0, len(v)*(2+len(before)+len(after)))
	for _, c := range v {
		b = append(append(append(b, before...), digits[c>>4], digits[c&15]), after...)
	}
	return b
}

// decimal writes every byte as a character reference of HTML.
func decimal(v []byte) []byte {
	b := make([]byte, 0, 6*len(v))
	for _, c := range v {
		b = append(strconv.AppendUint(append(b, "&#"...), uint64(c), 10), ';')
	}
	return b
}

// aligned returns the characters of the base64 text of a longer value that
// only v decides, when v begins at a byte with this remainder by three.
func aligned(enc *base64.Encoding, v []byte, align int) []byte {
	padded := append(make([]byte, align, align+len(v)), v...)
	text := make([]byte, enc.EncodedLen(len(padded)))
	enc.Encode(text, padded)
	from := []int{0, 2, 3}[align]
	to := len(padded) * 8 / 6 // the last character may hold bits of what follows
	return text[from:to]
}

func percent(v []byte, keep, digits string) []byte {
	var b []byte
	for _, c := range v {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(keep, c) >= 0 {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}
