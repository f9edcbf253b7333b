package dialer

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"foldyard/internal/egress/dest"
)

const (
	maxAhead = 64              // look-ups begun before their dials, at once
	aheadFor = 3 * time.Second // how long one waits for its dial
)

// ahead holds look-ups that were begun before their dials. Each serves one.
type ahead struct {
	mu    sync.Mutex // guards the field that follows
	names map[string]*lookup
}

// lookup is one question to the resolver on its way.
type lookup struct {
	done  chan struct{} // closed when the fields that follow are set
	addrs []netip.Addr
	err   error
}

// LookAhead begins to resolve the name of t for a dial that will follow soon,
// and returns at once. The dial checks what comes of it as it checks what it
// has asked for itself. When ctx ends so does the question.
func (d *Dialer) LookAhead(ctx context.Context, t dest.Target) {
	if known(t.Host) != nil {
		return
	}
	if via, err := d.proxy(t); via != nil || err != nil {
		return // the name is the upstream proxy's to resolve
	}
	name := t.Host.Name()
	l := &lookup{done: make(chan struct{})}
	if !d.ahead.add(name, l) {
		return
	}
	go func() {
		defer close(l.done)
		ctx, cancel := context.WithTimeout(ctx, d.lim.Resolve)
		defer cancel()
		l.addrs, l.err = d.lookup(ctx, name)
	}()
	time.AfterFunc(aheadFor, func() { d.ahead.drop(name, l) })
}

// ask returns the addresses of name: from a look-up that is under way for it,
// else by asking.
func (d *Dialer) ask(ctx context.Context, name string) ([]netip.Addr, error) {
	if l := d.ahead.take(name); l != nil {
		select {
		case <-l.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if l.err == nil {
			return l.addrs, nil
		}
	}
	return d.lookup(ctx, name)
}

// add reports whether l was added: not beside another for the same name.
func (a *ahead) add(name string, l *lookup) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.names[name]; ok || len(a.names) >= maxAhead {
		return false
	}
	if a.names == nil {
		a.names = make(map[string]*lookup)
	}
	a.names[name] = l
	return true
}

func (a *ahead) take(name string) *lookup {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.names[name]
	delete(a.names, name)
	return l
}

func (a *ahead) drop(name string, l *lookup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.names[name] == l {
		delete(a.names, name)
	}
}
