package supervisor

import (
	"sync"
	"time"

	"foldyard/internal/wall/namespace"
)

const (
	reserveTime  = 15 * time.Second     // how long a keeper waits for the next one-shot box
	reserveDelay = 4 * time.Millisecond // after the end of the last
)

// reserve keeps one keeper ready while commands are run one after the other: half of what a box's start takes is the same for all
// boxes, and done by then. A keeper in reserve holds namespaces and nothing of a project; it ends with us.
type reserve struct {
	mu      sync.Mutex // guards what follows
	ready   *namespace.Reserve
	filling chan struct{} // closed when the keeper that is being started is ready, nil if none is
	over    bool
	end     *time.Timer
}

// take returns the keeper in reserve, nil if there is none. One that is being started is waited for: it is ahead of any other.
func (v *reserve) take() *namespace.Reserve {
	v.mu.Lock()
	defer v.mu.Unlock()
	for filling := v.filling; filling != nil; filling = v.filling {
		v.mu.Unlock()
		<-filling
		v.mu.Lock()
	}
	r := v.ready
	v.ready = nil
	return r
}

// fill starts a keeper, unless one waits already. A fork holds up the whole process, so it lets those go first who wait for an answer.
func (v *reserve) fill(p *namespace.Program, u namespace.User) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || v.filling != nil || v.ready != nil {
		return
	}
	filling := make(chan struct{})
	v.filling = filling
	time.AfterFunc(reserveDelay, func() {
		r, err := namespace.Prepare(p, u)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.filling = nil
		close(filling)
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
	})
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
