package inject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Token is what a Minter produces.
type Token struct {
	Value   Secret    // goes after the rule's prefix
	Expires time.Time // zero: not known to
	Scheme  string    // instead of the rule's prefix; "" keeps that
	Scope   string    // what it can do, for people
	// Hide are values that no upstream of the rule gets and that must stay out
	// of records all the same: what the token was made from.
	Hide []Secret

	keys *awsKeys // of aws-sigv4, which has no Value
}

// Minter produces credentials. Mint is called by one goroutine at a time for
// each scope, which is "" for most kinds. Its errors are shown in records; what
// the box is told of them is only what a *MintError says.
type Minter interface {
	Mint(ctx context.Context, scope string) (Token, error)
}

// MintError says why there is no credential, in words fit for the box.
type MintError struct {
	Why     string // lower case ASCII, without values
	Fix     string // a command; "" if none is known
	Missing bool   // there is no secret: the operator has yet to set it
	Err     error  // for the record; may be nil
}

func (e *MintError) Error() string {
	if e.Err == nil {
		return e.Why
	}
	return e.Why + ": " + e.Err.Error()
}

func (e *MintError) Unwrap() error { return e.Err }

// Bounds of minting.
const (
	mintTime    = 30 * time.Second // for one
	badFor      = 15 * time.Second // a failure is remembered
	again       = 5 * time.Second  // before an upstream's 401 makes us mint once more
	tooOld      = 20 * time.Second // before its end a token is not used any more
	refreshMost = 10 * time.Minute // before its end it is refreshed, or at four fifths of its life
	maxScopes   = 256              // tokens of one rule
	maxTries    = 120              // times a minute that one rule mints
	maxPast     = 16               // values that were replaced and are still looked for
	hitsToOff   = 3                // redactions within hitsIn switch a rule off
	hitsIn      = time.Minute
)

// credential is what one rule has minted.
type credential struct {
	in     *Injector
	name   string
	key    string
	minter Minter
	render func(Token) (string, error)

	version atomic.Uint64 // grows with every value

	mu    sync.Mutex // guards the fields that follow
	slots map[string]*slot
	past  []*minted
	hits  []time.Time
	tries []time.Time // of minting, within the last minute
	off   string      // why it was switched off
}

// slot is the credential for one scope.
type slot struct {
	tok    *minted // nil: none yet
	err    error   // of the last attempt, until bad
	bad    time.Time
	flight chan struct{} // closed when the attempt under way has ended; nil: none is
}

// minted is a token as it is placed.
type minted struct {
	Token
	text    string // with its prefix
	read    time.Time
	refresh time.Time // zero: never
}

func (m *minted) usable(now time.Time) bool {
	return m != nil && (m.Expires.IsZero() || now.Before(m.Expires.Add(-tooOld)))
}

// get returns the credential for scope: the one at hand, or one that is being
// minted. stale, if not nil, is one that the upstream did not take.
func (c *credential) get(ctx context.Context, scope string, stale *minted) (*minted, error) {
	for waited := false; ; waited = true {
		tok, flight, err := c.look(scope, stale, waited)
		if flight == nil {
			return tok, err
		}
		select {
		case <-flight:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// look returns a token, or why there is none, or what to wait for.
func (c *credential) look(scope string, stale *minted, waited bool) (*minted, chan struct{}, error) {
	now := c.in.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off != "" {
		return nil, nil, &offError{c.off}
	}
	s := c.slots[scope]
	if s == nil {
		if len(c.slots) >= maxScopes && !c.evict() {
			return nil, nil, &MintError{Why: "too many credentials are being minted at once"}
		}
		s = &slot{}
		c.slots[scope] = s
	}
	if stale != nil && s.tok == stale {
		if waited || now.Before(stale.read.Add(again)) || now.Before(s.bad) {
			return stale, nil, nil
		}
		if c.mint(s, scope); s.flight == nil {
			return stale, nil, nil
		}
		return nil, s.flight, nil
	}
	switch {
	case s.tok.usable(now):
		if !s.tok.refresh.IsZero() && now.After(s.tok.refresh) && s.flight == nil && !now.Before(s.bad) {
			c.mint(s, scope)
		}
		return s.tok, nil, nil
	case s.err != nil && now.Before(s.bad):
		return nil, nil, s.err
	case waited && s.tok != nil && s.flight == nil && !s.tok.Expires.IsZero() && now.Before(s.tok.Expires):
		return s.tok, nil, nil // as short-lived as it was minted
	case waited && s.flight == nil:
		return nil, nil, &MintError{Why: "the credential had expired when it came"}
	}
	if c.mint(s, scope); s.flight == nil {
		return nil, nil, s.err
	}
	return nil, s.flight, nil
}

// evict forgets a scope that nobody waits for, if there is one. c.mu is held.
func (c *credential) evict() bool {
	for scope, s := range c.slots {
		if s.flight == nil {
			c.retired(s.tok)
			delete(c.slots, scope)
			return true
		}
	}
	return false
}

// mint starts an attempt, unless one is under way or there were too many. c.mu
// is held.
func (c *credential) mint(s *slot, scope string) {
	if s.flight != nil {
		return
	}
	now := c.in.cfg.Now()
	for len(c.tries) > 0 && now.Sub(c.tries[0]) >= time.Minute {
		c.tries = c.tries[1:]
	}
	if len(c.tries) >= maxTries { // a box may ask for ever more scopes
		s.err, s.bad = &MintError{Why: fmt.Sprintf("over %d credentials were minted in a minute", maxTries)}, now.Add(badFor)
		return
	}
	c.tries = append(c.tries, now)
	done := make(chan struct{})
	s.flight = done
	c.in.minting.Go(func() {
		ctx, cancel := context.WithTimeout(c.in.ctx, mintTime)
		defer cancel()
		tok, err := c.minter.Mint(ctx, scope)
		var m *minted
		if err == nil {
			m, err = c.finished(tok)
		}
		if err != nil && ctx.Err() != nil {
			err = &MintError{Why: "minting took too long", Err: err}
		}
		now := c.in.cfg.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		s.err, s.bad = err, time.Time{}
		if err != nil {
			s.bad = now.Add(badFor)
		} else {
			if s.tok != nil && s.tok.text != m.text {
				c.retired(s.tok)
			}
			if s.tok != nil && s.tok.text == m.text && s.tok.keys == nil {
				// The same value: whoever holds the old one need not replay.
				same := *s.tok
				same.read, same.refresh, same.Expires, same.Scope = m.read, m.refresh, m.Expires, m.Scope
				m = &same
			}
			s.tok = m
		}
		c.version.Add(1)
		s.flight = nil
		close(done)
	})
}

func (c *credential) finished(t Token) (*minted, error) {
	m := &minted{Token: t, read: c.in.cfg.Now()}
	if !t.Expires.IsZero() {
		life := t.Expires.Sub(m.read)
		if life <= 0 {
			return nil, &MintError{Why: "the credential that came had expired"}
		}
		m.refresh = t.Expires.Add(-min(refreshMost, life/5))
	}
	if t.keys != nil {
		return m, nil
	}
	var err error
	if m.text, err = c.render(t); err != nil {
		return nil, err
	}
	return m, nil
}

// retired keeps a value that may still be about. c.mu is held.
func (c *credential) retired(m *minted) {
	if m == nil {
		return
	}
	if c.past = append(c.past, m); len(c.past) > maxPast {
		c.past = c.past[1:]
	}
}

// inherit takes over what the credential before this one had, to look for it
// and to know how often it came back.
func (c *credential) inherit(old *credential) {
	if old == nil {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	c.past = append(c.past, old.past...)
	for _, s := range old.slots {
		if s.tok != nil {
			c.past = append(c.past, s.tok)
		}
	}
	if n := len(c.past); n > maxPast {
		c.past = c.past[n-maxPast:]
	}
}

// retire drops what was minted: the rule is gone, or has another secret.
func (c *credential) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.slots {
		c.retired(s.tok)
		s.tok, s.err, s.bad = nil, nil, time.Time{}
	}
	c.off = "the rule was changed"
}

// values returns what to look for in answers and records.
func (c *credential) values() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out [][]byte
	add := func(m *minted) {
		if m == nil {
			return
		}
		if m.keys != nil {
			out = append(out, m.keys.session.bytes(), m.keys.secret.bytes())
		} else {
			out = append(out, m.Value.bytes())
			if _, password, ok := bytes.Cut(m.Value.bytes(), []byte(":")); ok {
				out = append(out, password) // of user:password
			}
			if i := len(m.text); i >= minSecret {
				out = append(out, []byte(afterScheme(m.text)))
			}
		}
		for _, s := range m.Hide {
			out = append(out, s.bytes())
		}
	}
	for _, s := range c.slots {
		add(s.tok)
	}
	for _, m := range c.past {
		add(m)
	}
	return out
}

// last returns what was minted last, and why the credential is off.
func (c *credential) last() (Token, time.Time, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var m *minted
	for _, s := range c.slots {
		if s.tok != nil && (m == nil || s.tok.read.After(m.read)) {
			m = s.tok
		}
	}
	if m == nil {
		return Token{}, time.Time{}, c.off
	}
	return m.Token, m.read, c.off
}

// hit counts a redaction, and switches the rule off at the third in a minute.
func (c *credential) hit() {
	now := c.in.cfg.Now()
	c.mu.Lock()
	kept := c.hits[:0]
	for _, t := range c.hits {
		if now.Sub(t) < hitsIn {
			kept = append(kept, t)
		}
	}
	if c.hits = append(kept, now); len(c.hits) > hitsToOff {
		c.hits = c.hits[len(c.hits)-hitsToOff:]
	}
	over := len(c.hits) >= hitsToOff && c.off == ""
	if over {
		c.off = fmt.Sprintf("an upstream sent the credential back %d times in a minute", len(c.hits))
	}
	off := c.off
	c.mu.Unlock()
	if over {
		c.in.cfg.Off(c.name, off)
	}
}

// offError says that a credential is switched off.
type offError struct{ why string }

func (e *offError) Error() string { return e.why }

func isOff(err error) (string, bool) {
	e, ok := errors.AsType[*offError](err)
	if !ok {
		return "", false
	}
	return e.why, true
}
