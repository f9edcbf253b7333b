// Package capture holds the record of one outcome and the log that keeps it: one JSON object a line, in segments that rotate,
// with readers, a HAR export and one to an OTLP collector.
//
// Open record.go first. The log may lose records, and counts those it lost, but it may not hold up or fail the traffic it is
// told about. It decides nothing, and no text of a box leaves it unescaped.
package capture

import (
	"encoding/json"
	"fmt"
	"time"
)

// Via is the way in that a record's traffic took.
type Via string

// The ways in.
const (
	ViaConnect  Via = "connect"
	ViaForward  Via = "forward"
	ViaSOCKS    Via = "socks"
	ViaRedirect Via = "redirect"
	ViaGateway  Via = "gateway"
	ViaDNS      Via = "dns"
)

// Proto is the protocol as far as it was understood.
type Proto string

// The protocols.
const (
	ProtoHTTP1     Proto = "http/1.1"
	ProtoHTTP2     Proto = "h2"
	ProtoWebSocket Proto = "websocket"
	ProtoGRPC      Proto = "grpc"
	ProtoTLS       Proto = "tls"
	ProtoTCP       Proto = "tcp"
	ProtoUDP       Proto = "udp"
	ProtoDNS       Proto = "dns"
)

// Mode is what was done with the bytes.
type Mode string

// The modes.
const (
	ModeDecrypted Mode = "decrypted"
	ModeTunnel    Mode = "tunnel"
	ModeNone      Mode = "none"
)

// Verdict is what the policy said.
type Verdict string

// The verdicts. A record without one is about something nobody judged, a DNS question or the log itself.
const (
	VerdictAllow     Verdict = "allow"
	VerdictDeny      Verdict = "deny"
	VerdictWouldDeny Verdict = "would_deny"
	VerdictHeld      Verdict = "held"
)

// Reasons that the log itself gives or looks for. The full list is policy's, and CONTRACT.md's.
const (
	reasonLimit             = "limit"
	reasonDummyElsewhere    = "dummy_elsewhere"
	reasonCredentialIssuing = "credential_issuing"
	reasonRedacted          = "redacted"
)

// Int is a number that may be unknown. The zero Int is.
type Int struct {
	n     int64
	known bool
}

// N returns a known number.
func N(n int64) Int { return Int{n, true} }

// Get returns the number and whether it is known.
func (i Int) Get() (int64, bool) { return i.n, i.known }

// IsZero tells that the number is unknown.
func (i Int) IsZero() bool { return !i.known }

// MarshalJSON writes the number, or null.
func (i Int) MarshalJSON() ([]byte, error) {
	if !i.known {
		return []byte("null"), nil
	}
	return json.Marshal(i.n)
}

// UnmarshalJSON reads a number or null.
func (i *Int) UnmarshalJSON(b []byte) error {
	var n *int64
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("number: %w", err)
	}
	*i = Int{}
	if n != nil {
		*i = N(*n)
	}
	return nil
}

// Process is who opened the connection, in the box's own numbers and words.
type Process struct {
	PID int    `json:"pid"`
	Exe string `json:"exe"`
	Cmd string `json:"cmd"`
}

// Record is one line of the log: one request, tunnel, DNS question or refused packet, with its outcome. A zero field is unknown
// and is left out.
type Record struct {
	TS          time.Time `json:"ts"` // kept to the millisecond, UTC
	ID          string    `json:"id,omitempty"`
	Box         string    `json:"box,omitempty"`
	Via         Via       `json:"via,omitempty"`
	Process     *Process  `json:"process"` // null: unknown
	Host        string    `json:"host,omitempty"`
	Port        uint16    `json:"port,omitempty"`
	Scheme      string    `json:"scheme,omitempty"`
	Method      string    `json:"method,omitempty"`
	Path        string    `json:"path,omitempty"` // with the query, whose secret-looking values the log redacts
	Proto       Proto     `json:"proto,omitempty"`
	Mode        Mode      `json:"mode,omitempty"`
	Verdict     Verdict   `json:"verdict,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	Rule        string    `json:"rule,omitempty"`
	Status      int       `json:"status,omitempty"`
	Error       string    `json:"error,omitempty"`
	Upstream    string    `json:"upstream,omitempty"` // the address that was dialled
	ReqBytes    Int       `json:"req_bytes,omitzero"`
	RespBytes   Int       `json:"resp_bytes,omitzero"`
	TTFBMillis  Int       `json:"ttfb_ms,omitzero"`
	Millis      Int       `json:"ms,omitzero"`
	UA          string    `json:"ua,omitempty"`
	Injected    string    `json:"injected,omitempty"` // the rule that put a credential on it
	Replayed    bool      `json:"replayed,omitempty"`
	DeniedTimes int       `json:"denied_times,omitempty"` // the refusals that this line stands for, when not just its own
}

// audited tells the records that audit.jsonl keeps as well: refusals, injections and alerts.
func (r *Record) audited() bool {
	return r.alert() || r.Verdict == VerdictDeny || r.Injected != "" || r.Replayed
}

func (r *Record) alert() bool {
	switch r.Reason {
	case reasonDummyElsewhere, reasonCredentialIssuing, reasonRedacted:
		return true
	}
	return false
}

// Event is a line of audit.jsonl about what the operator did: a grant, its end, a switch.
type Event struct {
	TS      time.Time `json:"ts"`
	Event   string    `json:"event"` // grant, deny, revoke, expire, enforce, learn, …
	Rule    string    `json:"rule,omitempty"`
	Level   string    `json:"level,omitempty"`
	Expires string    `json:"expires,omitempty"`
	Box     string    `json:"box,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Detail  string    `json:"detail,omitempty"`
}
