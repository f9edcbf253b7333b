package proxy

import (
	"context"
	"net/http"
	"strings"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// asked is one request as it is judged, and then sent.
type asked struct {
	method string
	target dest.Target
	scheme connect.Scheme
	path   string // with the query, byte for byte
	tls    bool   // upstream
}

func (a *asked) policyScheme() policy.Scheme {
	if a.scheme == connect.SchemeHTTPS {
		return policy.SchemeHTTPS
	}
	return policy.SchemeHTTP
}

// place takes the request target apart and holds it against what the
// connection is for. host is Host or :authority; bound is the connection's
// target, zero on the proxy port, where each request names its own.
func place(method, target, host string, scheme connect.Scheme, bound dest.Target) (asked, *denial) {
	a := asked{method: method, target: bound, scheme: scheme}
	f, err := connect.Parse(method, target)
	if err != nil {
		return a, malformed(http.StatusBadRequest, policy.ReasonBadRequest, reasonOf(err))
	}
	a.path = f.Path
	if bound.IsZero() {
		if f.Scheme == connect.SchemeNone {
			d := malformed(http.StatusBadRequest, policy.ReasonBadRequest, "this is a proxy: a request must name its host")
			d.fix = "set it as a proxy, or connect to the host itself"
			return a, d
		}
		a.scheme = f.Scheme
		if a.target, err = dest.ParseAuthority(f.Authority, f.Scheme.Default()); err != nil {
			return a, badTarget(err)
		}
		if synthetic(a.target) {
			return a, malformed(http.StatusBadRequest, policy.ReasonBadTarget, "a synthetic address is no host: ask for the name")
		}
	} else if f.Scheme != connect.SchemeNone {
		t, err := dest.ParseAuthority(f.Authority, f.Scheme.Default())
		if err != nil {
			return a, badTarget(err)
		}
		if t != bound || f.Scheme != scheme {
			return a, misaligned(bound, "request target", f.Authority)
		}
	}
	if host == "" && f.Scheme != connect.SchemeNone {
		return a, nil // HTTP/1.0
	}
	if !named(host, a.target) {
		return a, misaligned(a.target, "Host", host)
	}
	return a, nil
}

// named reports whether a Host or :authority names t. One without a port
// means the connection's.
func named(host string, t dest.Target) bool {
	if host == t.Host.Name() && host != "" {
		return true
	}
	h, err := dest.ParseAuthority(host, t.Port)
	return err == nil && h == t
}

func synthetic(t dest.Target) bool {
	a := t.Host.Addr()
	return t.Host.IsIP() && (dest.SyntheticV4().Contains(a) || dest.SyntheticV6().Contains(a))
}

func badTarget(err error) *denial {
	d := malformed(http.StatusBadRequest, policy.ReasonBadTarget, "the target is not a canonical host and port")
	d.detail = err.Error()
	return d
}

func reasonOf(err error) string {
	return strings.TrimPrefix(err.Error(), "bad proxy request: ")
}

// admit asks policy about a request that was placed, and the operator if
// policy has no answer and requests are held. On nil the activity is for
// begin, with the snapshot that it was judged by.
func (e *Engine) admit(ctx context.Context, c *client, n *note, a *asked) (activity, *policy.Snapshot, *denial) {
	switch a.method {
	case http.MethodConnect:
		d := malformed(http.StatusMethodNotAllowed, policy.ReasonInnerConnect, "CONNECT inside a connection that is already for a host")
		d.target = a.target
		return activity{}, nil, d
	case http.MethodTrace:
		d := malformed(http.StatusMethodNotAllowed, policy.ReasonMethodOrPath, "TRACE would show the box what was added to its request")
		d.target = a.target
		return activity{}, nil, d
	}
	act := activity{kind: request}
	act.query = policy.Query{Box: c.box.ID, Target: a.target, Scheme: a.policyScheme(), Method: a.method, Now: e.cfg.Now()}
	snap := e.cfg.Policy()
	path, err := policy.NormalPath(a.path)
	if err != nil {
		if snap.JudgesPath(a.target.Host, c.box.ID, act.query.Now) {
			d := malformed(http.StatusBadRequest, policy.ReasonBadRequest, reasonOf(err))
			d.target, d.close = a.target, false
			return activity{}, nil, d
		}
		path = "" // no rule needs it
	}
	act.query.Path = path
	act.decision = snap.Request(act.query)
	if act.decision.Verdict == policy.Refuse && act.decision.Reason == policy.ReasonNotGranted && e.cfg.Hold != nil {
		clean, _, _ := strings.Cut(a.path, "?")
		ask := Ask{Box: c.box.ID, Target: a.target, Scheme: a.scheme.String(), Method: a.method, Path: clean, Process: c.owner()}
		if act.decision.Reason = e.hold(ctx, c, ask); act.decision.Reason == "" {
			snap = e.cfg.Policy()
			act.query.Now = e.cfg.Now()
			act.decision = snap.Request(act.query)
		}
	}
	n.decided(act.decision)
	if act.decision.Verdict == policy.Refuse {
		return act, snap, denied(act.decision, a.target)
	}
	n.Mode = capture.ModeDecrypted
	return act, snap, nil
}

// controlled reports whether t is the supervisor's own name.
func (e *Engine) controlled(t dest.Target) bool {
	return e.cfg.Control != nil && t.Host.Name() == dest.ControlName && (t.Port == 80 || t.Port == 443) || e.cfg.Inject.Local(t) != nil
}

func (c *client) controlled() bool { return c.e.controlled(c.target) }
