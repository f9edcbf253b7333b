package http1

import "strings"

func (r *Request) frame(f *framing) error {
	switch {
	case f.hosts > 1:
		return bad("more than one Host")
	case f.hosts == 0 && r.Minor > 0:
		return bad("no Host")
	case f.codings > 0 && f.lengths > 0:
		return bad("Content-Length together with Transfer-Encoding")
	case f.codings > 0 && r.Minor == 0:
		return bad("Transfer-Encoding in HTTP/1.0")
	case f.codings > 1:
		return bad("more than one Transfer-Encoding")
	case f.codings == 1 && !fold(f.coding, "chunked"):
		return &Error{Status: 501, Why: "a Transfer-Encoding other than chunked"}
	case f.codings == 1:
		r.Length = Chunked
	case f.lengths > 1:
		return bad("more than one Content-Length")
	case f.lengths == 1:
		n, ok := parseLength(f.length)
		if !ok {
			return bad("the Content-Length is not a number")
		}
		r.Length = n
	}
	r.Host = f.host
	r.Close = f.close || r.Minor == 0
	r.Expect100 = f.expect100 && r.Minor > 0
	if f.upgradeOption && r.Minor > 0 {
		r.Upgrade = f.upgrade
	}
	return nil
}

func (r *Response) frame(f *framing, method string) error {
	switch {
	case f.codings > 0 && f.lengths > 0:
		return bad("Content-Length together with Transfer-Encoding")
	case f.codings > 0 && r.Minor == 0:
		return bad("Transfer-Encoding in HTTP/1.0")
	case f.codings > 1 || f.codings == 1 && !fold(f.coding, "chunked"):
		return bad("a Transfer-Encoding other than chunked")
	case f.lengths > 1 && !f.sameLengths:
		return bad("two Content-Length that differ")
	}
	length := UntilClose
	if f.lengths > 0 {
		n, ok := parseLength(f.length)
		if !ok {
			return bad("the Content-Length is not a number")
		}
		length = n
	}
	if f.codings > 0 {
		length = Chunked
	}
	r.Close = f.close || r.Minor == 0 && !f.keepAlive
	switch interim := r.Status < 200; {
	case interim || r.Status == 204 || method == "CONNECT" && r.Status < 300:
		// Framing has no meaning here. What came after it, if the sender thinks otherwise, would pass for the next response.
		if length > 0 || length == Chunked {
			if interim {
				return bad("a body announced by an interim response")
			}
			r.Close = true
		}
		r.NoBody = true
	case r.Status == 304 || method == "HEAD":
		r.NoBody = true
	default:
		r.Length = length
		r.Close = r.Close || length == UntilClose
	}
	if r.Status == 101 && f.upgradeOption {
		r.Upgrade = f.upgrade
	}
	return nil
}

// framing collects, while fields are parsed, what decides where a message ends and what becomes of its connection.
type framing struct {
	hosts, lengths, codings         int
	host, length, coding            string
	sameLengths                     bool // stays true while all Content-Length are equal
	close, keepAlive, upgradeOption bool
	expect100                       bool
	upgrade                         string
}

func (f *framing) see(name, value string) {
	switch len(name) {
	case 4:
		if fold(name, "Host") {
			f.hosts++
			f.host = value
		}
	case 6:
		if fold(name, "Expect") {
			f.expect100 = f.expect100 || fold(value, "100-continue")
		}
	case 7:
		if fold(name, "Upgrade") {
			if f.upgrade != "" {
				value = f.upgrade + ", " + value
			}
			f.upgrade = value
		}
	case 10:
		if fold(name, "Connection") {
			for value != "" {
				var opt string
				opt, value = nextElement(value)
				f.close = f.close || fold(opt, "close")
				f.keepAlive = f.keepAlive || fold(opt, "keep-alive")
				f.upgradeOption = f.upgradeOption || fold(opt, "upgrade")
			}
		}
	case 14:
		if fold(name, "Content-Length") {
			f.sameLengths = f.sameLengths && (f.lengths == 0 || f.length == value)
			f.lengths++
			f.length = value
		}
	case 17:
		if fold(name, "Transfer-Encoding") {
			f.codings++
			f.coding = value
		}
	}
}

// parseFields appends the field lines of s, which end with an empty one, to h. f may be nil.
func parseFields(s string, h Header, most int, f *framing) (Header, error) {
	if h == nil {
		h = make(Header, 0, min(strings.Count(s, "\n"), most))
	}
	for n := 0; ; n++ {
		line, rest, err := nextLine(s)
		if err != nil {
			return h, err
		}
		s = rest
		if line == "" {
			return h, nil
		}
		if n == most {
			return h, tooLarge("too many fields")
		}
		i := strings.IndexByte(line, ':')
		if line[0] == ' ' || line[0] == '\t' {
			return h, bad("a folded field line")
		}
		if i <= 0 || !isToken(line[:i]) {
			if i > 0 && (line[i-1] == ' ' || line[i-1] == '\t') {
				return h, bad("whitespace before the colon of a field")
			}
			return h, bad("a field line has no name")
		}
		name, value := line[:i], trim(line[i+1:])
		if !isValue(value) {
			return h, bad("a control byte in a field")
		}
		if f != nil {
			f.see(name, value)
		}
		h = append(h, Field{name, value})
	}
}
