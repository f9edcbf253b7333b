package inject

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// ruleset is one load of the rules. It never changes but for its views.
type ruleset struct {
	rules []*rule
	exact map[dest.Host][]*rule // rules that name the host
	wide  []*rule               // rules with wildcards or prefixes

	dummies []dummy
	trip    *matcher // finds dummies

	mu    sync.Mutex
	views map[string]*view
}

// dummy is a placeholder and the rules that it stands for; none: it is a token of a box's way out.
type dummy struct {
	text  string
	rules []*rule
}

type rule struct {
	Rule
	cred    *credential
	view    *view // of this rule alone
	methods []string
}

func (s *ruleset) add(r *rule) {
	s.rules = append(s.rules, r)
	wide := false
	for _, h := range r.Hosts {
		if t, err := dest.ParseAuthority(h.String(), 443); err == nil {
			if !slices.Contains(s.exact[t.Host], r) {
				s.exact[t.Host] = append(s.exact[t.Host], r)
			}
		} else {
			wide = true
		}
	}
	if wide {
		s.wide = append(s.wide, r)
	}
}

// watch builds the search for the dummies of all rules, and for tokens.
func (s *ruleset) watch(tokens []string) {
	at := map[string]int{}
	for _, r := range s.rules {
		for _, text := range r.Dummies {
			i, ok := at[text]
			if !ok {
				i = len(s.dummies)
				at[text] = i
				s.dummies = append(s.dummies, dummy{text: text})
			}
			s.dummies[i].rules = append(s.dummies[i].rules, r)
		}
	}
	for _, text := range tokens {
		s.dummies = append(s.dummies, dummy{text: text})
	}
	var texts [][]byte
	for _, d := range s.dummies {
		texts = append(texts, []byte(d.text))
	}
	s.trip = newMatcher(texts, minDummy)
	for _, r := range s.rules {
		r.view = s.newView([]*rule{r})
	}
}

// of returns the rules that cover t, in the order of the configuration. The
// result is shared.
func (s *ruleset) of(t dest.Target) []*rule {
	named := s.exact[t.Host]
	if len(named) == 0 && len(s.wide) == 0 {
		return nil
	}
	want := policy.RuleFor(t)
	if len(s.wide) == 0 && !slices.ContainsFunc(named, func(r *rule) bool { return !r.coversTarget(want, t) }) {
		return named
	}
	var out []*rule
	for _, r := range s.rules {
		if (slices.Contains(named, r) || slices.Contains(s.wide, r)) && r.coversTarget(want, t) {
			out = append(out, r)
		}
	}
	return out
}

// coversTarget reports whether t, for which want is the rule, is among the
// hosts and ports of r.
func (r *rule) coversTarget(want policy.Rule, t dest.Target) bool {
	for i := range r.Hosts {
		if r.Hosts[i].MatchesHost(t.Host) && r.Hosts[i].Overlaps(want) {
			return true
		}
	}
	return false
}

// covers reports whether the rule puts its credential on requests with this
// method and path, which is in normal form.
func (r *rule) covers(method, path string) bool {
	switch method {
	case "OPTIONS", "TRACE", "CONNECT":
		return false
	}
	return strings.HasPrefix(path, r.Path) && (len(r.methods) == 0 || slices.Contains(r.methods, method))
}

// owns reports whether a header field is of the rule's family: servers that
// turn '-' into '_' see no difference.
func (r *rule) owns(name string) bool {
	if r.Header != "" && sameField(name, r.Header) {
		return true
	}
	for _, f := range r.Family {
		if sameField(name, f) {
			return true
		}
	}
	return false
}

func sameField(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		if foldField(a[i]) != foldField(b[i]) {
			return false
		}
	}
	return true
}

func foldField(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case c == '_':
		return '-'
	}
	return c
}

// viewOf returns the values to look for in what comes back from a target of
// these rules.
func (s *ruleset) viewOf(rules []*rule) *view {
	if len(rules) == 1 {
		return rules[0].view
	}
	var key strings.Builder
	for _, r := range rules {
		key.WriteString(r.Name)
		key.WriteByte(' ')
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[key.String()]
	if v == nil { // as many as there are sets of rules that share a host
		v = s.newView(rules)
		s.views[key.String()] = v
	}
	return v
}

func (s *ruleset) newView(rules []*rule) *view {
	v := &view{}
	var texts [][]byte
	for _, r := range rules {
		v.creds = append(v.creds, r.cred)
	}
	for _, d := range s.dummies {
		if !d.belongs(rules) {
			v.dummies, texts = append(v.dummies, d), append(texts, []byte(d.text))
		}
	}
	v.foreign = newMatcher(texts, minDummy)
	return v
}

// view is the search for what some credentials are now.
type view struct {
	creds []*credential

	dummies []dummy  // that do not belong to these rules
	foreign *matcher // finds them

	built atomic.Pointer[search]
	mu    sync.Mutex // one builds
}

// search is a view as it was at one version of its credentials.
type search struct {
	version uint64
	m       *matcher
	owners  []*credential // by the matcher's owner
}

// now returns the matcher for the values of now. Its owners are indices of
// creds, see owner.
func (v *view) now() *matcher {
	m, _ := v.current()
	return m
}

func (v *view) current() (*matcher, []*credential) {
	if len(v.creds) == 0 {
		return nil, nil
	}
	var version uint64
	for _, c := range v.creds {
		version += c.version.Load()
	}
	if s := v.built.Load(); s != nil && s.version == version {
		return s.m, s.owners
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var values [][]byte
	var owners []*credential
	for _, c := range v.creds {
		for _, b := range c.values() {
			values, owners = append(values, b), append(owners, c)
		}
	}
	s := &search{version, newMatcher(values, minSecret), owners}
	v.built.Store(s)
	return s.m, s.owners
}
