package inject

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// Request is the head of a request that policy let through and whose names
// agree: CONNECT, SNI and Host.
type Request struct {
	Box     string
	Target  dest.Target
	TLS     bool // goes out over TLS whose certificate is verified for Target
	Granted bool // a grant permits it: not merely a policy that does not enforce
	Method  string
	Host    string // as it is sent on
	Path    string // as sent, with the query
	Header  Header // of the request; Head changes it
	Body    bool   // one follows
	Length  int64  // of it; below 0: unknown
}

// Refusal is a request that must not go on. Status, Reason, What and Fix are
// for the box and hold no value of anybody's.
type Refusal struct { //nolint:errname // it is an answer first
	Status int
	Reason policy.Reason
	What   string // one line of ASCII
	Fix    string // a command for the operator, or advice; may be ""
	Detail string // for the record
}

func (r *Refusal) Error() string { return r.What }

// Grip is what is done to one request and its answer. A nil Grip does nothing.
type Grip struct {
	Rule string // that put a credential on it; "" none did
	Path string // to send

	in   *Injector
	set  *ruleset
	rule *rule
	tok  *minted
	req  Request
	own  []*rule
	view *view

	replayed bool
	scan     bool // the body is looked through for dummies
	signing  *signing
	answer   answer
	tripped  atomic.Pointer[Refusal]
}

// Head judges a request at its headers, and puts the credential on it if there
// is a rule: then the fields that could carry one are stripped first, and the
// path to send is the Grip's. It may wait while the credential is minted.
func (in *Injector) Head(ctx context.Context, q Request) (*Grip, *Refusal) {
	if in == nil {
		return nil, nil
	}
	set := in.set.Load()
	if len(set.rules) == 0 && set.trip == nil {
		return nil, nil
	}
	own := set.of(q.Target)
	if len(own) == 0 {
		return in.foreign(set, q)
	}
	g := &Grip{Path: q.Path, in: in, set: set, req: q, own: own, view: set.viewOf(own)}
	r, why, refusal := g.choose()
	if refusal != nil {
		return nil, refusal
	}
	g.plainly()
	if r == nil {
		if d := set.find(q.Header, q.Path); d != nil {
			return nil, in.misplaced(d, q, own, why)
		}
	} else if refusal := g.inject(ctx, r); refusal != nil {
		return nil, refusal
	}
	g.scan = set.trip != nil && q.Body && readable(q.Header.Get("Content-Type"))
	return g, nil
}

// plainly asks for an answer that can be searched.
func (g *Grip) plainly() { g.req.Header.Set("Accept-Encoding", "identity") }

// foreign judges a request to a host without a rule: no dummy may go there.
func (in *Injector) foreign(set *ruleset, q Request) (*Grip, *Refusal) {
	if set.trip == nil {
		return nil, nil
	}
	if d := set.find(q.Header, q.Path); d != nil {
		return nil, in.elsewhere(d, q, "")
	}
	if !q.Body || !readable(q.Header.Get("Content-Type")) {
		return nil, nil
	}
	return &Grip{Path: q.Path, in: in, set: set, req: q, scan: true}, nil
}

// Connect judges the fields of a CONNECT, which go nowhere: a dummy among them
// shows that the client means to send it to t.
func (in *Injector) Connect(box string, t dest.Target, h Header) *Refusal {
	if in == nil {
		return nil
	}
	set := in.set.Load()
	d := set.find(h, "")
	if d == nil || d.belongs(set.of(t)) {
		return nil
	}
	return in.elsewhere(d, Request{Box: box, Target: t}, "in a field of CONNECT")
}

// choose returns the rule that the request falls under, or why none puts its
// credential on it.
func (g *Grip) choose() (*rule, string, *Refusal) {
	q := &g.req
	path, err := policy.NormalPath(q.Path)
	if err != nil {
		for _, r := range g.own { // its origin could take the path for another
			if r.covers(q.Method, r.Path) {
				return nil, "", &Refusal{
					Status: http.StatusBadRequest, Reason: policy.ReasonBadRequest,
					What: "the path is not in a form that a credential may go with", Detail: err.Error(),
				}
			}
		}
		return nil, "the path is not in normal form", nil
	}
	var chosen *rule
	other := override(q.Header)
	for _, r := range g.own {
		if !r.covers(q.Method, path) || len(r.methods) > 0 && other != "" && !r.covers(other, path) || r.Swap && !g.carries(r) || r.sign != nil && !signs(q) {
			continue
		}
		if chosen != nil {
			return nil, "", &Refusal{
				Status: http.StatusUnauthorized, Reason: policy.ReasonCredentialOverlap,
				What: fmt.Sprintf("the rules %s and %s both have a credential for this request", chosen.Name, r.Name),
				Fix:  "fy config check",
			}
		}
		chosen = r
	}
	switch {
	case chosen == nil:
		return nil, "no rule covers its method and path", nil
	case !q.TLS:
		return nil, "a credential goes over https only", nil
	case !q.Granted:
		return nil, "the host is not granted", nil
	}
	return chosen, "", nil
}

// inject strips the family of r and puts its credential on the request.
func (g *Grip) inject(ctx context.Context, r *rule) *Refusal {
	q := &g.req
	if refusal := g.issuing(r); refusal != nil {
		return refusal
	}
	if r.Off != "" {
		return g.off(r, r.Off, r.Fix)
	}
	if r.sign != nil {
		var refusal *Refusal
		if g.signing, refusal = r.sign.begin(q, r); refusal != nil {
			return refusal
		}
	}
	g.strip(r)
	if d := g.set.find(q.Header, g.Path); d != nil {
		return g.in.misplaced(d, *q, g.own, "the rule puts its credential elsewhere")
	}
	scope := ""
	if r.scope != nil {
		scope = r.scope(q.Target, q.Method, q.Path)
	}
	tok, err := r.cred.get(ctx, scope, nil)
	if err != nil {
		return g.unminted(r, err)
	}
	g.rule, g.Rule, g.tok = r, r.Name, tok
	if g.signing != nil {
		return g.signing.ready(g)
	}
	g.put()
	return nil
}

// strip removes what the box sent in place of the credential.
func (g *Grip) strip(r *rule) {
	g.req.Header.Rewrite(func(name, value string) (string, bool) { return value, !r.owns(name) })
	if r.Query != "" {
		g.Path = withoutParameter(g.Path, r.Query, func(string) {})
	}
	if g.signing != nil && g.signing.presigned {
		g.Path = withoutParameter(g.Path, "X-Amz-Credential", func(string) {})
		g.Path = withoutParameter(g.Path, "X-Amz-Security-Token", func(string) {})
	}
}

// put places the credential.
func (g *Grip) put() {
	if g.rule.Query != "" {
		g.Path = withParameter(g.Path, g.rule.Query, g.tok.text)
		return
	}
	g.req.Header.Set(g.rule.Header, g.tok.text)
}

// carries reports whether the request holds a dummy of r where r puts its
// credential.
func (g *Grip) carries(r *rule) bool {
	found := false
	g.req.Header.Rewrite(func(name, value string) (string, bool) {
		found = found || r.owns(name) && g.dummyOf(r, value)
		return value, true
	})
	if r.Query != "" {
		_ = withoutParameter(g.req.Path, r.Query, func(v string) { found = found || g.dummyOf(r, v) })
	}
	return found
}

// signs reports whether a request is signed in the way of AWS at all.
func signs(q *Request) bool {
	return q.Header.Get("Authorization") != "" || strings.Contains(strings.ToLower(q.Path), "x-amz-")
}

func (g *Grip) dummyOf(r *rule, s string) bool {
	for _, d := range r.Dummies {
		if strings.Contains(s, d) {
			return true
		}
	}
	return false
}

// Keeps returns how many bytes of a body are worth keeping, so that the request
// can be sent again; 0: none, for the credential would be the same.
func (g *Grip) Keeps() int64 {
	if g == nil || g.rule == nil || g.signing != nil {
		return 0
	}
	if _, same := g.rule.Minter.(static); same {
		return 0
	}
	return maxKept
}

const maxKept = 64 << 10

// Replay is told the status of the answer. It reports whether the request
// should be sent once more, since upstream did not take its credential and
// there is another one now: it is on h and in Path then. can tells whether it
// could be; if not, only the next request gets another credential.
func (g *Grip) Replay(ctx context.Context, status int, h Header, can bool) bool {
	if g == nil || g.rule == nil || status != http.StatusUnauthorized || g.replayed || g.signing != nil {
		return false
	}
	scope := ""
	if g.rule.scope != nil {
		scope = g.rule.scope(g.req.Target, g.req.Method, g.req.Path)
	}
	if !can {
		_, _, _ = g.rule.cred.look(scope, g.tok, false) // starts minting
		return false
	}
	tok, err := g.rule.cred.get(ctx, scope, g.tok)
	if err != nil || tok.text == g.tok.text {
		return false
	}
	g.tok, g.replayed, g.req.Header = tok, true, h
	g.strip(g.rule)
	g.put()
	return true
}

// rendered returns the credential as it is placed.
func (r *rule) rendered(t Token) (string, error) {
	text := t.Value.Reveal()
	if text == "" {
		return "", &MintError{Why: "the credential is empty", Fix: "fy secret set " + r.Name}
	}
	if r.Query != "" {
		return text, nil
	}
	prefix := r.Prefix
	switch {
	case t.Scheme != "":
		prefix = t.Scheme + " "
	case strings.EqualFold(strings.TrimSpace(prefix), "Basic"):
		if r.User != "" && !strings.Contains(text, ":") {
			text = r.User + ":" + text
		}
		pair, err := basic(text)
		if err != nil {
			return "", &MintError{Why: err.Error(), Fix: "fy secret set " + r.Name}
		}
		text = pair
	}
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' || text[i] == 0x7f {
			return "", &MintError{Why: "the credential holds a byte that no header may hold", Fix: "fy secret set " + r.Name}
		}
	}
	if text != strings.TrimSpace(text) {
		return "", &MintError{Why: "the credential begins or ends with a space", Fix: "fy secret set " + r.Name}
	}
	return prefix + text, nil
}

// basic returns user:password in the form of RFC 7617; what is in that form
// already stays.
func basic(s string) (string, error) {
	if strings.Contains(s, ":") {
		return base64.StdEncoding.EncodeToString([]byte(s)), nil
	}
	if b, err := base64.StdEncoding.DecodeString(s); err == nil && strings.Contains(string(b), ":") {
		return s, nil
	}
	return "", errors.New("the credential is not user:password")
}

// find returns the dummy that a head holds, nil if none.
func (s *ruleset) find(h Header, path string) *dummy {
	if s.trip == nil {
		return nil
	}
	at := -1
	look := func(text string) {
		if i, ok := s.trip.in(text); ok && at < 0 {
			at = i
		}
	}
	h.Rewrite(func(_, value string) (string, bool) {
		look(value)
		return value, true
	})
	look(path)
	if at < 0 && strings.ContainsAny(path, "%+") {
		if plain, err := url.PathUnescape(path); err == nil {
			look(plain)
		}
	}
	if at < 0 {
		return nil
	}
	return &s.dummies[at]
}

// belongs reports whether one of the rules is the dummy's own.
func (d *dummy) belongs(rules []*rule) bool {
	for _, r := range rules {
		if slices.Contains(d.rules, r) {
			return true
		}
	}
	return false
}

func (d *dummy) names() string {
	var names []string
	for _, r := range d.rules {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// elsewhere is the refusal of a dummy at a destination that is not its own.
func (in *Injector) elsewhere(d *dummy, q Request, where string) *Refusal {
	what := "placeholder of " + d.names()
	if len(d.rules) == 0 {
		what = "token of the box's way out"
	}
	r := &Refusal{
		Status: http.StatusForbidden, Reason: policy.ReasonDummyElsewhere,
		What:   fmt.Sprintf("the %s was on its way to %s, where it does not belong", what, q.Target),
		Fix:    "fy log --denied",
		Detail: strings.TrimSpace(what + " " + where),
	}
	in.cfg.Alert(Alert{Reason: r.Reason, Rule: d.names(), Box: q.Box, Host: q.Target.String(), Detail: r.Detail})
	return r
}

// misplaced is the refusal of a dummy that would go upstream as it is.
func (in *Injector) misplaced(d *dummy, q Request, own []*rule, why string) *Refusal {
	if !d.belongs(own) {
		return in.elsewhere(d, q, "")
	}
	r := &Refusal{
		Status: http.StatusUnauthorized, Reason: policy.ReasonCredentialOff,
		What: "the placeholder of " + d.names() + " is not replaced here: " + why,
		Fix:  "fy why " + q.Target.Host.String(),
	}
	if !q.Granted {
		r.Fix = "fy allow " + policy.RuleFor(q.Target).String()
	}
	return r
}

func (g *Grip) off(r *rule, why, fix string) *Refusal {
	return &Refusal{
		Status: http.StatusUnauthorized, Reason: policy.ReasonCredentialOff,
		What: fmt.Sprintf("no credential %s for %s: %s", r.Name, g.req.Target, why), Fix: fix,
	}
}

// unminted is the refusal of a request whose credential could not be had.
func (g *Grip) unminted(r *rule, err error) *Refusal {
	if why, ok := isOff(err); ok {
		return g.off(r, why, "fy secret bind "+r.Name)
	}
	out := &Refusal{
		Status: http.StatusBadGateway, Reason: policy.ReasonMintFailed,
		What: "the credential " + r.Name + " could not be had", Fix: "fy secret list", Detail: err.Error(),
	}
	if e, ok := errors.AsType[*MintError](err); ok {
		out.What += ": " + e.Why
		if e.Fix != "" {
			out.Fix = e.Fix
		}
		if e.Missing {
			return g.off(r, e.Why, out.Fix)
		}
	}
	return out
}
