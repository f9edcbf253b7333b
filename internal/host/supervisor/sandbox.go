package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/dns"
	"foldyard/internal/egress/policy"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/wall/namespace"
)

// saveDelay gathers new names of a box before its record is written again.
const saveDelay = 200 * time.Millisecond

// sandbox is one running box as the supervisor serves it.
type sandbox struct {
	id      string
	rec     state.Box
	user    namespace.User
	client  *namespace.Client
	links   *namespace.Links
	table   *dns.Table
	before  map[string]mark // what the host executes in the repo, when the box was made
	tally   tally
	probing atomic.Bool // a battery runs in it
	cancel  context.CancelFunc
	token   string                                                  // on its way out; "" where that is its own
	outURL  string                                                  // of its proxy; "" is the usual one
	guard   *repoGuard                                              // of a box in a machine; nil where there is nothing to hold
	dial    func(ctx context.Context, port int) (halfCloser, error) // to a port in it; nil asks its keeper
	ended   chan struct{}                                           // closed once nothing of it runs or is served

	mu      sync.Mutex // guards what follows
	granted []netip.Prefix
	saving  *time.Timer
	over    bool // its record is not to be written any more
}

func (s *Supervisor) newSandbox(rec state.Box, u namespace.User) *sandbox {
	return &sandbox{id: rec.ID, rec: rec, user: u, client: namespace.NewClient(rec.Socket, rec.Nonce), table: dns.NewTable(0), ended: make(chan struct{})}
}

// serve adopts a box that runs, and carries its traffic until it ends.
func (s *Supervisor) serve(ctx context.Context, b *sandbox) error {
	links, err := b.client.Adopt(ctx, func(rs []namespace.Refusal) { s.refusals(b, rs) })
	if err != nil {
		return err
	}
	return s.carry(ctx, b, links)
}

// carry carries the traffic of an adopted box until it ends. On an error it gives the box up.
func (s *Supervisor) carry(ctx context.Context, b *sandbox, links *namespace.Links) error {
	b.links = links
	ports, err := s.publish(b)
	if err != nil {
		links.Close()
		return err
	}
	ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.boxes[b.id] = b
	s.mu.Unlock()
	b.setGranted(s.redirected(s.effective.Snapshot().GrantedPrefixes(b.id, s.now())))

	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				s.log.Error("box is not served", slog.String("box", b.id), slog.String("what", what), slog.String("error", err.Error()))
			}
		})
	}
	way := proxy.BoxWay{ID: b.id, Resolve: b.table.Lookup}
	if b.token != "" {
		way.Token = func() string { return b.token }
	}
	for _, l := range links.Redirect {
		run("redirect", func() error { return s.engine.ServeRedirect(ctx, way, l) })
	}
	for _, l := range links.Proxy {
		run("proxy", func() error { return s.engine.ServeProxy(ctx, way, l) })
	}
	names := &dns.Server{
		Table: b.table, Box: b.id, Record: s.recordName, OnAssign: func() { s.save(b) },
		Granted: func(h dest.Host) bool { return s.effective.Snapshot().Granted(h, b.id, s.now()) },
	}
	for _, p := range links.DNSPacket {
		run("dns", func() error { return names.ServeUDP(ctx, p) })
	}
	for _, l := range links.DNSStream {
		run("dns", func() error { return names.ServeTCP(ctx, l) })
	}
	for _, p := range ports {
		run("published port", func() error { return p.serve(ctx) })
	}
	s.serving.Go(func() {
		select {
		case <-links.Gone():
		case <-ctx.Done():
		}
		b.cancel()
		s.engine.CloseBox(b.id)
		links.Close()
		wg.Wait()
		s.capture.Flush() // who waits for a box to end may read the log next
		s.after(b)
	})
	return nil
}

// after is the end of a box: it is gone, or this supervisor lets it go on without itself.
func (s *Supervisor) after(b *sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	b.mu.Lock()
	released := b.over
	b.over = true
	if b.saving != nil {
		b.saving.Stop()
	}
	b.mu.Unlock()
	var last control.Stopped
	if b.rec.Oneshot && !released {
		last = s.account(b)
	}
	s.mu.Lock()
	delete(s.boxes, b.id)
	s.idle = s.now()
	if last.ID != "" {
		s.last.put(last)
	}
	s.mu.Unlock()
	b.guard.release(!released)
	close(b.ended)
	if released {
		return
	}
	if b.rec.Oneshot && b.rec.Name == mainName && !b.inVM() { // commands come one after the other
		if p, err := s.program(); err == nil {
			s.reserve.fill(p, b.user)
		}
	}
	s.forget(ctx, b.id, b.rec.Socket)
	s.log.Info("box ended", slog.String("box", b.id))
}

// release gives a box up without ending it: the next supervisor takes it back.
func (b *sandbox) release() {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.cancel()
	<-b.ended
}

// forget removes what a box left on disk and in the store.
func (s *Supervisor) forget(ctx context.Context, id, socket string) {
	f, err := s.grants.EndBox(ctx, id)
	if err == nil && s.effective.Snapshot().Generation() != f.Generation {
		err = s.apply()
	}
	err = errors.Join(err, state.RemoveBox(s.opt.Project, id), remove(socket), s.evidence().DropBox(id))
	if err != nil {
		s.log.Warn("box not cleaned up", slog.String("box", id), slog.String("error", err.Error()))
	}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// setGranted tells the wall which raw addresses to redirect.
func (b *sandbox) setGranted(ps []netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(ps, b.granted) || b.links == nil {
		return
	}
	if b.links.SetGranted(ps) == nil { // else it has ended, or keeps refusing
		b.granted = ps
	}
}

// save writes the box's record soon, with the names it was given.
func (s *Supervisor) save(b *sandbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || b.saving != nil {
		return
	}
	b.saving = time.AfterFunc(saveDelay, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.saving = nil
		if b.over {
			return
		}
		b.rec.Names = b.table.Export()
		if err := state.WriteBox(s.opt.Project, b.rec); err != nil {
			s.log.Warn("names of box not stored", slog.String("box", b.id), slog.String("error", err.Error()))
		}
	})
}

// adoptAll takes back the boxes that a supervisor before this one left running, and sweeps what is left of the others.
func (s *Supervisor) adoptAll(ctx context.Context) {
	recs, err := state.ListBoxes(s.opt.Project)
	if err != nil {
		s.log.Error("box records damaged", slog.String("error", err.Error()))
	}
	for _, rec := range recs {
		b, err := s.takeBack(ctx, rec)
		if err != nil {
			s.log.Info("box is gone", slog.String("box", rec.ID), slog.String("error", err.Error()))
			s.forget(ctx, rec.ID, rec.Socket)
			continue
		}
		if rec.Name == twinName { // its battery died with its supervisor
			s.mustEnd(ctx, b)
			continue
		}
		b.before = marks(s.opt.Dir)
		s.log.Info("box taken back", slog.String("box", rec.ID))
	}
	s.sweep(recs)
}

// takeBack serves a box that runs.
func (s *Supervisor) takeBack(ctx context.Context, rec state.Box) (*sandbox, error) {
	if rec.Backend == config.Lima || rec.Backend == config.Podman {
		return s.vmBack(ctx, rec)
	}
	u, err := s.who(s.cfg.Load())
	if err != nil {
		return nil, err
	}
	b := s.newSandbox(rec, u)
	if err := b.table.Restore(rec.Names); err != nil {
		return nil, err
	}
	return b, s.serve(ctx, b)
}

// sweep removes sockets of boxes that have no record.
func (s *Supervisor) sweep(recs []state.Box) {
	found, _ := filepath.Glob(filepath.Join(s.opt.Project.BoxesDir(), "*.sock")) // the pattern is ours
	for _, path := range found {
		if !slices.ContainsFunc(recs, func(b state.Box) bool { return b.Socket == path }) {
			if err := remove(path); err != nil {
				s.log.Warn("stale socket not removed", slog.String("path", path), slog.String("error", err.Error()))
			}
		}
	}
}

// refusals records what the wall's rules refused by themselves.
func (s *Supervisor) refusals(b *sandbox, rs []namespace.Refusal) {
	for _, r := range rs {
		rec := &capture.Record{Box: b.id, Via: capture.ViaRedirect, Host: r.Addr.String(), Port: r.Port, Mode: capture.ModeNone, Verdict: capture.VerdictDeny}
		switch r.Proto {
		case "udp":
			rec.Proto, rec.Reason = capture.ProtoUDP, string(policy.ReasonUDP)
		case "icmp":
			rec.Reason = string(policy.ReasonICMP)
		default:
			rec.Proto, rec.Reason = capture.ProtoTCP, string(policy.ReasonNotGranted)
		}
		if r.Count > 1 {
			rec.DeniedTimes = int(min(r.Count, 1<<31-1))
		}
		s.record(rec)
	}
}
