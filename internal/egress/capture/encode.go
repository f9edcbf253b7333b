package capture

import (
	"strconv"
	"time"
	"unicode/utf8"
)

const maxLine = 16 << 10

// appendRecord appends r as one JSON object and a newline, in at most maxLine bytes: the bounds below add up to less.
func appendRecord(b []byte, r *Record) []byte {
	b = append(b, `{"ts":"`...)
	b = appendTime(b, r.TS)
	b = append(b, '"')
	b = appendText(b, `,"id":`, r.ID, 64)
	b = appendText(b, `,"box":`, r.Box, 128)
	b = appendText(b, `,"via":`, string(r.Via), 16)
	if p := r.Process; p == nil {
		b = append(b, `,"process":null`...)
	} else {
		b = append(b, `,"process":{"pid":`...)
		b = strconv.AppendInt(b, int64(p.PID), 10)
		b = append(b, `,"exe":`...)
		b = appendString(b, p.Exe, 512)
		b = append(b, `,"cmd":`...)
		b = appendString(b, p.Cmd, 512)
		b = append(b, '}')
	}
	b = appendText(b, `,"host":`, r.Host, 256)
	b = appendNumber(b, `,"port":`, int64(r.Port), r.Port != 0)
	b = appendText(b, `,"scheme":`, r.Scheme, 16)
	b = appendText(b, `,"method":`, r.Method, 32)
	b = appendText(b, `,"path":`, r.Path, 2048)
	b = appendText(b, `,"proto":`, string(r.Proto), 16)
	b = appendText(b, `,"mode":`, string(r.Mode), 16)
	b = appendText(b, `,"verdict":`, string(r.Verdict), 16)
	b = appendText(b, `,"reason":`, r.Reason, 32)
	b = appendText(b, `,"rule":`, r.Rule, 512)
	b = appendNumber(b, `,"status":`, int64(r.Status), r.Status != 0)
	b = appendText(b, `,"error":`, r.Error, 768)
	b = appendText(b, `,"upstream":`, r.Upstream, 256)
	b = appendNumber(b, `,"req_bytes":`, r.ReqBytes.n, r.ReqBytes.known)
	b = appendNumber(b, `,"resp_bytes":`, r.RespBytes.n, r.RespBytes.known)
	b = appendNumber(b, `,"ttfb_ms":`, r.TTFBMillis.n, r.TTFBMillis.known)
	b = appendNumber(b, `,"ms":`, r.Millis.n, r.Millis.known)
	b = appendText(b, `,"ua":`, r.UA, 512)
	b = appendText(b, `,"injected":`, r.Injected, 64)
	if r.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	b = appendNumber(b, `,"denied_times":`, int64(r.DeniedTimes), r.DeniedTimes != 0)
	return append(b, '}', '\n')
}

func appendEvent(b []byte, e *Event) []byte {
	b = append(b, `{"ts":"`...)
	b = appendTime(b, e.TS)
	b = append(b, `","event":`...)
	b = appendString(b, e.Event, 32)
	b = appendText(b, `,"rule":`, e.Rule, 1024)
	b = appendText(b, `,"level":`, e.Level, 16)
	b = appendText(b, `,"expires":`, e.Expires, 64)
	b = appendText(b, `,"box":`, e.Box, 128)
	b = appendText(b, `,"reason":`, e.Reason, 1024)
	b = appendText(b, `,"detail":`, e.Detail, 2048)
	return append(b, '}', '\n')
}

// appendTime writes RFC 3339 with milliseconds. A year beyond four digits is not one it can say: such a time becomes the zero time.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		t = time.Time{}
	}
	return t.AppendFormat(b, "2006-01-02T15:04:05.000Z")
}

func appendText(b []byte, key, s string, most int) []byte {
	if s == "" {
		return b
	}
	return appendString(append(b, key...), s, most)
}

func appendNumber(b []byte, key string, n int64, known bool) []byte {
	if !known {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

// plain tells the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string of at most most bytes of s. Whatever is not a printable character is escaped: C0,
// DEL, C1, bidi and format characters, and what is not UTF-8 becomes U+FFFD. Escapes may make it longer than most, but not
// longer than maxEscaped(most); a string that was cut ends with an ellipsis.
func appendString(b []byte, s string, most int) []byte {
	b = append(b, '"')
	limit := len(b) + maxEscaped(most)
	cut := len(s) > most
	if cut {
		s = s[:most-len("…")]
	}
	for i := 0; i < len(s); {
		start := i
		for i < len(s) && plain[s[i]] {
			i++
		}
		if room := limit - len(b); i-start > room {
			i = start + room
			b, cut = append(b, s[start:i]...), true
			break
		}
		b = append(b, s[start:i]...)
		if i == len(s) {
			break
		}
		if limit-len(b) < 12 {
			cut = true
			break
		}
		if c := s[i]; c < utf8.RuneSelf {
			b = appendASCII(b, c)
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1 && cut && !utf8.FullRuneInString(s[i:]):
			i = len(s) // the cut went through a character
			continue
		case r == utf8.RuneError && n == 1:
			b = append(b, `\ufffd`...)
		case strconv.IsPrint(r):
			b = append(b, s[i:i+n]...)
		case r > 0xffff:
			r -= 0x10000
			b = appendUnit(appendUnit(b, uint16(0xd800+r>>10)), uint16(0xdc00+r&0x3ff)) //nolint:gosec // both are 16 bits
		default:
			b = appendUnit(b, uint16(r)) //nolint:gosec // checked above
		}
		i += n
	}
	if cut {
		b = append(b, "…"...)
	}
	return append(b, '"')
}

// maxEscaped bounds what a text of up to n bytes may take, so that a whole line keeps to maxLine.
func maxEscaped(n int) int { return n * 5 / 2 }

func appendASCII(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

func appendUnit(b []byte, u uint16) []byte {
	return append(b, '\\', 'u', hexDigits[u>>12], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}
