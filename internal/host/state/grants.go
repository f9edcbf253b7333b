package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// grantsVersion is the version of grants.json.
const grantsVersion = 1

// DefaultOnce is how long a `once` grant lives unless told otherwise.
const DefaultOnce = 2 * time.Minute

// The levels of a grant.
const (
	Once      = "once"      // any number of requests until it expires
	Session   = "session"   // until the project goes down
	Permanent = "permanent" // until revoked
)

// The states of the allowlist switch.
const (
	EnforceOn    = "on"
	EnforceOff   = "off"
	EnforceLearn = "learn" // on again by itself when LearnUntil has passed
)

// bounds of the store: more is refused, and old hosts of a learning window are
// kept before new ones.
const (
	maxGrants  = 10_000
	maxLearned = 10_000
)

// ErrNoGrant is returned by Revoke for a rule that has no entry.
var ErrNoGrant = errors.New("no such rule")

// Grant is one entry of the store: a rule that the operator allowed or denied.
type Grant struct {
	Rule     string     `json:"rule"` // canonical
	Deny     bool       `json:"deny,omitempty"`
	Level    string     `json:"level"`
	Expires  *time.Time `json:"expires"`
	Internal bool       `json:"internal"`
	Reason   string     `json:"reason"`
	Origin   string     `json:"origin"` // who added it: cli, run, ask, learn …
	Added    time.Time  `json:"added"`
	Hits     uint64     `json:"hits"`
	Box      string     `json:"box"` // "": every box of the project
}

// Expired reports whether g no longer holds at now.
func (g Grant) Expired(now time.Time) bool { return g.Expires != nil && !now.Before(*g.Expires) }

func (g Grant) same(o Grant) bool {
	return g.Rule == o.Rule && g.Deny == o.Deny && g.Level == o.Level && g.Box == o.Box
}

// Learned is a rule that a learning window saw and nobody has answered.
type Learned struct {
	Rule  string    `json:"rule"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`
}

// GrantFile is the content of grants.json. Enforce is "" until Seed: only then
// does a new project's configuration say what it is; afterwards the store does.
type GrantFile struct { //nolint:recvcheck // readers have a copy, changes are made in place
	Version    int        `json:"version"`
	Generation uint64     `json:"generation"`
	Enforce    string     `json:"enforce"`
	LearnUntil *time.Time `json:"learn_until"`
	Grants     []Grant    `json:"grants"`
	Learned    []Learned  `json:"learned"`
}

// Grants is the store of a project's grants. Several processes may use it:
// each change reads the file again, under a lock. It is safe for concurrent
// use.
type Grants struct {
	path string

	mu  sync.Mutex
	cur GrantFile // a copy of what was last read or written
}

// OpenGrants opens p's store. A missing file is an empty store that enforces;
// a damaged one is a *DamagedError, and it is not touched.
func OpenGrants(p Project) (*Grants, error) {
	g := &Grants{path: p.Grants()}
	f, err := g.read()
	if err != nil {
		return nil, err
	}
	g.cur = f
	return g, nil
}

// Path is where the store lives.
func (g *Grants) Path() string { return g.path }

// File returns a copy of the store as this process last read or wrote it.
func (g *Grants) File() GrantFile {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cur.clone()
}

// Reload reads the store again.
func (g *Grants) Reload() (GrantFile, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.read()
	if err != nil {
		return GrantFile{}, err
	}
	g.cur = f
	return f.clone(), nil
}

// Update applies change to the store as it is on disk and writes the result
// with the next generation. When change returns an error, or the file is
// damaged, nothing is written.
func (g *Grants) Update(ctx context.Context, change func(*GrantFile) error) (GrantFile, error) {
	return g.update(ctx, true, change)
}

func (g *Grants) update(ctx context.Context, narrows bool, change func(*GrantFile) error) (GrantFile, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := EnsureDir(filepath.Dir(g.path)); err != nil {
		return GrantFile{}, err
	}
	lock, err := AcquireLock(ctx, g.path+".lock")
	if err != nil {
		return GrantFile{}, err
	}
	defer lock.Unlock()
	f, err := g.read()
	if err != nil {
		return GrantFile{}, err
	}
	if err := change(&f); err != nil {
		return GrantFile{}, err
	}
	f.Version = grantsVersion
	if narrows {
		f.Generation++
	}
	if err := f.check(); err != nil {
		return GrantFile{}, fmt.Errorf("change of %s refused: %w", g.path, err)
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return GrantFile{}, err
	}
	if err := WriteAtomic(g.path, append(data, '\n'), 0o600); err != nil {
		return GrantFile{}, err
	}
	g.cur = f
	return f.clone(), nil
}

func (g *Grants) read() (GrantFile, error) {
	data, err := ReadFile(g.path, MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return GrantFile{Version: grantsVersion, Grants: []Grant{}, Learned: []Learned{}}, nil
	}
	if err != nil {
		return GrantFile{}, &DamagedError{g.path, err}
	}
	f, err := decodeGrants(data)
	if err != nil {
		return GrantFile{}, &DamagedError{g.path, err}
	}
	return f, nil
}

func decodeGrants(data []byte) (GrantFile, error) {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err == nil && v.Version > grantsVersion {
		return GrantFile{}, fmt.Errorf("version %d was written by a newer foldyard, this one knows %d", v.Version, grantsVersion)
	}
	var f GrantFile
	if err := DecodeStrict(data, &f); err != nil {
		return GrantFile{}, err
	}
	return f, f.check()
}

// check holds for every store that is read or written. An entry that does not
// parse makes the whole file damaged: skipping a deny would widen.
func (f *GrantFile) check() error {
	if f.Version != grantsVersion {
		return fmt.Errorf("version %d, want %d", f.Version, grantsVersion)
	}
	if f.Grants == nil || f.Learned == nil {
		return errors.New("grants or learned is missing")
	}
	switch f.Enforce {
	case "", EnforceOn, EnforceOff:
		if f.LearnUntil != nil {
			return fmt.Errorf("learn_until without enforce %q", EnforceLearn)
		}
	case EnforceLearn:
		if f.LearnUntil == nil {
			return fmt.Errorf("enforce %q without learn_until: it would never end", EnforceLearn)
		}
	default:
		return fmt.Errorf("enforce %q, want %q, %q or %q", f.Enforce, EnforceOn, EnforceOff, EnforceLearn)
	}
	if len(f.Grants) > maxGrants {
		return fmt.Errorf("%d entries, at most %d", len(f.Grants), maxGrants)
	}
	if len(f.Learned) > maxLearned {
		return fmt.Errorf("%d learned rules, at most %d", len(f.Learned), maxLearned)
	}
	for i, e := range f.Grants {
		if err := e.check(); err != nil {
			return fmt.Errorf("grants[%d]: %w", i, err)
		}
	}
	return nil
}

func (g Grant) check() error {
	rule, err := canonicalRule(g.Rule)
	if err != nil {
		return err
	}
	if rule != g.Rule {
		return fmt.Errorf("rule %q is not in its canonical form %q", g.Rule, rule)
	}
	switch g.Level {
	case Once:
		if g.Expires == nil {
			return fmt.Errorf("rule %q: level %q without an end", g.Rule, Once)
		}
	case Session, Permanent:
	default:
		return fmt.Errorf("rule %q: level %q, want %q, %q or %q", g.Rule, g.Level, Once, Session, Permanent)
	}
	if g.Deny && g.Internal {
		return fmt.Errorf("rule %q: internal on a deny", g.Rule)
	}
	if g.Box != "" && g.Level == Permanent {
		return fmt.Errorf("rule %q: a permanent entry for one box", g.Rule)
	}
	return nil
}

func (f GrantFile) clone() GrantFile {
	f.Grants = slices.Clone(f.Grants)
	f.Learned = slices.Clone(f.Learned)
	return f
}

// Add adds the entries, all or none. Rule may be in any spelling; an empty
// Level is session; an empty Added is now; a `once` without Expires gets
// DefaultOnce. An entry with the same rule, verdict, level and box is replaced
// and keeps its hits.
func (g *Grants) Add(ctx context.Context, now time.Time, entries ...Grant) (GrantFile, error) {
	return g.Update(ctx, func(f *GrantFile) error {
		for _, e := range entries {
			if err := f.add(now, e); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *GrantFile) add(now time.Time, e Grant) error {
	rule, err := canonicalRule(e.Rule)
	if err != nil {
		return err
	}
	e.Rule = rule
	e.Level = cmp.Or(e.Level, Session)
	if e.Added.IsZero() {
		e.Added = now
	}
	e.Added = e.Added.UTC()
	if e.Level == Once && e.Expires == nil {
		end := now.Add(DefaultOnce)
		e.Expires = &end
	}
	if e.Expires != nil {
		end := e.Expires.UTC()
		e.Expires = &end
	}
	f.Learned = slices.DeleteFunc(f.Learned, func(l Learned) bool { return l.Rule == rule })
	if i := slices.IndexFunc(f.Grants, e.same); i >= 0 {
		e.Hits += f.Grants[i].Hits
		f.Grants[i] = e
		return nil
	}
	f.Grants = append(f.Grants, e)
	return nil
}

// Revoke removes every entry, allow and deny, of each rule, for the box or for
// all when box is "". A rule without an entry is an ErrNoGrant, and then
// nothing is removed.
func (g *Grants) Revoke(ctx context.Context, box string, rules ...string) (GrantFile, error) {
	return g.Update(ctx, func(f *GrantFile) error {
		for _, s := range rules {
			rule, err := canonicalRule(s)
			if err != nil {
				return err
			}
			n := len(f.Grants)
			f.Grants = slices.DeleteFunc(f.Grants, func(e Grant) bool {
				return e.Rule == rule && (box == "" || e.Box == box)
			})
			if len(f.Grants) == n {
				return fmt.Errorf("%w: %s", ErrNoGrant, rule)
			}
		}
		return nil
	})
}

// Prune removes what has expired at now, and ends a learning window that is
// over, with enforcement on. It writes only when there was something.
func (g *Grants) Prune(ctx context.Context, now time.Time) (GrantFile, bool, error) {
	f := g.File()
	next, ok := f.NextChange()
	if !ok || now.Before(next) {
		return f, false, nil
	}
	f, err := g.Update(ctx, func(f *GrantFile) error {
		f.Grants = slices.DeleteFunc(f.Grants, func(e Grant) bool { return e.Expired(now) })
		if f.LearnUntil != nil && !now.Before(*f.LearnUntil) {
			f.Enforce, f.LearnUntil = EnforceOn, nil
		}
		return nil
	})
	return f, err == nil, err
}

// NextChange returns when time alone next changes what f says.
func (f GrantFile) NextChange() (time.Time, bool) {
	var next time.Time
	sooner := func(t *time.Time) {
		if t != nil && (next.IsZero() || t.Before(next)) {
			next = *t
		}
	}
	sooner(f.LearnUntil)
	for _, e := range f.Grants {
		sooner(e.Expires)
	}
	return next, !next.IsZero()
}

// EndSession removes every once and session entry: fy down, supervisor stop,
// the idle stop.
func (g *Grants) EndSession(ctx context.Context) (GrantFile, error) {
	return g.drop(ctx, func(e Grant) bool { return e.Level != Permanent })
}

// EndBox removes the entries that live and die with the box id.
func (g *Grants) EndBox(ctx context.Context, id string) (GrantFile, error) {
	return g.drop(ctx, func(e Grant) bool { return e.Box == id && id != "" })
}

func (g *Grants) drop(ctx context.Context, gone func(Grant) bool) (GrantFile, error) {
	if f := g.File(); !slices.ContainsFunc(f.Grants, gone) {
		return f, nil
	}
	return g.Update(ctx, func(f *GrantFile) error {
		f.Grants = slices.DeleteFunc(f.Grants, gone)
		return nil
	})
}

// AddHits adds to the counters of the rules named; the generation stays.
func (g *Grants) AddHits(ctx context.Context, hits map[string]uint64) error {
	if len(hits) == 0 {
		return nil
	}
	_, err := g.update(ctx, false, func(f *GrantFile) error {
		for i := range f.Grants {
			f.Grants[i].Hits += hits[f.Grants[i].Rule]
		}
		return nil
	})
	return err
}

// Seed sets the switch of a new project from its configuration: on, off, or
// learn until the given time. Once it is set, Seed changes nothing.
func (g *Grants) Seed(ctx context.Context, enforce string, learnUntil time.Time) (GrantFile, error) {
	if f := g.File(); f.Enforce != "" {
		return f, nil
	}
	return g.Update(ctx, func(f *GrantFile) error {
		if f.Enforce != "" {
			return nil
		}
		return f.setEnforce(enforce, learnUntil)
	})
}

// SetEnforce sets the switch: on, off, or learn until the given time.
func (g *Grants) SetEnforce(ctx context.Context, enforce string, learnUntil time.Time) (GrantFile, error) {
	return g.Update(ctx, func(f *GrantFile) error { return f.setEnforce(enforce, learnUntil) })
}

func (f *GrantFile) setEnforce(enforce string, learnUntil time.Time) error {
	f.Enforce, f.LearnUntil = enforce, nil
	if enforce == EnforceLearn {
		end := learnUntil.UTC()
		f.LearnUntil = &end
	}
	return nil
}

// Enforcing reports whether f refuses what is not granted at now. Anything but
// an explicit off, or a learning window that runs, enforces.
func (f GrantFile) Enforcing(now time.Time) bool {
	switch f.Enforce {
	case EnforceOff:
		return false
	case EnforceLearn:
		return f.LearnUntil == nil || !now.Before(*f.LearnUntil)
	default:
		return true
	}
}

// AddLearned notes rules that a learning window let through. What an earlier
// window left unanswered stays. The generation stays too.
func (g *Grants) AddLearned(ctx context.Context, now time.Time, rules map[string]uint64) error {
	if len(rules) == 0 {
		return nil
	}
	_, err := g.update(ctx, false, func(f *GrantFile) error {
		now := now.UTC()
		for s, n := range rules {
			rule, err := canonicalRule(s)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(f.Learned, func(l Learned) bool { return l.Rule == rule })
			switch {
			case i >= 0:
				f.Learned[i].Last, f.Learned[i].Count = now, f.Learned[i].Count+n
			case len(f.Learned) < maxLearned:
				f.Learned = append(f.Learned, Learned{Rule: rule, First: now, Last: now, Count: n})
			}
		}
		slices.SortFunc(f.Learned, func(a, b Learned) int {
			return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Rule, b.Rule))
		})
		return nil
	})
	return err
}

// ForgetLearned removes learned rules that were answered.
func (g *Grants) ForgetLearned(ctx context.Context, rules ...string) error {
	_, err := g.update(ctx, false, func(f *GrantFile) error {
		f.Learned = slices.DeleteFunc(f.Learned, func(l Learned) bool { return slices.Contains(rules, l.Rule) })
		return nil
	})
	return err
}
