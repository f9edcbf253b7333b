package supervisor

import (
	"sync"
	"time"

	"foldyard/internal/wall/namespace"
)

// reserveTime is how long a keeper waits for the next one-shot box.
const reserveTime = 15 * time.Second

// reserve keeps one keeper ready while commands are run one after the other: half of what a box's start takes is the same for all
// boxes, and done by then. A keeper in reserve holds namespaces and nothing else; it ends with us.
type reserve struct {
	mu      sync.Mutex // guards what follows
	ready   *namespace.Reserve
	filling bool
	over    bool
	end     *time.Timer
}

// take returns the keeper in reserve, nil if there is none.
func (v *reserve) take() *namespace.Reserve {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.ready
	v.ready = nil
	return r
}

// fill starts a keeper, unless one waits already.
func (v *reserve) fill(p *namespace.Program, u namespace.User) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || v.filling || v.ready != nil {
		return
	}
	v.filling = true
	go func() {
		r, err := namespace.Prepare(p, u)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.filling = false
		switch {
		case err != nil: // the next box meets the same, and says so
		case v.over:
			r.Close()
		default:
			v.ready = r
			if v.end != nil {
				v.end.Stop()
			}
			v.end = time.AfterFunc(reserveTime, v.drop)
		}
	}()
}

// drop lets the keeper go that nobody needed.
func (v *reserve) drop() {
	if r := v.take(); r != nil {
		r.Close()
	}
}

// close drops the reserve for good.
func (v *reserve) close() {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	v.drop()
}
