package policy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"foldyard/internal/egress/dest"
)

// entry is one rule with the circumstances in which it holds.
type entry struct {
	rule     Rule
	text     string
	wide     string // the path as liberal reads it; denials only
	level    Level
	expires  time.Time
	internal bool
	box      string
}

func (e *entry) live(box string, now time.Time) bool {
	if e.box != "" && e.box != box {
		return false
	}
	return e.expires.IsZero() || !now.IsZero() && now.Before(e.expires)
}

// index finds the entries whose host covers a host. The cost of a look-up
// depends on the labels of the name or on the distinct lengths of prefixes,
// not on the number of entries.
type index struct {
	names    map[string][]entry
	suffixes map[string][]entry
	addrs    map[netip.Addr][]entry
	prefixes map[netip.Prefix][]entry
	bits4    []int // distinct lengths, longest first
	bits6    []int
}

func (x *index) add(e entry) {
	switch r := &e.rule; {
	case r.suffix != "":
		put(&x.suffixes, r.suffix, e)
	case r.prefix.IsValid():
		put(&x.prefixes, r.prefix, e)
		bits := &x.bits6
		if r.prefix.Addr().Is4() {
			bits = &x.bits4
		}
		if !slices.Contains(*bits, r.prefix.Bits()) {
			*bits = append(*bits, r.prefix.Bits())
			slices.SortFunc(*bits, func(a, b int) int { return b - a })
		}
	case r.host.IsIP():
		put(&x.addrs, r.host.Addr(), e)
	case !r.host.IsZero():
		put(&x.names, r.host.Name(), e)
	}
}

func put[K comparable](m *map[K][]entry, k K, e entry) {
	if *m == nil {
		*m = make(map[K][]entry)
	}
	(*m)[k] = append((*m)[k], e)
}

// visit calls f for the entries that cover h, the most specific host first,
// until f returns false.
func (x *index) visit(h dest.Host, f func(*entry) bool) {
	if h.IsIP() {
		x.visitAddr(h.Addr(), f)
		return
	}
	name := h.Name()
	if !each(x.names[name], f) || len(x.suffixes) == 0 {
		return
	}
	for {
		_, rest, ok := strings.Cut(name, ".")
		if !ok || !each(x.suffixes[rest], f) {
			return
		}
		name = rest
	}
}

func (x *index) visitAddr(a netip.Addr, f func(*entry) bool) {
	if !each(x.addrs[a], f) {
		return
	}
	bits := x.bits6
	if a.Is4() {
		bits = x.bits4
	}
	for _, n := range bits {
		p, err := a.Prefix(n)
		if err != nil || !each(x.prefixes[p], f) {
			return
		}
	}
}

func each(es []entry, f func(*entry) bool) bool {
	for i := range es {
		if !f(&es[i]) {
			return false
		}
	}
	return true
}

func (x *index) all(f func(*entry)) {
	visit := func(e *entry) bool { f(e); return true }
	for _, es := range x.names {
		each(es, visit)
	}
	for _, es := range x.suffixes {
		each(es, visit)
	}
	for _, es := range x.addrs {
		each(es, visit)
	}
	for _, es := range x.prefixes {
		each(es, visit)
	}
}
