package supervisor

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// query asks the policy about a target as it is now.
func (s *Supervisor) query(box string, t dest.Target) policy.Query {
	return policy.Query{Box: box, Target: t, Now: s.now()}
}

// Why tells what would happen to a request. It resolves nothing: that a granted name resolves to an address that is refused
// shows only when it is dialled.
func (s *Supervisor) Why(_ context.Context, q control.WhyRequest) (control.Why, error) {
	pq, shown, err := parseWhy(q)
	if err != nil {
		return control.Why{}, bad("%v", err)
	}
	pq.Box, pq.Now = q.Box, s.now()
	snap := s.effective.Snapshot()
	d := snap.Connect(pq)
	if d.Verdict.Permits() && d.Mode == policy.Intercept && pq.Scheme != policy.SchemeUnknown {
		r := snap.Request(pq)
		r.Mode = d.Mode
		d = r
	}
	out := control.Why{Verdict: d.Verdict.String(), Rule: d.Rule, Reason: string(d.Reason), Target: shown, Origin: s.origin(d.Rule, q.Box)}
	out.Credential = s.wouldCarry(pq, d)
	switch {
	case d.Verdict == policy.Allow:
		out.Fix = "fy revoke " + control.ShellQuote(d.Rule)
		out.Mode = how(d)
	case d.Verdict == policy.WouldDeny:
		out.Fix = proxy.AllowCommand(pq.Target)
		out.Mode = how(d)
		out.Note = "the allowlist does not enforce now: fy enforce on"
	case d.Reason == policy.ReasonDeniedRule:
		out.Fix = "fy revoke " + control.ShellQuote(d.Rule)
	case d.Reason == policy.ReasonPolicyUnreadable:
		out.Fix = "fy supervisor restart"
		if f := s.effective.Fault(); f != nil {
			out.Note = f.Error()
		}
	default:
		out.Fix = proxy.AllowCommand(pq.Target)
	}
	if d.Verdict.Permits() && !d.Internal {
		if internal, ok := dialer.Opens(pq.Target); internal || !ok {
			out.Verdict, out.Reason, out.Mode = policy.Refuse.String(), string(policy.ReasonAddressClass), ""
			out.Fix = proxy.AllowCommand(pq.Target)
			out.Note = "the rule lets it through, and it is refused when it is dialled: the address is not public"
			if !ok {
				out.Note += ", and no grant opens one of its kind"
			}
		}
	}
	if d.Verdict.Permits() && s.proxied(pq.Target) {
		out.Note = join(out.Note, proxyNote)
	}
	if !d.Expires.IsZero() {
		out.Note = join(out.Note, "ends "+d.Expires.UTC().Format("2006-01-02 15:04:05Z"))
	}
	if d.Mode == policy.Tunnel && d.Verdict.Permits() {
		out.Note = join(out.Note, "not decrypted: what happens inside the tunnel, another host behind the same front included, is not seen")
	}
	return out, nil
}

const proxyNote = "the upstream proxy resolves names: which addresses they lead to is its to judge"

// proxied reports whether the operator's upstream proxy is asked for t.
func (s *Supervisor) proxied(t dest.Target) bool {
	if s.upstream == nil {
		return false
	}
	u, err := s.upstream(t)
	return err == nil && u != nil
}

func how(d policy.Decision) string {
	mode := "decrypted and logged"
	if d.Mode == policy.Tunnel {
		mode = "tunnelled (passthrough)"
	}
	if d.Internal {
		mode += ", private addresses too"
	}
	return mode
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// parseWhy reads a URL or HOST[:PORT].
func parseWhy(q control.WhyRequest) (policy.Query, string, error) {
	method := strings.ToUpper(q.Method)
	if method == "" {
		method = "GET"
	}
	if !strings.Contains(q.Target, "://") {
		t, err := dest.ParseAuthority(strings.TrimSuffix(q.Target, "/"), 443)
		pq := policy.Query{Target: t}
		if q.Method != "" {
			pq.Method, pq.Path, pq.Scheme = method, "/", policy.SchemeHTTPS
			if t.Port == 80 {
				pq.Scheme = policy.SchemeHTTP
			}
		}
		return pq, t.String(), err
	}
	u, err := url.Parse(q.Target)
	if err != nil {
		return policy.Query{}, "", fmt.Errorf("target %q is no URL", q.Target)
	}
	pq := policy.Query{Method: method}
	port := uint16(443)
	switch u.Scheme {
	case "https", "wss":
		pq.Scheme = policy.SchemeHTTPS
	case "http", "ws":
		pq.Scheme, port = policy.SchemeHTTP, 80
	default:
		return policy.Query{}, "", fmt.Errorf("scheme %q: want https or http, or HOST:PORT", u.Scheme)
	}
	if u.User != nil {
		return policy.Query{}, "", fmt.Errorf("target holds a user name")
	}
	if pq.Target, err = dest.ParseAuthority(u.Host, port); err != nil {
		return policy.Query{}, "", err
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	if pq.Path, err = policy.NormalPath(path); err != nil {
		return policy.Query{}, "", fmt.Errorf("path %q: %w", path, err)
	}
	return pq, method + " " + u.Scheme + "://" + pq.Target.String() + pq.Path, nil
}

// origin says where a rule came from.
func (s *Supervisor) origin(rule, box string) string {
	if rule == "" {
		return ""
	}
	var best *state.Grant
	for _, g := range s.grants.File().Grants {
		if g.Rule == rule && (g.Box == "" || g.Box == box) && !g.Expired(s.now()) {
			best = &g
		}
	}
	if best == nil {
		return ""
	}
	out := fmt.Sprintf("%s, %s, %s", best.Origin, best.Level, best.Added.UTC().Format("2006-01-02 15:04Z"))
	if best.Reason != "" {
		out += ": " + best.Reason
	}
	return out
}
