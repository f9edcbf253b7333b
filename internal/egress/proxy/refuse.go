package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// denial is a refusal in its one shape, whatever the protocol. Of the box's
// own text it holds nothing but a canonical target.
type denial struct {
	status  int
	reason  policy.Reason
	err     string      // the error type of RFC 9209, 2.3
	what    string      // what was refused, one line
	fix     string      // the command that permits it, or what else to do
	detail  string      // for the record only
	target  dest.Target // zero: never known
	close   bool        // the connection is out of step or not to be trusted
	connect bool        // answers a CONNECT: the reason goes in the status line
	sent    bool        // some of it had gone upstream by then
}

// upstream reports whether it was upstream's failure and not a refusal.
func (d *denial) upstream() bool {
	return d.reason == policy.ReasonUpstreamUnreachable || d.reason == policy.ReasonUpstreamTLS
}

// denied is the refusal of a policy decision.
func denied(d policy.Decision, t dest.Target) *denial {
	out := &denial{status: http.StatusForbidden, reason: d.Reason, err: "http_request_denied", target: t}
	name := t.String()
	switch d.Reason {
	case policy.ReasonNotGranted:
		out.what, out.fix = name+" is not granted", AllowCommand(t)
	case policy.ReasonHeldTimeout:
		out.what, out.fix = name+" is not granted, and nobody answered in time", AllowCommand(t)
	case policy.ReasonDeniedRule:
		out.what, out.fix = name+" is denied by a rule", whyCommand(t)
	case policy.ReasonMethodOrPath:
		out.what, out.fix = name+" is granted, but not with this method or path", whyCommand(t)
	case policy.ReasonPolicyUnreadable:
		out.what, out.fix = "the policy cannot be read, so everything is refused", "fy supervisor restart"
		out.err = "proxy_configuration_error"
	case policy.ReasonBadTarget:
		out.status, out.what = http.StatusBadRequest, "the target is not one"
		out.err = "http_request_error"
	default:
		out.reason = policy.ReasonNotGranted
		out.what, out.fix = name+" is not granted", AllowCommand(t)
	}
	return out
}

// malformed is the refusal of something that is no request.
func malformed(status int, reason policy.Reason, what string) *denial {
	return &denial{status: status, reason: reason, err: "http_request_error", what: what, detail: what, close: true}
}

// crowded is the refusal of a request beyond what a box may have in flight.
func crowded(t dest.Target) *denial {
	return &denial{
		status: http.StatusServiceUnavailable, reason: policy.ReasonLimit, err: "connection_limit_reached", target: t,
		what: "this box has too many requests in flight", fix: "try again when some have ended; fy status shows the limits",
		detail: "too many requests in flight",
	}
}

// misaligned is the refusal of a request that names two targets.
func misaligned(t dest.Target, what, other string) *denial {
	return &denial{
		status: http.StatusMisdirectedRequest, reason: policy.ReasonMisaligned, err: "http_request_denied", target: t, close: true,
		what:   fmt.Sprintf("this connection is for %s, but its %s names another host", t, what),
		fix:    "ask for one host per connection",
		detail: fmt.Sprintf("%s %q", what, cutText(other)),
	}
}

func cutText(s string) string {
	if len(s) > 255 {
		return s[:255] + "…"
	}
	return s
}

// AllowCommand is the command that permits t, "" when none does.
func AllowCommand(t dest.Target) string {
	switch internal, ok := dialer.Opens(t); {
	case !ok:
		return ""
	case internal:
		return InternalCommand(t)
	}
	return "fy allow " + quote(RuleFor(t))
}

// InternalCommand is the command that permits t wherever it leads.
func InternalCommand(t dest.Target) string { return "fy allow " + quote(t.String()) + " --internal" }

func whyCommand(t dest.Target) string { return "fy why " + quote(RuleFor(t)) }

// RuleFor is the narrowest plain rule that permits t.
func RuleFor(t dest.Target) string {
	if t.Port == 443 || t.Port == 80 {
		return t.Host.String()
	}
	return t.String()
}

// quote quotes for a shell what is not safe in all of them.
func quote(s string) string {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' || c == ':' {
			continue
		}
		return "'" + s + "'" // canonical targets hold no quote
	}
	return s
}

// accept is what an Accept header says about the shape of a refusal.
type accept bool

const (
	acceptAny  accept = false
	acceptJSON accept = true
)

func acceptOf(value string) accept {
	return accept(strings.Contains(value, "json"))
}

func (d *denial) body(as accept) (contentType, body string) {
	log := "fy log --denied"
	if d.upstream() {
		log = "fy log"
	}
	if as == acceptJSON {
		b, err := json.Marshal(map[string]string{
			"error": string(d.reason), "target": d.targetText(), "message": d.what, "fix": d.fix, "logged": log,
		})
		if err == nil {
			return "application/json", string(b) + "\n"
		}
	}
	fix := d.fix
	if strings.HasPrefix(fix, "fy ") {
		fix = "permit or explain it, outside the box: " + fix
	}
	if fix == "" {
		fix = "no grant permits this"
	}
	return "text/plain; charset=utf-8", "foldyard: " + d.what + " (" + string(d.reason) + ")\n" + fix + "\nlogged: " + log + "\n"
}

func (d *denial) targetText() string {
	if d.target.IsZero() {
		return ""
	}
	return d.target.String()
}

// proxyStatus is the field of RFC 9209. what is ASCII without quotes.
func (d *denial) proxyStatus() string {
	return `foldyard; error=` + d.err + `; details="` + strings.NewReplacer(`"`, "", `\`, "").Replace(d.what) + `"`
}

func (d *denial) header(contentType string) http1.Header {
	h := http1.Header{
		{Name: "Content-Type", Value: contentType},
		{Name: "Proxy-Status", Value: d.proxyStatus()},
		{Name: "Foldyard-Reason", Value: string(d.reason)},
		{Name: "X-Content-Type-Options", Value: "nosniff"},
		{Name: "Cache-Control", Value: "no-store"},
	}
	if d.status == http.StatusProxyAuthRequired {
		h = append(h, http1.Field{Name: "Proxy-Authenticate", Value: `Basic realm="foldyard"`})
	}
	return h
}

// write sends the refusal as an HTTP/1.1 response that ends the connection.
func (d *denial) write(w io.Writer, as accept) error {
	bw := writers.get(w)
	defer writers.put(bw)
	return d.respond(bw, as, false, true)
}

// respond writes the refusal and flushes it.
func (d *denial) respond(bw *bufio.Writer, as accept, head, closing bool) error {
	contentType, body := d.body(as)
	r := http1.Response{
		Minor: 1, Status: d.status, Text: http.StatusText(d.status),
		Header: d.header(contentType), Length: int64(len(body)), Close: closing,
	}
	if d.connect {
		r.Text = string(d.reason)
	}
	if head {
		r.NoBody = true
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if err := r.WriteHead(bw); err != nil {
		return fmt.Errorf("write refusal: %w", err)
	}
	if !head {
		_, _ = bw.WriteString(body) // errors are sticky
	}
	if err := bw.Flush(); err != nil {
		return fmt.Errorf("write refusal: %w", err)
	}
	return nil
}

// ServeHTTP sends the refusal as an HTTP/2 response.
func (d *denial) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	contentType, body := d.body(acceptOf(r.Header.Get("Accept")))
	for _, f := range d.header(contentType) {
		w.Header().Set(f.Name, f.Value)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(d.status)
	_, _ = io.WriteString(w, body) // it may be gone: the record says what matters
}

// socks is the reply of RFC 1928 that comes nearest.
func (d *denial) socks() connect.Reply {
	switch d.err {
	case "dns_error", "destination_ip_unroutable":
		return connect.HostUnreachable
	case "connection_refused":
		return connect.ConnectionRefused
	case "connection_timeout":
		return connect.TTLExpired
	}
	if d.upstream() || d.reason == policy.ReasonLimit {
		return connect.Failed
	}
	return connect.NotAllowed
}
