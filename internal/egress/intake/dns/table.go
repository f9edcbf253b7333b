package dns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"foldyard/internal/egress/dest"
)

// MaxNames is how many names a table takes, if nothing else is said.
const MaxNames = 16384

const (
	firstIndex = 2         // index 0 is the pools' own address, 1 ours (dest.OwnV4, dest.OwnV6)
	lastIndex  = 1<<17 - 2 // of 198.18.0.0/15; the last address is no host's

	// gap is how many addresses Restore passes over: those that a supervisor which died may have handed out after it had last saved the
	// table. A box that still holds one finds no name behind it, never another's.
	gap = 4096
)

// Table gives each name of one box an address of each family, and never the same address to another name.
type Table struct {
	max     int
	control dest.Host

	mu    sync.RWMutex
	names []dest.Host // the name with index i is names[i-firstIndex]; zero where an address was passed over
	index map[dest.Host]int
}

// NewTable returns an empty table for limit names, by default (0) 16,384. Granted names may go beyond it.
func NewTable(limit int) *Table {
	if limit <= 0 {
		limit = MaxNames
	}
	control, err := dest.ParseHost(dest.ControlName)
	if err != nil {
		panic("dns: the control name is no host name: " + err.Error())
	}
	return &Table{max: limit, control: control, index: map[dest.Host]int{}}
}

// Assign returns the addresses of h, new ones if it has none yet. It returns false for what is not a name, and for a new name
// when the table is full; a granted one still gets its addresses, until the pool itself ends.
func (t *Table) Assign(h dest.Host, granted bool) (v4, v6 netip.Addr, ok bool) {
	v4, v6, _, ok = t.assign(h, granted)
	return v4, v6, ok
}

func (t *Table) assign(h dest.Host, granted bool) (v4, v6 netip.Addr, fresh, ok bool) {
	if h.Name() == "" {
		return netip.Addr{}, netip.Addr{}, false, false
	}
	if h == t.control {
		return dest.OwnV4(), dest.OwnV6(), false, true
	}
	t.mu.RLock()
	i, known := t.index[h]
	t.mu.RUnlock()
	if !known {
		if i, fresh, ok = t.add(h, granted); !ok {
			return netip.Addr{}, netip.Addr{}, false, false
		}
	}
	return addr4(i), addr6(i), fresh, true
}

func (t *Table) add(h dest.Host, granted bool) (i int, fresh, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, known := t.index[h]; known {
		return i, false, true
	}
	i = firstIndex + len(t.names)
	if i > lastIndex || len(t.index) >= t.max && !granted {
		return 0, false, false
	}
	t.names = append(t.names, h)
	t.index[h] = i
	return i, true, true
}

// Lookup returns the name that a has in this box.
func (t *Table) Lookup(a netip.Addr) (dest.Host, bool) {
	a = a.Unmap()
	var i uint64
	switch {
	case dest.SyntheticV4().Contains(a):
		b, first := a.As4(), dest.SyntheticV4().Addr().As4()
		i = uint64(binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(first[:]))
	case dest.SyntheticV6().Contains(a):
		b := a.As16()
		i = binary.BigEndian.Uint64(b[8:])
	default:
		return dest.Host{}, false
	}
	if a == dest.OwnV4() || a == dest.OwnV6() {
		return t.control, true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if i < firstIndex || i-firstIndex >= uint64(len(t.names)) {
		return dest.Host{}, false
	}
	h := t.names[i-firstIndex]
	return h, !h.IsZero()
}

// Len returns how many names have addresses.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.index)
}

// Export returns the names in the order of their addresses, for Restore; "" is an address that no name has or will have.
func (t *Table) Export() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]string, len(t.names))
	for i, h := range t.names {
		out[i] = h.Name()
	}
	return out
}

// Restore gives an empty table the names that Export returned, each with the address it had. It takes all of them or, with an
// error, none. Addresses that may have been handed out since then are never used again.
func (t *Table) Restore(names []string) error {
	if len(names) > lastIndex-firstIndex+1 {
		return fmt.Errorf("restore name table: %d names are more than there are addresses", len(names))
	}
	hosts := make([]dest.Host, len(names), len(names)+gap)
	index := make(map[dest.Host]int, len(names))
	for i, s := range names {
		if s == "" {
			continue
		}
		h, err := dest.ParseHost(s)
		if err != nil {
			return fmt.Errorf("restore name table, entry %d: %w", i, err)
		}
		if _, twice := index[h]; twice || h.IsIP() || h == t.control {
			return fmt.Errorf("restore name table, entry %d: %q is there twice, or is no name of a box", i, s)
		}
		hosts[i], index[h] = h, firstIndex+i
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.names) > 0 {
		return fmt.Errorf("restore name table: it already has %d names", len(t.names))
	}
	hosts = append(hosts, make([]dest.Host, min(gap, lastIndex-firstIndex+1-len(hosts)))...)
	t.names, t.index = hosts, index
	return nil
}

func addr4(i int) netip.Addr {
	b := dest.SyntheticV4().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i)) //nolint:gosec // at most lastIndex
	return netip.AddrFrom4(b)
}

func addr6(i int) netip.Addr {
	b := dest.SyntheticV6().Addr().As16()
	binary.BigEndian.PutUint64(b[8:], uint64(i)) //nolint:gosec // at most lastIndex
	return netip.AddrFrom16(b)
}
