package capture

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// EscapeTerm returns s fit for a terminal and for one line of it: every character that is not printable, control, C1, bidi and
// other format characters among them, is written as an escape, and so is every byte that is not UTF-8.
func EscapeTerm(s string) string {
	i := 0
	for i < len(s) && ' ' <= s[i] && s[i] < 0x7f {
		i++
	}
	if i == len(s) {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	b = append(b, s[:i]...)
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, '\\', 'x', hexDigits[s[i]>>4], hexDigits[s[i]&15])
		case strconv.IsPrint(r):
			b = append(b, s[i:i+n]...)
		default:
			q := strconv.AppendQuoteRuneToASCII(nil, r)
			b = append(b, q[1:len(q)-1]...)
		}
		i += n
	}
	return string(b)
}

const redacted = "REDACTED"

// RedactPath replaces the values of query parameters that look like secrets by their names, and those called one of also (the
// parameters that an injection rule sets). The rest stays byte for byte, and so does the path before the query.
func RedactPath(path string, also ...string) string {
	q := strings.IndexByte(path, '?')
	if q < 0 {
		return path
	}
	var out []byte // nil until something is replaced
	kept := 0      // path up to here is in out
	for i := q + 1; i < len(path); {
		end := i
		for end < len(path) && path[end] != '&' && path[end] != ';' {
			end++
		}
		if eq := strings.IndexByte(path[i:end], '='); eq >= 0 {
			value := i + eq + 1
			if value < end && path[value:end] != redacted && secretName(path[i:value-1], also) {
				out = append(append(out, path[kept:value]...), redacted...)
				kept = end
			}
		}
		i = end + 1
	}
	if out == nil {
		return path
	}
	return string(append(out, path[kept:]...))
}

// secretName judges the name of a parameter, as written: percent-encoding does not hide it.
func secretName(raw string, also []string) bool {
	for _, a := range also {
		if strings.EqualFold(a, raw) {
			return true
		}
	}
	var buf [48]byte
	name := buf[:0]
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '%' && i+2 < len(raw) {
			if v, err := strconv.ParseUint(raw[i+1:i+3], 16, 8); err == nil {
				c, i = byte(v), i+2
			}
		}
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '-' || c == '_' || c == '.' || c == '[' || c == ']' || c == '+' || c == ' ':
			continue // api_key, api-key, apiKey and auth[token] are one name
		}
		name = append(name, c)
	}
	n := string(name)
	switch n {
	case "key", "sig", "auth", "pwd", "pass", "jwt", "sid", "code", "pat", "otp", "hmac", "bearer", "cookie", "session", "sessionid", "assertion":
		return true
	}
	for _, end := range [...]string{"token", "secret", "password", "passwd", "passphrase", "apikey", "accesskey", "privatekey", "signature", "credential", "credentials", "authorization", "sessionkey", "accesskeyid", "authkey"} {
		if strings.HasSuffix(n, end) {
			return true
		}
	}
	return false
}
