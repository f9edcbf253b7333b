package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/control"
)

// maxAsks bounds the unanswered list; the oldest that nobody waits for is forgotten first.
const maxAsks = 500

// asks is what was refused, or is held, and has no answer yet, by target: boxes of one project are one trust domain, and an
// answer is for all of them.
type asks struct {
	mu   sync.Mutex
	next int
	list map[dest.Target]*ask
}

type ask struct {
	id      string
	key     dest.Target
	process json.RawMessage
	since   time.Time
	last    time.Time
	count   int64
	held    int           // requests that wait
	answer  chan struct{} // closed once there is an answer
}

// refused notes one refusal. It may be called from the record path: it does not block.
func (a *asks) refused(k dest.Target, process json.RawMessage, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note(k, process, now)
}

func (a *asks) note(k dest.Target, process json.RawMessage, now time.Time) *ask {
	if a.list == nil {
		a.list = map[dest.Target]*ask{}
	}
	e := a.list[k]
	if e == nil {
		a.makeRoom()
		a.next++
		e = &ask{id: strconv.Itoa(a.next), key: k, since: now, answer: make(chan struct{})}
		a.list[k] = e
	}
	e.count++
	e.last = now
	if len(process) > 0 {
		e.process = process
	}
	return e
}

func (a *asks) makeRoom() {
	if len(a.list) < maxAsks {
		return
	}
	var oldest *ask
	for _, e := range a.list {
		if e.held == 0 && (oldest == nil || e.last.Before(oldest.last)) {
			oldest = e
		}
	}
	if oldest != nil {
		delete(a.list, oldest.key)
	}
}

// hold waits until the ask is answered, ctx ends or the timeout passes, and tells whether it was answered.
func (a *asks) hold(ctx context.Context, k dest.Target, process json.RawMessage, now time.Time, timeout time.Duration) bool {
	a.mu.Lock()
	e := a.note(k, process, now)
	e.held++
	answer := e.answer
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		e.held--
		a.mu.Unlock()
	}()
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-answer:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// find returns the ask called id.
func (a *asks) find(id string) (dest.Target, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, e := range a.list {
		if e.id == id {
			return k, true
		}
	}
	return dest.Target{}, false
}

// reconsider wakes whoever waits for an ask that is let through or refused now, and forgets the asks that have an answer.
func (a *asks) reconsider(judge func(dest.Target) (settled, answered bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, e := range a.list {
		settled, answered := judge(k)
		if !settled {
			continue
		}
		close(e.answer)
		if answered {
			delete(a.list, k)
		} else {
			e.answer = make(chan struct{}) // let through without a grant: it is still to be answered
		}
	}
}

func (a *asks) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list)
}

func (a *asks) rows() []control.Ask {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []control.Ask{}
	for k, e := range a.list {
		process := e.process
		if len(process) == 0 {
			process = json.RawMessage("null")
		}
		out = append(out, control.Ask{ID: e.id, Host: k.Host.String(), Port: k.Port, Rule: proxy.RuleFor(k), Process: process, Since: e.since.UTC(), Count: e.count, Held: e.held > 0})
	}
	slices.SortFunc(out, func(x, y control.Ask) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.ID, y.ID))
	})
	return out
}

// settle tells whether the policy in force settles what an ask is about, and whether a rule did.
func (s *Supervisor) settle(k dest.Target) (settled, answered bool) {
	d := s.effective.Snapshot().Connect(s.query("", k))
	return d.Verdict.Permits() || d.Rule != "", d.Rule != ""
}

// Asks lists what has no answer.
func (s *Supervisor) Asks(context.Context) ([]control.Ask, error) { return s.asks.rows(), nil }

// Answer grants or denies what an ask wants.
func (s *Supervisor) Answer(ctx context.Context, id string, a control.Answer) (control.Changed, error) {
	k, ok := s.asks.find(id)
	if !ok {
		return control.Changed{}, &control.Error{Code: control.CodeNotFound, Detail: fmt.Sprintf("no ask %q waits for an answer", id), Hint: "fy asks lists what does"}
	}
	q := a.RuleRequest
	q.Rules = []string{proxy.RuleFor(k)}
	if q.Internal { // that much and no more
		q.Rules = []string{k.String()}
	}
	if internal, ok := dialer.Opens(k); a.Allow && ok && internal && !q.Internal {
		return control.Changed{}, &control.Error{
			Code: control.CodeBad, Detail: k.String() + " is not a public address: a grant that is not internal does not open it", Hint: "fy ask allow " + id + " --internal",
		}
	}
	origin := "fy ask allow"
	if !a.Allow {
		origin = "fy ask deny"
	}
	return s.add(ctx, q, !a.Allow, origin)
}
