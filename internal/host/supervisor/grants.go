package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// maxOnce bounds a once grant.
const maxOnce = 24 * time.Hour

func bad(format string, args ...any) error {
	return &control.Error{Code: control.CodeBad, Detail: fmt.Sprintf(format, args...)}
}

// apply renders the store as it is now into what the engine obeys, and makes what is running follow. The last of several
// changes at once renders all of them.
func (s *Supervisor) apply() error { return s.render(false) }

func (s *Supervisor) render(first bool) error {
	s.rendering.Lock()
	defer s.rendering.Unlock()
	cfg := s.cfg.Load()
	out, err := s.grants.File().Render(s.now(), cfg.Tunnels, cfg.InjectHosts())
	if err != nil {
		return err
	}
	if err := s.effective.write(out, first); err != nil {
		if d, ok := errors.AsType[*state.DamagedError](err); ok {
			return &control.Error{Code: control.CodeConflict, Detail: "the change is stored, but " + d.Error(), Hint: "fy supervisor restart"}
		}
		return err
	}
	s.policyChanged()
	return nil
}

// policyChanged makes everything that runs follow the snapshot in force.
func (s *Supervisor) policyChanged() {
	s.engine.Reconsider()
	s.asks.reconsider(s.settle)
	snap, now := s.effective.Snapshot(), s.now()
	for _, b := range s.running() {
		b.setGranted(s.redirected(snap.GrantedPrefixes(b.id, now)))
	}
	select {
	case s.rearm <- struct{}{}: // the next expiry may be another one now
	default:
	}
}

// entries turns a request into entries of the store.
func (s *Supervisor) entries(q control.RuleRequest, deny bool, origin string) ([]state.Grant, []string, error) {
	if len(q.Rules) == 0 {
		return nil, nil, bad("no rule given")
	}
	now := s.now()
	level := cmp.Or(q.Level, state.Session)
	var expires *time.Time
	switch {
	case level != state.Once && level != state.Session && level != state.Permanent:
		return nil, nil, bad("level %q: want once, session or permanent", level)
	case q.TTL != 0 && level != state.Once:
		return nil, nil, bad("a ttl goes with level once")
	case level == state.Once:
		ttl := cmp.Or(time.Duration(q.TTL), state.DefaultOnce)
		if ttl < 0 || ttl > maxOnce {
			return nil, nil, bad("ttl %s: want up to %s", ttl, maxOnce)
		}
		end := now.Add(ttl)
		expires = &end
	}
	if q.Box != "" && s.box(q.Box) == nil {
		return nil, nil, &control.Error{Code: control.CodeNotFound, Detail: fmt.Sprintf("no box %q runs", q.Box)}
	}
	var out []state.Grant
	var notes []string
	for _, text := range q.Rules {
		r, err := policy.ParseRule(text)
		if err != nil {
			return nil, nil, bad("%v", err)
		}
		if !deny && r.Wide() && !q.Yes {
			return nil, nil, &control.Error{Code: control.CodeConfirm, Detail: fmt.Sprintf("rule %s covers names that anybody can register", r), Hint: "grant the one host you mean, or add --yes"}
		}
		if !deny && r.NeedsIntercept() {
			if p := s.conflicting(r); p != "" {
				return nil, nil, &control.Error{Code: control.CodeConflict, Detail: fmt.Sprintf("rule %s needs decryption, but passthrough %s tunnels that host", r, p), Hint: "grant the host alone, or take it out of [proxy] passthrough"}
			}
		}
		if q.Internal && deny {
			return nil, nil, bad("internal goes with allow")
		}
		out = append(out, state.Grant{Rule: r.String(), Deny: deny, Level: level, Expires: expires, Internal: q.Internal, Reason: q.Reason, Origin: origin, Added: now, Box: q.Box})
	}
	return out, notes, nil
}

// conflicting names the passthrough entry that covers a rule which needs decryption, if one does.
func (s *Supervisor) conflicting(r policy.Rule) string {
	for _, text := range s.cfg.Load().Tunnels {
		if p, err := policy.ParseRule(text); err == nil && p.Overlaps(r) {
			return text
		}
	}
	return ""
}

func (s *Supervisor) add(ctx context.Context, q control.RuleRequest, deny bool, origin string) (control.Changed, error) {
	entries, notes, err := s.entries(q, deny, origin)
	if err != nil {
		return control.Changed{}, err
	}
	f, err := s.grants.Add(ctx, s.now(), entries...)
	if err != nil {
		return control.Changed{}, storeError(err)
	}
	out := control.Changed{Generation: f.Generation, Notes: notes}
	for _, e := range entries {
		out.Rules = append(out.Rules, shown(e))
	}
	s.auditRules("grant", entries)
	if !s.snapshotEnforces() {
		out.Notes = append(out.Notes, "the allowlist does not enforce now: fy enforce on")
	}
	if !deny {
		out.Notes = append(out.Notes, s.stillDenied(f, entries)...)
	}
	return out, s.apply()
}

// stillDenied tells which of the new grants meet a rule that refuses.
func (s *Supervisor) stillDenied(f state.GrantFile, entries []state.Grant) []string {
	var notes []string
	for _, g := range f.Grants {
		no, err := policy.ParseRule(g.Rule)
		if !g.Deny || g.Expired(s.now()) || err != nil {
			continue
		}
		for _, e := range entries {
			if r, err := policy.ParseRule(e.Rule); err == nil && no.Overlaps(r) {
				notes = append(notes, fmt.Sprintf("%s is denied, and what it covers of %s stays refused: fy revoke takes both away", g.Rule, e.Rule))
			}
		}
	}
	return notes
}

// auditRules writes entries that came into the store to the audit log.
func (s *Supervisor) auditRules(event string, entries []state.Grant) {
	for _, e := range entries {
		ev := &capture.Event{Event: event, Rule: e.Rule, Level: e.Level, Box: e.Box, Reason: e.Reason, Detail: e.Origin}
		if e.Deny {
			ev.Event = "deny"
		}
		if e.Expires != nil {
			ev.Expires = e.Expires.UTC().Format(time.RFC3339)
		}
		s.capture.Audit(ev)
	}
}

// storeError gives a damaged store the shape of a refusal with a way on.
func storeError(err error) error {
	if d, ok := errors.AsType[*state.DamagedError](err); ok {
		return &control.Error{Code: control.CodeConflict, Detail: d.Error(), Hint: "repair it or move it away, then: fy supervisor restart"}
	}
	return err
}

// Allow grants rules.
func (s *Supervisor) Allow(ctx context.Context, q control.RuleRequest) (control.Changed, error) {
	return s.add(ctx, q, false, "fy allow")
}

// Deny refuses rules, whatever allows them.
func (s *Supervisor) Deny(ctx context.Context, q control.RuleRequest) (control.Changed, error) {
	return s.add(ctx, q, true, "fy deny")
}

// Revoke removes rules.
func (s *Supervisor) Revoke(ctx context.Context, q control.RuleRequest) (control.Changed, error) {
	var rules []string
	for _, text := range q.Rules {
		r, err := policy.ParseRule(text)
		if err != nil {
			return control.Changed{}, bad("%v", err)
		}
		rules = append(rules, r.String())
	}
	f, err := s.grants.Revoke(ctx, q.Box, rules...)
	if errors.Is(err, state.ErrNoGrant) {
		return control.Changed{}, &control.Error{Code: control.CodeNotFound, Detail: err.Error(), Hint: "fy grants lists what there is"}
	}
	if err != nil {
		return control.Changed{}, storeError(err)
	}
	out := control.Changed{Generation: f.Generation}
	for _, r := range rules {
		out.Rules = append(out.Rules, control.Grant{Rule: r})
		s.capture.Audit(&capture.Event{Event: "revoke", Rule: r, Box: q.Box})
	}
	return out, s.apply()
}

// Grants lists the store's live entries, newest last.
func (s *Supervisor) Grants(ctx context.Context) ([]control.Grant, error) {
	s.flushCounts(ctx)
	now := s.now()
	out := []control.Grant{}
	for _, g := range s.grants.File().Grants {
		if !g.Expired(now) {
			out = append(out, shown(g))
		}
	}
	return out, nil
}

func shown(g state.Grant) control.Grant {
	return control.Grant{Rule: g.Rule, Level: g.Level, Expires: g.Expires, Internal: g.Internal, Reason: g.Reason, Origin: g.Origin, Added: g.Added.UTC(), Hits: int64(min(g.Hits, 1<<62)), Box: g.Box, Deny: g.Deny}
}

// Enforce switches the allowlist.
func (s *Supervisor) Enforce(ctx context.Context, q control.EnforceRequest) (control.Changed, error) {
	to := state.EnforceOff
	if q.On {
		to = state.EnforceOn
	}
	f, err := s.grants.SetEnforce(ctx, to, time.Time{})
	if err != nil {
		return control.Changed{}, storeError(err)
	}
	s.audit("enforce", to)
	return control.Changed{Generation: f.Generation}, s.apply()
}

// Learn opens a window in which everything public is let through and noted.
func (s *Supervisor) Learn(ctx context.Context, q control.LearnRequest) (control.Learning, error) {
	d := time.Duration(q.For)
	if d <= 0 || d > 24*time.Hour {
		return control.Learning{}, bad("learn for %s: want up to 24h", d)
	}
	end := s.now().Add(d)
	f, err := s.grants.SetEnforce(ctx, state.EnforceLearn, end)
	if err != nil {
		return control.Learning{}, storeError(err)
	}
	s.audit("learn", "until "+end.UTC().Format(time.RFC3339))
	return s.learning(f), s.apply()
}

// Learning tells whether a window is open, and what was learnt.
func (s *Supervisor) Learning(ctx context.Context) (control.Learning, error) {
	s.flushCounts(ctx)
	return s.learning(s.grants.File()), nil
}

func (s *Supervisor) learning(f state.GrantFile) control.Learning {
	out := control.Learning{Learnt: []control.Learnt{}}
	if f.LearnUntil != nil && !f.Enforcing(s.now()) {
		out.Until = f.LearnUntil
	}
	for _, l := range f.Learned {
		out.Learnt = append(out.Learnt, control.Learnt{Rule: l.Rule, Count: int64(min(l.Count, 1<<62))})
	}
	return out
}

// Review shows what was learnt; with Yes all of it is granted.
func (s *Supervisor) Review(ctx context.Context, q control.ReviewRequest) (control.Learning, error) {
	s.flushCounts(ctx)
	before := s.learning(s.grants.File())
	if !q.Yes || len(before.Learnt) == 0 {
		return before, nil
	}
	var rules []string
	for _, l := range before.Learnt {
		rules = append(rules, l.Rule)
	}
	got, err := s.add(ctx, control.RuleRequest{Rules: rules, Level: cmp.Or(q.Level, state.Permanent), TTL: q.TTL, Yes: true}, false, "fy learn review")
	if err != nil {
		return control.Learning{}, err
	}
	out := s.learning(s.grants.File())
	for _, g := range got.Rules {
		out.Granted = append(out.Granted, g.Rule)
	}
	slices.Sort(out.Granted)
	return out, nil
}
