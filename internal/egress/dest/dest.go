// Package dest holds the canonical destination: what the box asked for, parsed
// once, compared, logged and dialled in that one form, and the closed table of
// address classes. It resolves nothing, dials nothing and imports nothing of
// ours.
package dest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

const (
	// ControlName is answered by the supervisor itself, in process.
	ControlName = "control.foldyard.internal"

	maxName  = 253  // bytes of a name in text, RFC 1035 2.3.4 without the root
	maxLabel = 63   // bytes of a label
	maxInput = 1024 // bytes of any spelling that is looked at at all
)

// Error says why a spelling is not a destination. Every function of this
// package that parses returns one.
type Error struct {
	Input string // as given, cut to a bounded length
	Why   string // lower case, for a person
}

func (e *Error) Error() string {
	return "bad target " + strconv.QuoteToASCII(e.Input) + ": " + e.Why
}

func bad(input, why string) error {
	if len(input) > maxName {
		input = input[:maxName] + "…"
	}
	return &Error{Input: input, Why: why}
}

// Host is a canonical name (lower-case A-labels, no trailing dot) or IP
// address (unmapped, decoded, no zone). The zero Host is no host. Hosts are
// comparable with ==.
type Host struct {
	name string
	addr netip.Addr
}

// ParseHost reads a name or an IP literal without brackets and without a port.
// Errors are *Error.
func ParseHost(s string) (Host, error) {
	switch {
	case s == "":
		return Host{}, bad(s, "empty host")
	case len(s) > maxInput:
		return Host{}, bad(s, "too long")
	}
	colon, ascii := false, true
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c < 0x20 || c == 0x7f:
			return Host{}, bad(s, "control byte")
		case c >= 0x80:
			ascii = false
		case c == ':':
			colon = true
		case !nameByte(c) && !('A' <= c && c <= 'Z') && c != '.':
			return Host{}, bad(s, whyByte(c))
		}
	}
	switch {
	case colon:
		return parseIPv6(s)
	case !ascii:
		return parseUnicode(s)
	default:
		return parseName(s, s)
	}
}

func whyByte(c byte) string {
	switch c {
	case '[', ']':
		return "brackets belong around an IPv6 address only"
	case '@':
		return "user information is not part of a host"
	case '%':
		return "no zones and no percent-encoding"
	case ' ':
		return "space"
	}
	return "character " + strconv.QuoteRune(rune(c)) + " is not part of a host"
}

func nameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

func parseIPv6(s string) (Host, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return Host{}, bad(s, "not an IPv6 address")
	}
	if a.Zone() != "" {
		return Host{}, bad(s, "zones are refused")
	}
	return HostFromAddr(a), nil
}

// parseUnicode maps a name with non-ASCII letters to A-labels. The mapping may
// yield any ASCII (full-width digits, dots), so the result is judged again.
func parseUnicode(s string) (Host, error) {
	ascii, err := profile().ToASCII(s)
	if err != nil {
		return Host{}, bad(s, "not an internationalised name")
	}
	h, err := parseName(s, ascii)
	if err == nil && h.IsIP() {
		return Host{}, bad(s, "an IP address is written in ASCII digits")
	}
	return h, err
}

// profile is IDNA's Lookup profile without STD3, whose character rule parseName
// applies itself because real names hold '_'.
func profile() *idna.Profile {
	return idna.New(
		idna.MapForLookup(),
		idna.BidiRule(),
		idna.CheckJoiners(true),
		idna.CheckHyphens(false),
		idna.StrictDomainName(false),
		idna.Transitional(false),
	)
}

// parseName canonicalises the ASCII name; input is what the error shows.
func parseName(input, name string) (Host, error) {
	bare, dotted := strings.CutSuffix(name, ".")
	if bare == "" {
		return Host{}, bad(input, "empty host")
	}
	if len(bare) > maxName {
		return Host{}, bad(input, "name longer than 253 bytes")
	}
	bare = lower(bare)
	puny, last := false, ""
	for rest, more := bare, true; more; {
		last, rest, more = strings.Cut(rest, ".")
		if why := whyLabel(last); why != "" {
			return Host{}, bad(input, why)
		}
		puny = puny || strings.HasPrefix(last, "xn--")
	}
	if numeric(last) {
		a, err := netip.ParseAddr(bare)
		if err != nil || dotted {
			return Host{}, bad(input, "an odd spelling of an IPv4 address")
		}
		return HostFromAddr(a), nil
	}
	if puny {
		if again, err := profile().ToASCII(bare); err != nil || again != bare {
			return Host{}, bad(input, "not a canonical A-label")
		}
	}
	return Host{name: bare}, nil
}

func whyLabel(l string) string {
	switch {
	case l == "":
		return "empty label"
	case len(l) > maxLabel:
		return "label longer than 63 bytes"
	case l[0] == '-' || l[len(l)-1] == '-':
		return "a label neither begins nor ends with a hyphen"
	}
	for i := 0; i < len(l); i++ {
		if !nameByte(l[i]) {
			return whyByte(l[i])
		}
	}
	return ""
}

// numeric tells a last label that some resolver takes for part of an IPv4
// address: decimal, octal or 0x hexadecimal.
func numeric(l string) bool {
	if hex, ok := strings.CutPrefix(l, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(l, "0123456789") == ""
}

// lower maps ASCII only: what is not ASCII was mapped or refused before.
func lower(s string) string {
	for i := 0; i < len(s); i++ {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return strings.ToLower(s)
		}
	}
	return s
}

// HostFromAddr returns the canonical host of an address: without a zone, and
// as the IPv4 address that it embeds, if any. An invalid address gives the
// zero Host.
func HostFromAddr(a netip.Addr) Host {
	if !a.IsValid() {
		return Host{}
	}
	a = a.WithZone("").Unmap()
	if v4, ok := embedded(a); ok {
		a = v4
	}
	return Host{addr: a}
}

// String returns the canonical text, an IPv6 address without brackets; "" for
// the zero Host.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// Name returns the name, or "" for an IP address.
func (h Host) Name() string { return h.name }

// IsIP tells an IP address from a name.
func (h Host) IsIP() bool { return h.addr.IsValid() }

// Addr returns the address; it is invalid for a name.
func (h Host) Addr() netip.Addr { return h.addr }

// Loopback reports whether h is a name that is always this computer's own
// loopback, whatever a resolver says (RFC 6761, 6.3).
func (h Host) Loopback() bool {
	return h.name == "localhost" || strings.HasSuffix(h.name, ".localhost")
}

// IsZero reports whether h is no host at all.
func (h Host) IsZero() bool { return h == Host{} }

// Target is a host and a port: the only thing that is matched, logged and
// dialled.
type Target struct {
	Host Host
	Port uint16
}

// Parse reads HOST:PORT. The port is required, an IPv6 address wears brackets
// and nothing else does. Errors are *Error.
func Parse(hostport string) (Target, error) { return ParseAuthority(hostport, 0) }

// ParseAuthority reads HOST[:PORT] as in a Host header; a missing port becomes
// defaultPort, and is an error when that is 0. Errors are *Error.
func ParseAuthority(s string, defaultPort uint16) (Target, error) {
	if len(s) > maxInput {
		return Target{}, bad(s, "too long")
	}
	host, port, hasPort, err := split(s)
	if err != nil {
		return Target{}, err
	}
	t := Target{Port: defaultPort}
	if s[0] == '[' {
		t.Host, err = parseIPv6(host)
	} else {
		t.Host, err = ParseHost(host)
	}
	if err != nil {
		return Target{}, bad(s, err.(*Error).Why)
	}
	if hasPort {
		if t.Port, err = ParsePort(port); err != nil {
			return Target{}, bad(s, err.(*Error).Why)
		}
	}
	if t.Port == 0 {
		return Target{}, bad(s, "no port")
	}
	return t, nil
}

func split(s string) (host, port string, hasPort bool, err error) {
	if s == "" {
		return "", "", false, bad(s, "empty host")
	}
	if s[0] == '[' {
		in, rest, ok := strings.Cut(s[1:], "]")
		if !ok {
			return "", "", false, bad(s, "bracket is not closed")
		}
		if !strings.Contains(in, ":") {
			return "", "", false, bad(s, whyByte('['))
		}
		if rest == "" {
			return in, "", false, nil
		}
		if rest[0] != ':' {
			return "", "", false, bad(s, "bytes after the bracket")
		}
		return in, rest[1:], true, nil
	}
	host, port, hasPort = strings.Cut(s, ":")
	if strings.Contains(port, ":") {
		return "", "", false, bad(s, "an IPv6 address wears brackets here")
	}
	return host, port, hasPort, nil
}

// ParsePort reads a port: 1 to 65535 in decimal without a sign or leading
// zeros. Errors are *Error.
func ParsePort(s string) (uint16, error) {
	if s == "" || len(s) > 5 || s[0] == '0' {
		return 0, bad(s, "bad port")
	}
	n := 0
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, bad(s, "bad port")
		}
		n = n*10 + int(s[i]-'0')
	}
	if n > 65535 {
		return 0, bad(s, "bad port")
	}
	return uint16(n), nil
}

// String returns HOST:PORT, an IPv6 address in brackets.
func (t Target) String() string {
	if t.Host.addr.Is6() {
		return fmt.Sprintf("[%s]:%d", t.Host.addr, t.Port)
	}
	return t.Host.String() + ":" + strconv.Itoa(int(t.Port))
}

// IsZero reports whether t has neither host nor port.
func (t Target) IsZero() bool { return t == Target{} }
