// Package connect reads what a client asks of a proxy port: a CONNECT, an
// absolute-form request (RFC 9112, 3.2.2 and 3.2.3) or a SOCKS5 request (RFC
// 1928). It turns them into canonical targets and refuses what two parties
// could read differently; it judges nothing, dials nothing, answers only SOCKS.
package connect

import (
	"strings"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
)

// Error is a request that names no target, or two.
type Error struct {
	Target dest.Target // what it named, when that is known
	Why    string      // lower case, for a person; never holds bytes of the request
}

func (e *Error) Error() string { return "bad proxy request: " + e.Why }

// Scheme of a request target.
type Scheme uint8

const (
	SchemeNone Scheme = iota // origin-form: the connection says it
	SchemeHTTP
	SchemeHTTPS
)

// Default is the scheme's port.
func (s Scheme) Default() uint16 {
	switch s {
	case SchemeHTTP:
		return 80
	case SchemeHTTPS:
		return 443
	case SchemeNone:
	}
	return 0
}

func (s Scheme) String() string {
	switch s {
	case SchemeHTTP:
		return "http"
	case SchemeHTTPS:
		return "https"
	case SchemeNone:
	}
	return ""
}

// Tunnel returns the target of a CONNECT request. Its Host must name the same
// target; a Host without a port is taken to mean the target's. Errors are
// *Error or *dest.Error.
func Tunnel(r *http1.Request) (dest.Target, error) {
	t, err := dest.Parse(r.Target)
	if err != nil {
		return dest.Target{}, err
	}
	if r.Host == r.Target || r.Host == "" && r.Minor == 0 {
		return t, nil
	}
	if h, err := dest.ParseAuthority(r.Host, t.Port); err != nil || h != t {
		return t, &Error{Target: t, Why: "the Host of a CONNECT names another target"}
	}
	return t, nil
}

// Form is a request target taken apart. Path holds the path and query as they
// were written, or "*".
type Form struct {
	Scheme    Scheme
	Authority string // "" in origin-form
	Path      string
}

// Parse takes the target of any request but CONNECT apart. Errors are *Error.
func Parse(method, target string) (Form, error) {
	switch {
	case target == "*":
		if method != "OPTIONS" {
			return Form{}, &Error{Why: "only OPTIONS may ask for *"}
		}
		return Form{Path: target}, nil
	case target != "" && target[0] == '/':
		return Form{Path: target}, checkPath(target)
	}
	f := Form{}
	rest, ok := cutFold(target, "http://")
	if ok {
		f.Scheme = SchemeHTTP
	} else if rest, ok = cutFold(target, "https://"); ok {
		f.Scheme = SchemeHTTPS
	} else {
		return Form{}, &Error{Why: "the request target is neither a path nor an http or https URL"}
	}
	end := strings.IndexAny(rest, "/?#\\")
	if end < 0 {
		end = len(rest)
	}
	f.Authority, f.Path = rest[:end], rest[end:]
	if f.Authority == "" || strings.IndexByte(f.Authority, '@') >= 0 {
		return Form{}, &Error{Why: "no host, or userinfo, in the request target"}
	}
	if err := checkPath(f.Path); err != nil {
		return Form{}, err
	}
	switch {
	case f.Path == "" && method == "OPTIONS":
		f.Path = "*"
	case f.Path == "" || f.Path[0] == '?':
		f.Path = "/" + f.Path
	}
	return f, nil
}

// checkPath refuses what some party would take for another path: a backslash
// outside the query, a fragment, whitespace and control bytes.
func checkPath(p string) error {
	query := false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c <= ' ' || c == 0x7f:
			return &Error{Why: "whitespace or a control byte in the request target"}
		case c == '#':
			return &Error{Why: "a fragment in the request target"}
		case c == '?':
			query = true
		case c == '\\' && !query:
			return &Error{Why: "a backslash in the path"}
		}
	}
	return nil
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
