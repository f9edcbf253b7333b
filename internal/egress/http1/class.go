package http1

// Classes of bytes, one bit each.
const (
	inToken  = 1 << iota // tchar, RFC 9110, 5.6.2
	inValue              // VCHAR, SP, HTAB and obs-text
	inTarget             // VCHAR but '#', and bytes ≥ 0x80
	inScheme             // ALPHA, DIGIT, "+", "-", "."
)

var class = classes()

func classes() (t [256]uint8) {
	for i := range t {
		c := byte(i)
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if alnum {
			t[i] |= inToken | inScheme
		}
		if c == '\t' || c == ' ' || c > ' ' && c != 0x7f {
			t[i] |= inValue
		}
		if c > ' ' && c != 0x7f && c != '#' {
			t[i] |= inTarget
		}
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		t[c] |= inToken
	}
	for _, c := range []byte("+-.") {
		t[c] |= inScheme
	}
	return t
}

func isToken(s string) bool  { return s != "" && all(s, inToken) }
func isScheme(s string) bool { return s != "" && all(s, inScheme) }

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// isValue is all(s, inValue), eight bytes at a time: values are most of a head.
func isValue(s string) bool {
	for len(s) >= 8 {
		x := word(s)
		del := x ^ 0x7f*ones
		if ((x-0x20*ones)&^x|(del-ones)&^del)&highs != 0 && !all(s[:8], inValue) { // below 0x20 or DEL; HTAB is both there and fine
			return false
		}
		s = s[8:]
	}
	return all(s, inValue)
}

// isTarget is all(s, inTarget) for what is not empty, eight bytes at a time.
func isTarget(s string) bool {
	if s == "" {
		return false
	}
	for len(s) >= 8 {
		x := word(s)
		del, hash := x^0x7f*ones, x^'#'*ones
		if ((x-0x21*ones)&^x|(del-ones)&^del|(hash-ones)&^hash)&highs != 0 && !all(s[:8], inTarget) {
			return false
		}
		s = s[8:]
	}
	return all(s, inTarget)
}

func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func all(s string, bit uint8) bool {
	for i := 0; i < len(s); i++ {
		if class[s[i]]&bit == 0 {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// parseLength takes 1 to 18 digits and nothing else.
func parseLength(s string) (n int64, ok bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := 0; i < len(s); i++ {
		if !isDigit(s[i]) {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}
