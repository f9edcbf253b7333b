package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"foldyard/internal/egress/dest"
)

const (
	maxRule    = 2048 // bytes of a rule's text
	maxMethods = 16
)

// Rule is one parsed rule: METHODS scheme://HOST:PORT/path, of which only HOST
// is required. Rules are comparable with ==; equal rules mean the same. The
// zero Rule matches nothing.
//
// As a grant a rule without port and scheme covers 443 and 80, https:// covers
// 443 and http:// covers 80. As a denial a rule without port and scheme covers
// every port: nobody who denies a host means to leave its port 8443 open.
type Rule struct {
	methods string // sorted, joined with ","; "" is any
	scheme  Scheme // SchemeUnknown is any
	host    dest.Host
	suffix  string // of *.suffix
	prefix  netip.Prefix
	port    uint16 // 0: the default ports, unless anyPort
	anyPort bool
	path    string // glob in normal form, "" is any
}

// ParseRule reads
//
//	[METHOD[,METHOD] ][scheme://]HOST[:PORT][/path/glob]
//
// where HOST is a name, *.suffix (any depth, not the apex), an IP address or a
// CIDR, and PORT a number or *. In a path, * matches within a segment, ** and
// a * at the end match anything; a path of just "/" is no path.
func ParseRule(s string) (Rule, error) {
	r, err := parseRule(s)
	if err != nil {
		if len(s) > 256 {
			s = s[:256] + "…"
		}
		return Rule{}, fmt.Errorf("bad rule %s: %w", strconv.QuoteToASCII(s), err)
	}
	return r, nil
}

func parseRule(s string) (Rule, error) {
	var r Rule
	switch {
	case s == "":
		return r, errors.New("empty")
	case len(s) > maxRule:
		return r, errors.New("too long")
	case s == "*":
		return r, errors.New("a rule for everything is no rule; to let everything through use `fy enforce off`")
	}
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] == 0x7f {
			return r, errors.New("control byte")
		}
	}
	rest := s
	if before, after, ok := strings.Cut(s, " "); ok {
		methods, err := parseMethods(before)
		if err != nil {
			return r, err
		}
		r.methods, rest = methods, after
	} else if slices.Contains(knownMethods(), s) {
		return r, errors.New("a method without a host")
	}
	if before, after, ok := strings.Cut(rest, "://"); ok {
		switch strings.ToLower(before) {
		case "http":
			r.scheme = SchemeHTTP
		case "https":
			r.scheme = SchemeHTTPS
		default:
			return r, errors.New("the scheme is https or http; for other protocols name the port, as in HOST:22")
		}
		rest = after
	}
	hostport, path := splitPath(rest)
	if err := r.parseHostPort(hostport); err != nil {
		return r, err
	}
	if path == "" || path == "/" {
		return r, nil
	}
	if r.prefix.IsValid() {
		return r, errors.New("a CIDR takes no path")
	}
	glob, err := normalGlob(path)
	if err == nil && r.host.IsIP() && bitsFirst(glob) {
		return r, errors.New("a path that begins with a number looks like a CIDR")
	}
	r.path = glob
	return r, err
}

func knownMethods() []string {
	return []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
}

func parseMethods(s string) (string, error) {
	methods := strings.Split(s, ",")
	if len(methods) > maxMethods {
		return "", errors.New("too many methods")
	}
	for _, m := range methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != "" {
			return "", fmt.Errorf("%q is not a method: methods are capitals, with commas and no spaces between them", m)
		}
		if m == "CONNECT" || m == "TRACE" {
			return "", fmt.Errorf("%s cannot be granted", m)
		}
	}
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ","), nil
}

// splitPath cuts HOST[:PORT] from the path; the slash of a CIDR stays with the
// host.
func splitPath(s string) (hostport, path string) {
	if strings.HasPrefix(s, "[") {
		if i := strings.IndexByte(s, ']'); i > 0 {
			hostport, path := cutSlash(s[i:])
			return s[:i] + hostport, path
		}
		return s, ""
	}
	hostport, path = cutSlash(s)
	if _, err := netip.ParseAddr(hostport); err != nil || !bitsFirst(path) {
		return hostport, path
	}
	bits, path := cutSlash(path[1:]) // ADDR/BITS[:PORT][/path]
	return hostport + "/" + bits, path
}

// bitsFirst reports whether a path after an address is read as the length of a
// CIDR's prefix.
func bitsFirst(path string) bool {
	seg, _ := cutSlash(strings.TrimPrefix(path, "/"))
	seg, _, _ = strings.Cut(seg, ":")
	return seg != "" && strings.Trim(seg, "0123456789") == ""
}

func cutSlash(s string) (before, after string) {
	if i := strings.IndexByte(s, '/'); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

func (r *Rule) parseHostPort(s string) error {
	host, port := s, ""
	hasPort := false
	switch {
	case strings.HasPrefix(s, "["):
		in, after, ok := strings.Cut(s[1:], "]")
		if !ok {
			return errors.New("bracket is not closed")
		}
		if !strings.Contains(in, ":") {
			return errors.New("brackets belong around an IPv6 address only")
		}
		if after != "" && after[0] != ':' {
			return errors.New("bytes after the bracket")
		}
		host = in
		if after != "" {
			port, hasPort = after[1:], true
		}
	case strings.Count(s, ":") > 1: // a bare IPv6 address
		if r.scheme != SchemeUnknown {
			return errors.New("an IPv6 address after a scheme wears brackets")
		}
	default:
		host, port, hasPort = strings.Cut(s, ":")
	}
	if hasPort && port == "*" {
		r.anyPort = true
	} else if hasPort {
		p, err := dest.ParsePort(port)
		if err != nil {
			return fmt.Errorf("port %q is neither 1 to 65535 nor *", port)
		}
		r.port = p
	}
	if r.scheme != SchemeUnknown && r.port == defaultPort(r.scheme) {
		r.port = 0
	}
	return r.parseHost(host)
}

func (r *Rule) parseHost(s string) error {
	if strings.Contains(s, "/") {
		return r.parsePrefix(s)
	}
	if s == "*" {
		return errors.New("a rule for every host is no rule; to let everything through use `fy enforce off`")
	}
	if suffix, ok := strings.CutPrefix(s, "*."); ok {
		h, err := dest.ParseHost(suffix)
		if err != nil {
			return why(err)
		}
		if h.IsIP() {
			return errors.New("a wildcard goes before a name; for addresses write a CIDR")
		}
		r.suffix = h.Name()
		return nil
	}
	if strings.Contains(s, "*") {
		return errors.New("a wildcard is the whole first label, as in *.example.com")
	}
	h, err := dest.ParseHost(s)
	r.host = h
	return why(err)
}

func why(err error) error {
	if e, ok := errors.AsType[*dest.Error](err); ok {
		return errors.New(e.Why)
	}
	return err
}

func (r *Rule) parsePrefix(s string) error {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return errors.New("not a CIDR")
	}
	if p != p.Masked() {
		return fmt.Errorf("bits beyond the prefix are set; write %s", p.Masked())
	}
	if h := dest.HostFromAddr(p.Addr()); h.Addr() != p.Addr() {
		return errors.New("addresses with an IPv4 address inside are judged as that: write the IPv4 CIDR")
	}
	if p.IsSingleIP() {
		r.host = dest.HostFromAddr(p.Addr())
		return nil
	}
	r.prefix = p
	return nil
}

// RuleFor returns the narrowest rule without method and path that grants t.
// Its text is what a refusal advises to allow.
func RuleFor(t dest.Target) Rule {
	r := Rule{host: t.Host, port: t.Port}
	if t.Port == 443 || t.Port == 80 {
		r.port = 0
	}
	return r
}

// String returns the canonical text; ParseRule of it gives the same rule. The
// zero Rule gives "".
func (r Rule) String() string {
	if r.IsZero() {
		return ""
	}
	var b strings.Builder
	if r.methods != "" {
		b.WriteString(r.methods + " ")
	}
	if r.scheme != SchemeUnknown {
		b.WriteString(r.scheme.String() + "://")
	}
	host := r.host.String()
	switch {
	case r.suffix != "":
		host = "*." + r.suffix
	case r.prefix.IsValid():
		host = r.prefix.String()
	}
	if strings.Contains(host, ":") && (r.scheme != SchemeUnknown || r.port != 0 || r.anyPort || r.path != "") {
		host = "[" + host + "]"
	}
	b.WriteString(host)
	if r.anyPort {
		b.WriteString(":*")
	} else if r.port != 0 {
		b.WriteString(":" + strconv.Itoa(int(r.port)))
	}
	b.WriteString(r.path)
	return b.String()
}

// IsZero reports whether r is no rule.
func (r Rule) IsZero() bool { return r == Rule{} }

// NeedsIntercept reports whether r can be judged on decrypted traffic only:
// it has a method or a path.
func (r Rule) NeedsIntercept() bool { return r.methods != "" || r.path != "" }

// MatchesHost reports whether h is among the hosts of r, whatever the port.
func (r Rule) MatchesHost(h dest.Host) bool {
	switch {
	case h.IsZero():
		return false
	case r.suffix != "":
		before, ok := strings.CutSuffix(h.Name(), r.suffix)
		return ok && len(before) > 1 && before[len(before)-1] == '.'
	case r.prefix.IsValid():
		return h.IsIP() && r.prefix.Contains(h.Addr())
	}
	return r.host == h
}

// grantsPort reports whether r as a grant covers the port.
func (r *Rule) grantsPort(port uint16) bool {
	switch {
	case r.anyPort:
		return true
	case r.port != 0:
		return r.port == port
	case r.scheme != SchemeUnknown:
		return port == defaultPort(r.scheme)
	}
	return port == 443 || port == 80
}

// deniesPort reports whether r as a denial covers the port.
func (r *Rule) deniesPort(port uint16) bool {
	return r.port == 0 && r.scheme == SchemeUnknown || r.grantsPort(port)
}

func defaultPort(s Scheme) uint16 {
	switch s {
	case SchemeHTTP:
		return 80
	case SchemeHTTPS:
		return 443
	case SchemeUnknown, SchemeRaw:
	}
	return 0
}

// hasMethod reports whether r names m. A denial ignores case, since some
// origins do.
func (r *Rule) hasMethod(m string, denial bool) bool {
	if r.methods == "" {
		return true
	}
	for rest, more := r.methods, true; more; {
		var one string
		one, rest, more = strings.Cut(rest, ",")
		if one == m || denial && strings.EqualFold(one, m) {
			return true
		}
	}
	return false
}

// Overlaps reports whether some host and port is covered by both rules, taken
// as grants. Config uses it to refuse a passthrough host with a path rule.
func (r Rule) Overlaps(o Rule) bool {
	return r.overlapsHost(o) && r.overlapsPort(o)
}

func (r Rule) overlapsHost(o Rule) bool {
	switch {
	case r.IsZero() || o.IsZero():
		return false
	case !r.host.IsZero():
		return o.MatchesHost(r.host)
	case !o.host.IsZero():
		return r.MatchesHost(o.host)
	case r.suffix != "" && o.suffix != "":
		return r.suffix == o.suffix || strings.HasSuffix(r.suffix, "."+o.suffix) || strings.HasSuffix(o.suffix, "."+r.suffix)
	}
	return r.prefix.IsValid() && o.prefix.IsValid() && r.prefix.Overlaps(o.prefix)
}

func (r Rule) overlapsPort(o Rule) bool {
	switch {
	case r.anyPort || o.anyPort:
		return true
	case r.port != 0:
		return o.grantsPort(r.port)
	case o.port != 0:
		return r.grantsPort(o.port)
	}
	return r.scheme == SchemeUnknown || o.scheme == SchemeUnknown || r.scheme == o.scheme
}
