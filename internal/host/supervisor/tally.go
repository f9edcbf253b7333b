package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/control"
)

// Bounds of what is counted between two flushes, and of a box's summary.
const (
	maxCounted  = 4096
	maxRefusals = 200
	flushEvery  = 5 * time.Second
)

// counts are what records add up to until they are stored.
type counts struct {
	mu      sync.Mutex
	hits    map[string]uint64 // by rule
	learned map[string]uint64 // by rule that would permit
}

func (c *counts) hit(rule string)   { c.add(&c.hits, rule) }
func (c *counts) learn(rule string) { c.add(&c.learned, rule) }

func (c *counts) add(m *map[string]uint64, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = map[string]uint64{}
	}
	if _, ok := (*m)[key]; ok || len(*m) < maxCounted {
		(*m)[key]++
	}
}

func (c *counts) take() (hits, learned map[string]uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hits, learned, c.hits, c.learned = c.hits, c.learned, nil, nil
	return hits, learned
}

// flushCounts stores what was counted. A store that cannot take it loses counts, not traffic.
func (s *Supervisor) flushCounts(ctx context.Context) {
	hits, learned := s.counts.take()
	if err := s.grants.AddHits(ctx, hits); err != nil {
		s.log.Warn("hits not stored", slog.String("error", err.Error()))
	}
	if err := s.grants.AddLearned(ctx, s.now(), learned); err != nil {
		s.log.Warn("learned hosts not stored", slog.String("error", err.Error()))
	}
}

// record is where every finished record passes: it is counted, and then logged. It must not block.
func (s *Supervisor) record(r *capture.Record) {
	s.outcomes.add(r)
	b := s.box(r.Box)
	if b != nil && b.probing.Load() { // fy verify: nothing of it is the box's wish
		s.put(r)
		return
	}
	if b != nil && r.Verdict == capture.VerdictDeny {
		b.tally.refused(r)
	}
	switch r.Verdict {
	case capture.VerdictAllow:
		if r.Rule != "" {
			s.counts.hit(r.Rule)
		}
	case capture.VerdictWouldDeny:
		if t, ok := target(r); ok {
			s.counts.learn(proxy.RuleFor(t))
		}
	case capture.VerdictDeny:
		if t, ok := target(r); ok && askable(r) {
			s.asks.refused(t, processJSON(r.Process), s.now())
		}
	case capture.VerdictHeld:
	}
	s.put(r)
}

// recordName takes a record of a box's DNS.
func (s *Supervisor) recordName(r *capture.Record) {
	if r.Reason == string(policy.ReasonLimit) {
		s.nameless.Add(1)
	}
	s.record(r)
}

// put logs a record, and sends it where the operator wants it.
func (s *Supervisor) put(r *capture.Record) {
	s.capture.Put(r)
	if s.exporter != nil {
		s.exporter.Put(r)
	}
}

// askable tells whether a grant would change the outcome of what r records.
func askable(r *capture.Record) bool {
	if r.Proto == capture.ProtoUDP {
		return false
	}
	switch policy.Reason(r.Reason) {
	case policy.ReasonNotGranted, policy.ReasonMethodOrPath, policy.ReasonHeldTimeout:
		return true
	}
	return false
}

func target(r *capture.Record) (dest.Target, bool) {
	h, err := dest.ParseHost(r.Host)
	return dest.Target{Host: h, Port: r.Port}, err == nil && r.Port != 0
}

func processJSON(p *capture.Process) json.RawMessage {
	if p == nil {
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		return nil
	}
	return b
}

// tally is what one box was refused.
type tally struct {
	mu   sync.Mutex
	list map[refusalKey]*control.Refusal
}

type refusalKey struct {
	host   string
	port   uint16
	reason string
}

func (t *tally) refused(r *capture.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list == nil {
		t.list = map[refusalKey]*control.Refusal{}
	}
	k := refusalKey{r.Host, r.Port, r.Reason}
	e := t.list[k]
	if e == nil {
		if len(t.list) >= maxRefusals {
			return
		}
		e = &control.Refusal{Host: r.Host, Port: r.Port, Reason: r.Reason}
		if tg, ok := target(r); ok {
			e.Fix = fixOf(tg, r)
		}
		t.list[k] = e
	}
	e.Count += max(int64(r.DeniedTimes), 1)
}

// fixOf is the command that permits what r records, "" when none does.
func fixOf(t dest.Target, r *capture.Record) string {
	switch {
	case askable(r):
		return proxy.AllowCommand(t)
	case r.Reason == string(policy.ReasonDeniedRule) && r.Rule != "":
		return "fy revoke " + control.ShellQuote(r.Rule)
	case r.Reason == string(policy.ReasonAddressClass):
		if _, ok := dialer.Opens(t); ok && !dialer.NeverText(r.Error) {
			return proxy.InternalCommand(t)
		}
	}
	return ""
}

func (t *tally) rows() []control.Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []control.Refusal
	for _, e := range t.list {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b control.Refusal) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}
