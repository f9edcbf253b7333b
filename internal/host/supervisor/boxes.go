package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
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

// stopTimeout bounds the end of one box.
const stopTimeout = 10 * time.Second

// Names of boxes: one that the operator asked for, and the twin of one, made for a battery with root's powers.
const (
	mainName = "box"
	twinName = "twin"
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
	ended   chan struct{} // closed once nothing of it runs or is served

	mu      sync.Mutex // guards what follows
	granted []netip.Prefix
	saving  *time.Timer
	over    bool // its record is not to be written any more
}

// CreateBox makes a box: a one-shot one, or the project's long-lived one, which is returned as it is when it runs.
func (s *Supervisor) CreateBox(ctx context.Context, q control.BoxRequest) (control.Box, error) {
	cfg := s.cfg.Load()
	if backend := firstNonEmpty(q.Backend, cfg.Machine.Backend, config.Namespace); backend != config.Namespace {
		return control.Box{}, &control.Error{Code: control.CodeHost, Detail: fmt.Sprintf("the %s backend is not built yet", backend), Hint: `use [machine] backend = "namespace"`}
	}
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.busy--
		s.mu.Unlock()
	}()
	if !q.Oneshot {
		s.making.Lock() // two fy up at once make one box
		defer s.making.Unlock()
		if b := s.longLived(); b != nil {
			out, err := s.enter(b, control.EnterRequest{Env: q.Env, Term: q.Term})
			out.Existed = true
			return out, err
		}
	}
	b, err := s.make(ctx, cfg, q, mainName)
	if err != nil {
		return control.Box{}, err
	}
	out, err := s.enter(b, control.EnterRequest{Env: q.Env, Term: q.Term})
	if err == nil && q.Oneshot && ctx.Err() != nil {
		err = context.Cause(ctx) // nobody is there to launch its command
	}
	if err != nil {
		s.stopBox(context.WithoutCancel(ctx), b)
		return control.Box{}, err
	}
	out.Notes = s.notes(cfg)
	return out, nil
}

func firstNonEmpty(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

// notes are what the operator should know when a box is made.
func (s *Supervisor) notes(cfg *config.Effective) []string {
	var out []string
	s.mu.Lock()
	notice := s.checkout.Notice
	s.mu.Unlock()
	if notice != "" {
		out = append(out, notice)
	}
	if len(cfg.Inject) > 0 {
		out = append(out, "[[inject]] is not built yet: dummies stay dummies")
	}
	return out
}

// make builds and serves a box. Nothing is left behind on an error.
func (s *Supervisor) make(ctx context.Context, cfg *config.Effective, q control.BoxRequest, name string) (_ *sandbox, err error) {
	program, err := s.program()
	if err != nil {
		return nil, err
	}
	id, nonce := randomHex(4), randomHex(16)
	sp, err := s.spec(cfg, q, id, nonce)
	if err != nil {
		return nil, err
	}
	rec := state.Box{ID: id, Name: name, Nonce: nonce, Socket: s.opt.Project.BoxSocket(id), Created: s.now(), Oneshot: q.Oneshot, Backend: config.Namespace, Home: sp.Home != "", RO: q.RO}
	for _, p := range cfg.Box.Ports {
		if name == twinName {
			break
		}
		rec.Ports = append(rec.Ports, p.String())
	}
	if len(q.Allow) > 0 {
		if err := s.grantBox(ctx, id, q); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			s.forget(context.WithoutCancel(ctx), id, rec.Socket)
		}
	}()
	if err := state.WriteBox(s.opt.Project, rec); err != nil {
		return nil, err
	}
	if err := namespace.Start(ctx, program, sp, rec.Socket); err != nil {
		return nil, &control.Error{Code: control.CodeHost, Detail: err.Error(), Hint: "fy doctor"}
	}
	b := s.newSandbox(rec, sp.User)
	b.before = marks(s.opt.Dir)
	if err := s.serve(ctx, b); err != nil {
		_ = b.client.Stop(ctx) // the first error is the one that counts
		return nil, err
	}
	s.log.Info("box started", slog.String("box", id), slog.Bool("oneshot", q.Oneshot))
	return b, nil
}

func (s *Supervisor) newSandbox(rec state.Box, u namespace.User) *sandbox {
	return &sandbox{id: rec.ID, rec: rec, user: u, client: namespace.NewClient(rec.Socket, rec.Nonce), table: dns.NewTable(0), ended: make(chan struct{})}
}

// grantBox adds the rules that live and die with a box that is about to be made.
func (s *Supervisor) grantBox(ctx context.Context, id string, q control.BoxRequest) error {
	entries, _, err := s.entries(control.RuleRequest{Rules: q.Allow, Level: state.Session, Yes: q.Yes}, false, "fy run --allow")
	if err != nil {
		return err
	}
	for i := range entries {
		entries[i].Box = id
	}
	if _, err := s.grants.Add(ctx, s.now(), entries...); err != nil {
		return storeError(err)
	}
	return s.apply()
}

// serve adopts a box that runs, and carries its traffic until it ends.
func (s *Supervisor) serve(ctx context.Context, b *sandbox) error {
	links, err := b.client.Adopt(ctx, func(rs []namespace.Refusal) { s.refusals(b, rs) })
	if err != nil {
		return err
	}
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
	b.setGranted(s.effective.Snapshot().GrantedPrefixes(b.id, s.now()))

	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				s.log.Error("box is not served", slog.String("box", b.id), slog.String("what", what), slog.String("error", err.Error()))
			}
		})
	}
	way := proxy.BoxWay{ID: b.id, Resolve: b.table.Lookup}
	for _, l := range links.Redirect {
		run("redirect", func() error { return s.engine.ServeRedirect(ctx, way, l) })
	}
	for _, l := range links.Proxy {
		run("proxy", func() error { return s.engine.ServeProxy(ctx, way, l) })
	}
	names := &dns.Server{
		Table: b.table, Box: b.id, Record: s.record, OnAssign: func() { s.save(b) },
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
	s.mu.Lock()
	delete(s.boxes, b.id)
	s.idle = s.now()
	s.mu.Unlock()
	close(b.ended)
	if released {
		return
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
		b := s.newSandbox(rec, namespace.User{})
		if b.user, err = s.who(s.cfg.Load()); err == nil {
			err = b.table.Restore(rec.Names)
		}
		if err == nil {
			err = s.serve(ctx, b)
		}
		if err != nil {
			s.log.Info("box is gone", slog.String("box", rec.ID), slog.String("error", err.Error()))
			s.forget(ctx, rec.ID, rec.Socket)
			continue
		}
		if rec.Name == twinName { // its battery died with its supervisor
			s.stopBox(ctx, b)
			continue
		}
		b.before = marks(s.opt.Dir)
		s.log.Info("box taken back", slog.String("box", rec.ID))
	}
	s.sweep(recs)
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

// longLived returns the project's long-lived box, nil if none runs.
func (s *Supervisor) longLived() *sandbox {
	for _, b := range s.running() {
		if !b.rec.Oneshot && b.rec.Name != twinName {
			return b
		}
	}
	return nil
}

// Boxes lists the running boxes.
func (s *Supervisor) Boxes(context.Context) ([]control.Box, error) {
	out := []control.Box{}
	for _, b := range s.running() {
		out = append(out, b.shown())
	}
	return out, nil
}

func (b *sandbox) shown() control.Box {
	return control.Box{ID: b.id, State: "running", Oneshot: b.rec.Oneshot, Created: b.rec.Created.UTC()}
}

// find returns the box called id, or the long-lived one for "".
func (s *Supervisor) find(id string) (*sandbox, error) {
	b := s.box(id)
	if id == "" {
		b = s.longLived()
	}
	switch {
	case b != nil:
		return b, nil
	case id == "":
		return nil, &control.Error{Code: control.CodeNoBox, Detail: "no box runs", Hint: "fy up"}
	}
	return nil, &control.Error{Code: control.CodeNotFound, Detail: fmt.Sprintf("no box %q runs", id)}
}

// Enter returns what it takes to run a command in a box.
func (s *Supervisor) Enter(_ context.Context, id string, q control.EnterRequest) (control.Box, error) {
	b, err := s.find(id)
	if err != nil {
		return control.Box{}, err
	}
	return s.enter(b, q)
}

func (s *Supervisor) enter(b *sandbox, q control.EnterRequest) (control.Box, error) {
	env, err := s.environment(b, q.Env, q.Term)
	if err != nil {
		return control.Box{}, err
	}
	out := b.shown()
	out.Socket, out.Nonce, out.Env, out.Dir, out.Home, out.Shell = b.rec.Socket, b.rec.Nonce, env, s.opt.Dir, b.user.Home, b.user.Shell
	return out, nil
}

// StopBox ends a box; see control.Service.
func (s *Supervisor) StopBox(ctx context.Context, id string) (control.Stopped, error) {
	b, err := s.find(id)
	if err != nil {
		return control.Stopped{ID: id, Gone: true}, nil
	}
	out := s.stopBox(ctx, b)
	if id == "" {
		s.endSession(ctx)
	}
	return out, nil
}

func (s *Supervisor) stopBox(ctx context.Context, b *sandbox) control.Stopped {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := b.client.Stop(ctx); err != nil {
		s.log.Debug("box did not take stop", slog.String("box", b.id), slog.String("error", err.Error()))
	}
	select {
	case <-b.links.Gone():
	case <-ctx.Done():
	}
	b.cancel()
	select {
	case <-b.ended:
	case <-ctx.Done():
	}
	out := control.Stopped{ID: b.id, Refused: b.tally.rows()}
	if b.before != nil {
		out.Changed = changedSince(s.opt.Dir, b.before)
	}
	return out
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

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
