package policy

import (
	"net/netip"
	"slices"
	"time"

	"foldyard/internal/egress/dest"
)

// Snapshot is one generation of the policy, compiled. It never changes and may
// be used by any number of goroutines. A nil or zero Snapshot refuses all.
type Snapshot struct {
	readable    bool
	generation  uint64
	enforce     bool
	learnUntil  time.Time
	allow, deny index
	passthrough index
	intercept   index
}

// Unreadable returns the snapshot of a policy that is missing, empty or
// damaged: it refuses all with ReasonPolicyUnreadable.
func Unreadable() *Snapshot { return &Snapshot{} }

// Readable reports whether s came from a whole file.
func (s *Snapshot) Readable() bool { return s != nil && s.readable }

// Generation returns the generation of the file; 0 when unreadable.
func (s *Snapshot) Generation() uint64 {
	if s == nil {
		return 0
	}
	return s.generation
}

// Enforcing reports whether what is not granted is refused. A learning window
// that has ended enforces.
func (s *Snapshot) Enforcing(now time.Time) bool {
	if !s.Readable() || s.enforce {
		return true
	}
	return !s.learnUntil.IsZero() && !now.Before(s.learnUntil)
}

// Connect judges host and port, when neither method nor path is known. It
// allows when some grant could allow a request; Request then judges each. The
// mode is Tunnel only for a passthrough target that a grant without method and
// path covers, and of which nothing more has to be seen.
func (s *Snapshot) Connect(q Query) Decision {
	if d, bad := s.unjudgeable(q); bad {
		return d
	}
	denied, veiled := s.deniedConnect(q)
	if denied != nil {
		return refused(ReasonDeniedRule, denied)
	}
	var best *entry
	whole := false // some grant needs nothing decrypted
	s.allow.visit(q.Target.Host, func(e *entry) bool {
		r := &e.rule
		if !e.live(q.Box, q.Now) || !r.grantsPort(q.Target.Port) || !r.couldBe(q.Scheme) {
			return true
		}
		if q.Scheme == SchemeRaw && r.NeedsIntercept() {
			return true
		}
		best = better(best, e)
		whole = whole || !r.NeedsIntercept() && r.scheme != SchemeHTTP
		return true
	})
	d := allowed(best)
	if best == nil {
		if s.Enforcing(q.Now) {
			return refused(ReasonNotGranted, nil)
		}
		d = Decision{Verdict: WouldDeny, Reason: ReasonNotGranted}
		whole = !s.judgesMore(q.Target.Host, q.Box, q.Now)
	}
	if whole && !veiled && s.passes(q.Target) && !s.intercepts(q.Target.Host) {
		d.Mode = Tunnel
	}
	return d
}

// Request judges a request whose method and path are known. A path of "" is
// unknown: no grant with a path covers it, every denial with one does.
func (s *Snapshot) Request(q Query) Decision {
	if d, bad := s.unjudgeable(q); bad {
		return d
	}
	if e := s.deniedRequest(q); e != nil {
		return refused(ReasonDeniedRule, e)
	}
	var best *entry
	reason := ReasonNotGranted
	s.allow.visit(q.Target.Host, func(e *entry) bool {
		r := &e.rule
		if !e.live(q.Box, q.Now) || !r.grantsPort(q.Target.Port) || r.scheme != SchemeUnknown && r.scheme != q.Scheme {
			return true
		}
		if !r.hasMethod(q.Method, false) || r.path != "" && (q.Path == "" || !match(r.path, q.Path)) {
			reason = ReasonMethodOrPath
			return true
		}
		best = better(best, e)
		return true
	})
	switch {
	case best != nil:
		return allowed(best)
	case s.Enforcing(q.Now):
		return refused(reason, nil)
	}
	return Decision{Verdict: WouldDeny, Reason: reason}
}

// RawFallback reports whether bytes that are neither TLS nor HTTP may be
// tunnelled to q's target: a grant without method, path and scheme names the
// port (HOST:5432 or HOST:*), the port is not 443 or 80, and nothing about the
// host has to be seen decrypted.
func (s *Snapshot) RawFallback(q Query) bool {
	q.Scheme = SchemeRaw
	if q.Target.Port == 443 || q.Target.Port == 80 {
		return false
	}
	return s.Connect(q).Verdict.Permits() && !s.judgesMore(q.Target.Host, q.Box, q.Now) && !s.intercepts(q.Target.Host)
}

// JudgesPath reports whether some live rule of the host, on whatever port, has
// a path: then a path that NormalPath refuses is a bad request.
func (s *Snapshot) JudgesPath(h dest.Host, box string, now time.Time) bool {
	return s.has(h, box, now, func(r *Rule) bool { return r.path != "" })
}

// judgesMore reports whether some live rule of the host needs decryption.
func (s *Snapshot) judgesMore(h dest.Host, box string, now time.Time) bool {
	return s.has(h, box, now, func(r *Rule) bool { return r.NeedsIntercept() })
}

func (s *Snapshot) has(h dest.Host, box string, now time.Time, want func(*Rule) bool) bool {
	if !s.Readable() {
		return false
	}
	found := false
	look := func(e *entry) bool {
		found = found || e.live(box, now) && want(&e.rule)
		return !found
	}
	s.allow.visit(h, look)
	s.deny.visit(h, look)
	return found
}

// Granted reports whether a live grant names the host, whatever the port; DNS
// keeps an address for it.
func (s *Snapshot) Granted(h dest.Host, box string, now time.Time) bool {
	if !s.Readable() {
		return false
	}
	found := false
	s.allow.visit(h, func(e *entry) bool {
		found = e.live(box, now)
		return !found
	})
	return found
}

// GrantedPrefixes returns the raw addresses that the wall redirects for the
// box, sorted and without overlap: its live IP and CIDR grants, or all
// addresses when not enforcing. The port is judged by Connect.
func (s *Snapshot) GrantedPrefixes(box string, now time.Time) []netip.Prefix {
	if !s.Readable() {
		return nil
	}
	if !s.Enforcing(now) {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	var all []netip.Prefix
	live := func(e *entry) bool { return e.live(box, now) }
	for a, es := range s.allow.addrs {
		if slices.ContainsFunc(es, func(e entry) bool { return live(&e) }) {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for p, es := range s.allow.prefixes {
		if slices.ContainsFunc(es, func(e entry) bool { return live(&e) }) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	out := all[:0]
	for _, p := range all {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// NextChange returns the first time after now at which an entry expires or the
// learning window ends.
func (s *Snapshot) NextChange(now time.Time) (time.Time, bool) {
	var next time.Time
	if !s.Readable() {
		return next, false
	}
	see := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !s.enforce {
		see(s.learnUntil)
	}
	for _, x := range []*index{&s.allow, &s.deny} {
		x.all(func(e *entry) { see(e.expires) })
	}
	return next, !next.IsZero()
}

func (s *Snapshot) unjudgeable(q Query) (Decision, bool) {
	switch {
	case !s.Readable():
		return refused(ReasonPolicyUnreadable, nil), true
	case q.Target.Host.IsZero() || q.Target.Port == 0:
		return refused(ReasonBadTarget, nil), true
	}
	return Decision{}, false
}

// deniedConnect returns the denial that holds for every request to the target,
// or tells that one may hold for some of them.
func (s *Snapshot) deniedConnect(q Query) (denied *entry, veiled bool) {
	s.deny.visit(q.Target.Host, func(e *entry) bool {
		r := &e.rule
		switch {
		case !e.live(q.Box, q.Now) || !r.deniesPort(q.Target.Port) || !r.couldBe(q.Scheme):
		case r.NeedsIntercept() || r.scheme != SchemeUnknown && q.Scheme == SchemeUnknown:
			veiled = true
		default:
			denied = e
		}
		return denied == nil
	})
	return denied, veiled
}

func (s *Snapshot) deniedRequest(q Query) *entry {
	var denied *entry
	s.deny.visit(q.Target.Host, func(e *entry) bool {
		r := &e.rule
		if e.live(q.Box, q.Now) && r.deniesPort(q.Target.Port) && r.couldBe(q.Scheme) &&
			r.hasMethod(q.Method, true) && e.deniesPath(q.Path) {
			denied = e
		}
		return denied == nil
	})
	return denied
}

func (e *entry) deniesPath(path string) bool {
	return e.rule.path == "" || path == "" || match(e.rule.path, path) || match(e.wide, liberal(path))
}

// couldBe reports whether traffic of the scheme, which may yet be unknown, can
// fall under r.
func (r *Rule) couldBe(s Scheme) bool {
	return r.scheme == SchemeUnknown || s == SchemeUnknown || r.scheme == s
}

func (s *Snapshot) passes(t dest.Target) bool {
	found := false
	s.passthrough.visit(t.Host, func(e *entry) bool {
		found = e.rule.grantsPort(t.Port)
		return !found
	})
	return found
}

func (s *Snapshot) intercepts(h dest.Host) bool {
	found := false
	s.intercept.visit(h, func(*entry) bool {
		found = true
		return false
	})
	return found
}

// better picks the grant that a decision reports: an internal one before
// others, then the one that lives longest, then the first, which has the most
// specific host.
func better(a, b *entry) *entry {
	switch {
	case a == nil:
		return b
	case a.internal != b.internal:
		if b.internal {
			return b
		}
		return a
	case b.level > a.level:
		return b
	case b.level == a.level && !a.expires.IsZero() && (b.expires.IsZero() || b.expires.After(a.expires)):
		return b
	}
	return a
}

func allowed(e *entry) Decision {
	if e == nil {
		return Decision{}
	}
	return Decision{Verdict: Allow, Rule: e.text, Level: e.level, Internal: e.internal, Expires: e.expires}
}

func refused(why Reason, e *entry) Decision {
	d := Decision{Verdict: Refuse, Reason: why}
	if e != nil {
		d.Rule, d.Expires = e.text, e.expires
	}
	return d
}
