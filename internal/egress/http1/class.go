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
func isValue(s string) bool  { return all(s, inValue) }
func isScheme(s string) bool { return s != "" && all(s, inScheme) }

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
