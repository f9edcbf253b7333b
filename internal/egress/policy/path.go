package policy

import (
	"errors"
	"strings"
)

const hexUpper = "0123456789ABCDEF"

// NormalPath returns the normal form of a request's path, the form that rules
// are matched against: RFC 3986 6.2.2 with unreserved characters, ':' and '@'
// decoded, everything that has no place in a path encoded and hexadecimal in
// capitals. A query is cut off. Slashes are neither merged nor is %2F decoded.
//
// An error means that origins disagree about what the path is, and the request
// is malformed (400): dot segments, also with %2e, ;parameters or behind %2F;
// backslashes; control bytes; a broken percent-encoding.
func NormalPath(raw string) (string, error) {
	raw, _, _ = strings.Cut(raw, "?")
	switch {
	case raw == "":
		return "/", nil
	case raw == "*": // OPTIONS *
		return raw, nil
	case raw[0] != '/':
		return "", errors.New("path does not begin with a slash")
	}
	return normal(raw, false)
}

// normalGlob is NormalPath for a rule's path, in which * stays a wildcard.
func normalGlob(path string) (string, error) {
	switch {
	case strings.Contains(path, "***"):
		return "", errors.New("a wildcard is * or **")
	case strings.ContainsAny(path, "?#"):
		return "", errors.New("a path rule has no query and no fragment; wildcards are * and **")
	case strings.Contains(path, " "):
		return "", errors.New("space in the path")
	}
	return normal(path, true)
}

func normal(path string, glob bool) (string, error) {
	if !glob && plain(path) {
		return path, dots(path)
	}
	b := make([]byte, 0, len(path)+8)
	for i := 0; i < len(path); i++ {
		c, encoded := path[i], false
		if c == '%' {
			if i+2 >= len(path) {
				return "", errors.New("broken percent-encoding in the path")
			}
			hi, lo := unhex(path[i+1]), unhex(path[i+2])
			if hi < 0 || lo < 0 {
				return "", errors.New("broken percent-encoding in the path")
			}
			c, encoded = byte(hi<<4|lo), true
			i += 2
		}
		switch {
		case c == '\\':
			return "", errors.New("backslash in the path")
		case c < 0x20 || c == 0x7f:
			return "", errors.New("control byte in the path")
		case c == '#' && !encoded, c == ' ' && !encoded:
			return "", errors.New("character that has no place in a path")
		case unreserved(c) || c == ':' || c == '@' || !encoded && (subDelim(c) || c == '/'):
			b = append(b, c)
		default:
			b = append(b, '%', hexUpper[c>>4], hexUpper[c&15])
		}
	}
	s := string(b)
	return s, dots(s)
}

// plain reports whether the path is in normal form as it stands.
func plain(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !unreserved(c) && !subDelim(c) && c != '/' && c != ':' && c != '@' {
			return false
		}
	}
	return true
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

func subDelim(c byte) bool {
	switch c {
	case '!', '$', '&', '\'', '(', ')', '*', '+', ',', ';', '=':
		return true
	}
	return false
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// dots looks for a segment that some origin takes for "." or "..". Segments
// end at a slash or at %2F, and parameters after ';' or %3B do not count. An
// encoding that a second decoding would turn into a dot, slash or backslash is
// one more way to write the same.
func dots(normal string) error {
	start := 0
	for i := 0; i <= len(normal); i++ {
		switch {
		case i == len(normal) || normal[i] == '/':
			if dotSegment(normal[start:i]) {
				return errors.New("dot segment in the path")
			}
			start = i + 1
		case strings.HasPrefix(normal[i:], "%2F"):
			if dotSegment(normal[start:i]) {
				return errors.New("dot segment in the path")
			}
			start = i + 3
		case strings.HasPrefix(normal[i:], "%25") && twice(normal[i+3:]):
			return errors.New("path is percent-encoded twice")
		}
	}
	return nil
}

func dotSegment(s string) bool {
	if i := strings.IndexByte(s, ';'); i >= 0 {
		s = s[:i]
	}
	if i := strings.Index(s, "%3B"); i >= 0 {
		s = s[:i]
	}
	return s == "." || s == ".."
}

func twice(after string) bool {
	if len(after) < 2 {
		return false
	}
	hi, lo := unhex(after[0]), unhex(after[1])
	if hi < 0 || lo < 0 {
		return false
	}
	c := byte(hi<<4 | lo)
	return c == '.' || c == '/' || c == '\\' || c == 0
}

// match reports whether the glob covers the path; both are in normal form. A *
// stays within a segment (a segment ends at / and at %2F), ** does not, nor
// does a * at the end. Time is bounded by len(glob) * len(path).
func match(glob, path string) bool {
	type mark struct{ g, p int } // resume the glob after a wildcard at this place of the path
	one, any := mark{-1, 0}, mark{-1, 0}
	g, p := 0, 0
	for {
		switch {
		case g < len(glob) && glob[g] == '*':
			if strings.HasPrefix(glob[g:], "**") {
				g += 2
				any, one = mark{g, p}, mark{-1, 0}
			} else if g++; g == len(glob) {
				return true
			} else {
				one = mark{g, p}
			}
			if g == len(glob) {
				return true
			}
			continue
		case g < len(glob) && p < len(path) && glob[g] == path[p]:
			g, p = g+1, p+1
			continue
		case g == len(glob) && p == len(path):
			return true
		}
		if one.g >= 0 && one.p < len(path) && path[one.p] != '/' && !strings.HasPrefix(path[one.p:], "%2F") {
			one.p++
			g, p = one.g, one.p
			continue
		}
		if any.g < 0 || any.p >= len(path) {
			return false
		}
		any.p++
		one = mark{-1, 0}
		g, p = any.g, any.p
	}
}

// liberal is how the most forgiving origin reads a path: all decoded, slashes
// merged, parameters dropped. Denials are matched against it too.
func liberal(path string) string {
	if !strings.ContainsAny(path, "%;") && !strings.Contains(path, "//") {
		return path
	}
	b := make([]byte, 0, len(path))
	skip := false
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' && i+2 < len(path) && unhex(path[i+1]) >= 0 && unhex(path[i+2]) >= 0 {
			c = byte(unhex(path[i+1])<<4 | unhex(path[i+2]))
			i += 2
		}
		switch {
		case c == '/':
			skip = false
			if len(b) > 0 && b[len(b)-1] == '/' {
				continue
			}
		case c == ';':
			skip = true
		}
		if !skip {
			b = append(b, c)
		}
	}
	return string(b)
}
