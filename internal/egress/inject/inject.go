// Package inject puts credentials on requests that are on their way out of a
// box, so that the box need not have them, and sees to it that they do not come
// back: rules, what mints the credentials, their cache, the placeholders that a
// box holds instead, and the redaction of answers.
//
// Open head.go first: Head is what the proxy asks at the headers of every
// request. The package may not dial, start programs, or read or write files; it
// is given functions for that. What it cannot judge gets no credential. No
// credential leaves it but on the header or target of the request it is for:
// not in an error, a record or a text for people.
package inject

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// Rule is one [[inject]] rule and what mints its credential.
type Rule struct {
	Name    string
	Kind    string
	Preset  string
	Hosts   []policy.Rule // without method and path
	Header  string        // the field that carries the credential; "" with Query
	Query   string        // or the parameter
	Prefix  string        // before the value; "Basic " encodes user:password
	Family  []string      // further fields that could carry it: stripped too
	Path    string        // start of the paths it is for, normal form; "": all
	Methods []string      // nil: all but OPTIONS and TRACE
	Dummies []string      // what the box holds instead

	// Swap limits the rule to requests that carry a dummy where it puts the
	// credential.
	Swap bool
	// Issuing permits the service's endpoints that answer with a credential.
	Issuing bool
	// Endpoint, if set, is the host:port and path of the service's token
	// endpoint.
	Endpoint string

	// Minter produces the credential. Nil: there is none, for the reason Off,
	// and the command Fix, if any, changes that.
	Minter Minter
	Off    string
	Fix    string
	// Key tells one credential from the next: a rule that is loaded again with
	// the Key it had keeps what was minted.
	Key string

	User string // of user:password, where the secret is a password alone

	sign  *signer                                         // aws-sigv4
	scope func(t dest.Target, method, path string) string // of a token that is for one thing only
	local *local                                          // a metadata server for the box
}

// Alert is something that the operator should see.
type Alert struct {
	Reason policy.Reason
	Rule   string
	Box    string
	Host   string
	Detail string
}

// Config is what an Injector works with. A nil function does nothing.
type Config struct {
	Now func() time.Time // nil: time.Now
	// Alert is told at once, from the request that it is about: it must not
	// block.
	Alert func(Alert)
	// Off is told that a rule was switched off until the operator answers.
	Off func(rule, why string)
}

// Injector is the rules in force. It is safe for concurrent use.
type Injector struct {
	cfg     Config
	set     atomic.Pointer[ruleset]
	issuers map[string][]issuer

	mu      sync.Mutex // one Load at a time; guards the fields that follow
	creds   map[string]*credential
	tokens  []string // see Guard
	scrub   atomic.Pointer[view]
	ctx     context.Context //nolint:containedctx // of what is minted, which no request owns
	stop    context.CancelFunc
	minting sync.WaitGroup
}

// New returns an injector without rules.
func New(cfg Config) *Injector {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Alert == nil {
		cfg.Alert = func(Alert) {}
	}
	if cfg.Off == nil {
		cfg.Off = func(string, string) {}
	}
	in := &Injector{cfg: cfg, issuers: byWord(issuers()), creds: map[string]*credential{}}
	in.ctx, in.stop = context.WithCancel(context.Background())
	in.set.Store(&ruleset{})
	return in
}

// Close ends what is being minted. No request may be under way.
func (in *Injector) Close() {
	in.stop()
	in.minting.Wait()
}

// Load replaces the rules, for the next request on. On an error the old ones
// stay.
func (in *Injector) Load(rules []Rule) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	set := &ruleset{exact: map[dest.Host][]*rule{}, views: map[string]*view{}}
	creds := map[string]*credential{}
	for i := range rules {
		r := &rule{Rule: rules[i], methods: slices.Clone(rules[i].Methods)}
		if err := r.check(); err != nil {
			return fmt.Errorf("inject rule %s: %w", r.Name, err)
		}
		if creds[r.Name] != nil {
			return fmt.Errorf("inject rule %s: comes twice", r.Name)
		}
		r.cred = in.creds[r.Name]
		if r.cred == nil || r.Key == "" || r.cred.key != r.Key {
			r.cred = &credential{in: in, name: r.Name, key: r.Key, minter: r.Minter, slots: map[string]*slot{}}
			r.cred.render = r.rendered
			r.cred.inherit(in.creds[r.Name])
		}
		creds[r.Name] = r.cred
		set.add(r)
	}
	set.watch(in.tokens)
	for name, c := range in.creds {
		if creds[name] != c {
			c.retire()
		}
	}
	in.creds = creds
	in.set.Store(set)
	in.scrub.Store(&view{creds: slices.Collect(maps.Values(creds))})
	return nil
}

// Guard replaces the tokens of the boxes' own ways out, from the next request on. They stand for nothing, and go nowhere: a request
// that carries one is refused as one with a placeholder is.
func (in *Injector) Guard(tokens []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if slices.Equal(tokens, in.tokens) {
		return
	}
	in.tokens = slices.Clone(tokens)
	set := &ruleset{exact: map[dest.Host][]*rule{}, views: map[string]*view{}}
	for _, r := range in.set.Load().rules {
		again := *r // requests that run look at the old one
		set.add(&again)
	}
	set.watch(in.tokens)
	in.set.Store(set)
}

func (r *rule) check() error {
	switch {
	case r.Name == "":
		return errors.New("has no name")
	case len(r.Hosts) == 0:
		return errors.New("has no hosts")
	case r.Minter == nil && r.Off == "":
		return errors.New("has neither a minter nor a reason for that")
	case r.sign == nil && r.local == nil && (r.Header == "") == (r.Query == ""):
		return errors.New("wants a header or a query parameter")
	}
	for _, h := range r.Hosts {
		if h.IsZero() || h.NeedsIntercept() {
			return errors.New("has a host that is none")
		}
	}
	return nil
}

// Scrub masks every credential known now in a text for records or people.
func (in *Injector) Scrub(s string) string {
	if in == nil || len(s) < minSecret {
		return s
	}
	v := in.scrub.Load()
	if v == nil {
		return s
	}
	return v.now().redact(s, func(int) {})
}

// Hosts returns the hosts that have a rule, as policy wants them: they are
// always decrypted.
func (in *Injector) Hosts() []string {
	var out []string
	for _, r := range in.set.Load().rules {
		for _, h := range r.Hosts {
			out = append(out, h.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Status is a rule as people are shown it.
type Status struct {
	Rule    string
	Kind    string
	Place   string // "header Authorization" or "query token"
	Hosts   []string
	Path    string
	Off     string // why it has no credential, "" if it has one
	Fix     string
	Scope   string    // what the credential can do, as last read
	Read    time.Time // when it was; zero: not minted yet
	Expires time.Time // zero: unknown or never
}

// Status returns every rule.
func (in *Injector) Status() []Status {
	var out []Status
	for _, r := range in.set.Load().rules {
		out = append(out, r.status())
	}
	return out
}

// Would returns the rule whose credential a request would carry over verified
// TLS.
func (in *Injector) Would(t dest.Target, method, path string) (Status, bool) {
	if method == "" {
		method = "GET"
	}
	for _, r := range in.set.Load().of(t) {
		if norm, err := policy.NormalPath(path); err == nil && r.covers(method, norm) {
			return r.status(), true
		}
	}
	return Status{}, false
}

func (r *rule) status() Status {
	s := Status{Rule: r.Name, Kind: r.Kind, Place: r.place(), Path: r.Path, Off: r.Off, Fix: r.Fix}
	for _, h := range r.Hosts {
		s.Hosts = append(s.Hosts, h.String())
	}
	tok, read, off := r.cred.last()
	s.Scope, s.Expires, s.Read = tok.Scope, tok.Expires, read
	if s.Off == "" && off != "" {
		s.Off, s.Fix = off, "fy secret bind "+r.Name
	}
	return s
}

func (r *rule) place() string {
	switch {
	case r.sign != nil:
		return "signature"
	case r.Query != "":
		return "query " + r.Query
	}
	return "header " + r.Header
}
