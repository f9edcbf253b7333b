// Package policy holds the rules, the grants and the decision: may this box
// send this request to this target. It is pure: it reads no clock, disk or
// socket, and a snapshot never changes. Whatever it cannot read or does not
// know it refuses; the zero Decision refuses.
package policy

import (
	"fmt"
	"time"

	"foldyard/internal/egress/dest"
)

// Verdict says what to do with a connection or a request.
type Verdict uint8

// The verdicts. WouldDeny lets through what an enforcing policy would refuse.
const (
	Refuse Verdict = iota
	Allow
	WouldDeny
)

// String returns the word of the capture record.
func (v Verdict) String() string {
	switch v {
	case Refuse:
		return "deny"
	case Allow:
		return "allow"
	case WouldDeny:
		return "would_deny"
	}
	return "deny"
}

// Permits reports whether the traffic goes on.
func (v Verdict) Permits() bool { return v == Allow || v == WouldDeny }

// Mode says whether a permitted connection is decrypted.
type Mode uint8

// The modes. Intercept is the zero value: nothing is tunnelled by omission.
const (
	Intercept Mode = iota
	Tunnel
)

func (m Mode) String() string {
	if m == Tunnel {
		return "tunnel"
	}
	return "intercept"
}

// Level says how long a grant lives.
type Level uint8

// The levels, in rising order.
const (
	LevelNone Level = iota
	Once
	Session
	Permanent
)

func (l Level) String() string {
	switch l {
	case LevelNone:
		return "none"
	case Once:
		return "once"
	case Session:
		return "session"
	case Permanent:
		return "permanent"
	}
	return "none"
}

// MarshalText returns "once", "session" or "permanent"; LevelNone is an error.
func (l Level) MarshalText() ([]byte, error) {
	if l < Once || l > Permanent {
		return nil, fmt.Errorf("level %d has no text", l)
	}
	return []byte(l.String()), nil
}

// UnmarshalText reads what MarshalText writes and nothing else.
func (l *Level) UnmarshalText(b []byte) error {
	switch string(b) {
	case "once":
		*l = Once
	case "session":
		*l = Session
	case "permanent":
		*l = Permanent
	default:
		return fmt.Errorf("level %q is none of once, session, permanent", b)
	}
	return nil
}

// Scheme is how the box talks to the target, as far as is known.
type Scheme uint8

// The schemes. SchemeRaw is TCP that is neither TLS nor HTTP.
const (
	SchemeUnknown Scheme = iota
	SchemeHTTP
	SchemeHTTPS
	SchemeRaw
)

func (s Scheme) String() string {
	switch s {
	case SchemeUnknown:
		return ""
	case SchemeHTTP:
		return "http"
	case SchemeHTTPS:
		return "https"
	case SchemeRaw:
		return "tcp"
	}
	return ""
}

// Reason is why something was refused or failed, as capture records and
// Foldyard-Reason spell it.
type Reason string

// Every reason there is. The first six are this package's own.
const (
	ReasonNone             Reason = ""
	ReasonNotGranted       Reason = "not_granted"
	ReasonDeniedRule       Reason = "denied_rule"
	ReasonMethodOrPath     Reason = "method_or_path"
	ReasonBadTarget        Reason = "bad_target"
	ReasonPolicyUnreadable Reason = "policy_unreadable"

	ReasonBadRequest          Reason = "bad_request"
	ReasonInnerConnect        Reason = "inner_connect"
	ReasonAddressClass        Reason = "address_class"
	ReasonMisaligned          Reason = "misaligned"
	ReasonHeldTimeout         Reason = "held_timeout"
	ReasonCredentialOff       Reason = "credential_off"
	ReasonCredentialOverlap   Reason = "credential_overlap"
	ReasonMintFailed          Reason = "mint_failed"
	ReasonDummyElsewhere      Reason = "dummy_elsewhere"
	ReasonCredentialIssuing   Reason = "credential_issuing"
	ReasonRedacted            Reason = "redacted"
	ReasonUDP                 Reason = "udp"
	ReasonICMP                Reason = "icmp"
	ReasonLimit               Reason = "limit"
	ReasonUpstreamUnreachable Reason = "upstream_unreachable"
	ReasonUpstreamTLS         Reason = "upstream_tls"
	ReasonClientTLS           Reason = "client_tls"
	ReasonClientAbort         Reason = "client_abort"
)

// Query is what is asked of a Snapshot. Connect reads Box, Target, Scheme and
// Now; Request reads all of it.
type Query struct {
	Box    string
	Target dest.Target
	Scheme Scheme
	Method string
	Path   string // from NormalPath
	Now    time.Time
}

// Decision is the answer. The zero Decision refuses.
type Decision struct {
	Verdict  Verdict
	Mode     Mode
	Reason   Reason    // why not; empty when allowed
	Rule     string    // canonical text of the rule that decided, "" if none
	Level    Level     // of the grant that allowed
	Internal bool      // the grant lets non-public addresses through
	Expires  time.Time // of the rule that decided; zero: never
}
