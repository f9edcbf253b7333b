package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Enforce is the first value of a project's allowlist switch. The zero value
// enforces.
type Enforce uint8

// The values of [proxy] enforce.
const (
	EnforceOn Enforce = iota
	EnforceOff
	EnforceLearn
)

// String returns on, off or learn, as the grants store spells them.
func (e Enforce) String() string {
	switch e {
	case EnforceOff:
		return "off"
	case EnforceLearn:
		return "learn"
	default:
		return "on"
	}
}

// UnmarshalText takes true, false and learn.
func (e *Enforce) UnmarshalText(b []byte) error {
	switch string(b) {
	case "true":
		*e = EnforceOn
	case "false":
		*e = EnforceOff
	case "learn":
		*e = EnforceLearn
	default:
		return fmt.Errorf(`want true, false or "learn", got %s`, quote(string(b)))
	}
	return nil
}

// Size is a number of bytes, written as "8GiB".
type Size int64

// UnmarshalText takes a whole number and a unit: B, KiB, MiB, GiB or TiB.
func (s *Size) UnmarshalText(b []byte) error {
	text := string(b)
	digits := strings.TrimRight(text, "BKMGTi")
	shift, ok := map[string]int{"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 62)
	if !ok || err != nil || n == 0 || n > (1<<62)>>shift {
		return fmt.Errorf(`want a size such as "8GiB", got %s`, quote(text))
	}
	*s = Size(n << shift)
	return nil
}

// String returns the size in the largest unit that keeps it whole.
func (s Size) String() string {
	n, unit := int64(s), 0
	for units := len(sizeUnits) - 1; unit < units && n != 0 && n%1024 == 0; unit++ {
		n /= 1024
	}
	return strconv.FormatInt(n, 10) + sizeUnits[unit]
}

var sizeUnits = [...]string{"B", "KiB", "MiB", "GiB", "TiB"}

// ShortDuration is a time.Duration written as "30s", over 0 and at most a day.
type ShortDuration time.Duration

// UnmarshalText takes what time.ParseDuration takes.
func (d *ShortDuration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v <= 0 || v > 24*time.Hour {
		return fmt.Errorf(`want a duration such as "30s", over 0 and at most 24h, got %s`, quote(string(b)))
	}
	*d = ShortDuration(v)
	return nil
}

// Duration returns d as a time.Duration.
func (d ShortDuration) Duration() time.Duration { return time.Duration(d) }

func (d ShortDuration) String() string { return time.Duration(d).String() }

// Port is a box's port that is published on the host.
type Port struct {
	Addr netip.Addr // on the host
	Host uint16
	Box  uint16
}

// UnmarshalText takes BOX, HOST:BOX and ADDR:HOST:BOX; an IPv6 address stands
// in brackets. Without ADDR it is 127.0.0.1.
func (p *Port) UnmarshalText(b []byte) error {
	text := string(b)
	bad := func(why string) error {
		return fmt.Errorf(`port %s: %s: want "3000", "8080:80" or "127.0.0.1:8080:80"`, quote(text), why)
	}
	rest, boxPart := text, text
	p.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		rest, boxPart = text[:i], text[i+1:]
		if j := strings.LastIndexByte(rest, ':'); j >= 0 {
			host := rest[:j]
			if strings.HasPrefix(host, "[") != strings.Contains(host, ":") {
				return bad("an IPv6 address, and nothing else, stands in brackets")
			}
			addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
			if err != nil || addr.Zone() != "" || addr.Is4In6() {
				return bad("no address")
			}
			p.Addr, rest = addr, rest[j+1:]
		}
	}
	var err error
	if p.Box, err = parsePort(boxPart); err != nil {
		return bad(err.Error())
	}
	if p.Host, err = parsePort(rest); err != nil {
		return bad(err.Error())
	}
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' || s[0] == '+' {
		return 0, errors.New("ports are 1 to 65535")
	}
	return uint16(n), nil
}

// Bind returns the address to listen on.
func (p Port) Bind() netip.AddrPort { return netip.AddrPortFrom(p.Addr, p.Host) }

// String returns ADDR:HOST:BOX.
func (p Port) String() string { return p.Bind().String() + ":" + strconv.Itoa(int(p.Box)) }

// Mount is a directory or file that a box sees in addition.
type Mount struct {
	// Source is a clean path: relative to the project directory in
	// foldyard.toml, absolute in config.toml.
	Source string
	// Target is where the box sees it; "" means at its own path.
	Target string
	Write  bool
	// mode tells a default from a stated :ro or :rw.
	mode string
}

// UnmarshalText takes PATH[:PATH][:ro|:rw].
func (m *Mount) UnmarshalText(b []byte) error {
	text := string(b)
	*m = Mount{}
	rest := text
	for _, mode := range []string{"ro", "rw"} {
		if s, ok := strings.CutSuffix(rest, ":"+mode); ok {
			rest, m.mode = s, mode
			break
		}
	}
	source, target, _ := strings.Cut(rest, ":")
	for _, s := range []string{source, target} {
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) || strings.Contains(s, ":") {
			return fmt.Errorf(`mount %s: want "PATH", "PATH:ro" or "PATH:TARGET:ro", without control characters`, quote(text))
		}
	}
	if source == "" || source != strings.TrimSpace(source) || strings.HasSuffix(rest, ":") {
		return fmt.Errorf("mount %s: the path is empty", quote(text))
	}
	m.Source, m.Target = filepath.Clean(source), target
	m.Write = m.mode == "rw"
	return nil
}

// String returns the mount as the configuration writes it.
func (m Mount) String() string {
	s := m.Source
	if m.Target != "" {
		s += ":" + m.Target
	}
	if m.Write {
		return s + ":rw"
	}
	return s + ":ro"
}

// UnmarshalText takes a bare rule for {host = …}.
func (r *Recommended) UnmarshalText(b []byte) error {
	*r = Recommended{Host: string(b)}
	return nil
}

// String returns the rule and its reason.
func (r Recommended) String() string {
	if r.Why == "" {
		return r.Host
	}
	return r.Host + " (" + r.Why + ")"
}

// quote makes text of unknown origin safe for a terminal.
func quote(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.QuoteToASCII(s)
}
