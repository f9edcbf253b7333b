package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"foldyard/internal/egress/policy"
)

// canonicalRule returns the one spelling of a rule.
func canonicalRule(s string) (string, error) {
	r, err := policy.ParseRule(s)
	if err != nil {
		return "", err
	}
	return r.String(), nil
}

// Render returns what the proxy obeys at now: the store and, from the
// configuration, the rules that are tunnelled and the hosts that are always
// decrypted. What has expired is left out.
func (f GrantFile) Render(now time.Time, passthrough, intercept []string) (policy.File, error) {
	out := policy.File{
		Generation:  f.Generation,
		Enforce:     f.Enforcing(now),
		Allow:       []policy.Entry{},
		Deny:        []policy.Entry{},
		Passthrough: append([]string{}, passthrough...),
		Intercept:   append([]string{}, intercept...),
	}
	if !out.Enforce && f.LearnUntil != nil {
		out.LearnUntil = f.LearnUntil
	}
	for _, g := range f.Grants {
		if g.Expired(now) {
			continue
		}
		e := policy.Entry{Rule: g.Rule, Expires: g.Expires, Internal: g.Internal, Box: g.Box}
		if err := e.Level.UnmarshalText([]byte(g.Level)); err != nil {
			return policy.File{}, fmt.Errorf("render rule %q: %w", g.Rule, err)
		}
		if g.Deny {
			out.Deny = append(out.Deny, e)
		} else {
			out.Allow = append(out.Allow, e)
		}
	}
	return out, nil
}

// WriteEffective replaces p's allow-effective.json by f.
func WriteEffective(p Project, f policy.File) error {
	data, err := policy.Encode(f)
	if err != nil {
		return fmt.Errorf("render %s: %w", p.Effective(), err)
	}
	return WriteAtomic(p.Effective(), data, 0o600)
}

// ReadEffective reads and compiles what the proxy obeys. A missing or damaged
// file is an error, and the caller then obeys policy.Unreadable.
func ReadEffective(p Project) (*policy.Snapshot, error) {
	data, err := ReadFile(p.Effective(), MaxFile)
	if err != nil {
		return nil, err
	}
	s, err := policy.Decode(data)
	if err != nil {
		return nil, &DamagedError{p.Effective(), err}
	}
	return s, nil
}

// SetAside moves a damaged file out of the way, beside itself, and returns its
// new path. A file that is not there is no error and has no new path.
func SetAside(path string, now time.Time) (string, error) {
	for i := range 100 {
		to := fmt.Sprintf("%s.damaged-%s", path, now.UTC().Format("20060102T150405Z"))
		if i > 0 {
			to += fmt.Sprintf("-%d", i)
		}
		// A link fails where a rename would replace.
		switch err := os.Link(path, to); {
		case errors.Is(err, fs.ErrNotExist):
			return "", nil
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return "", err
		}
		return to, os.Remove(path)
	}
	return "", fmt.Errorf("move %s aside: too many damaged files beside it", path)
}
