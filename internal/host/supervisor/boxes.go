package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/wall/namespace"
)

const (
	stopTimeout = 10 * time.Second // for the end of one box
	launchTime  = 30 * time.Second // for the command of a one-shot box: who made it may have died
)

// Names of boxes: one that the operator asked for, and the twin of one, made for a battery with root's powers.
const (
	mainName = "box"
	twinName = "twin"
)

// CreateBox makes a box: a one-shot one, or the project's long-lived one, which is returned as it is when it runs.
func (s *Supervisor) CreateBox(ctx context.Context, q control.BoxRequest) (control.Box, error) {
	late, err := s.follow(ctx)
	if err != nil {
		return control.Box{}, err
	}
	cfg, err := onBackend(s.cfg.Load(), q.Backend)
	if err != nil {
		return control.Box{}, err
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
		b := s.longLived()
		if b != nil {
			if b, err = s.stands(ctx, cfg, b); err != nil {
				return control.Box{}, err
			}
		}
		if b != nil {
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
		_, serr := s.stopBox(context.WithoutCancel(ctx), b)
		return control.Box{}, errors.Join(err, serr)
	}
	out.Notes = append(s.notes(), late...)
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
func (s *Supervisor) notes() []string {
	var out []string
	s.mu.Lock()
	notice := s.checkout.Notice
	s.mu.Unlock()
	if notice != "" {
		out = append(out, notice)
	}
	return append(out, s.credentialNotes()...)
}

// make builds and serves a box. Nothing is left behind on an error.
func (s *Supervisor) make(ctx context.Context, cfg *config.Effective, q control.BoxRequest, name string) (_ *sandbox, err error) {
	if q.Home || !q.Oneshot {
		s.homes.RLock()
		defer s.homes.RUnlock()
	}
	if isVM(cfg) {
		return s.makeVM(ctx, cfg, q, name)
	}
	program, err := s.program()
	if err != nil {
		return nil, err
	}
	id, nonce := randomHex(4), randomHex(16)
	sp, err := s.spec(cfg, q, id, nonce)
	if err != nil {
		return nil, err
	}
	if q.Oneshot && name != twinName {
		sp.LaunchWithin = launchTime
	}
	rec := state.Box{ID: id, Name: name, Nonce: nonce, Socket: s.opt.Project.BoxSocket(id), Created: s.now(), Oneshot: q.Oneshot, Backend: config.Namespace, Home: sp.Home != "", RO: q.RO}
	rec.Ports = ports(cfg, name)
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
	b := s.newSandbox(rec, sp.User)
	recorded := make(chan error, 1)
	go func() { // while it starts: the disk may be slow
		b.before = marks(s.opt.Dir)
		recorded <- state.WriteBox(s.opt.Project, rec)
	}()
	links, err := namespace.Start(ctx, program, s.reserve.take(), sp, rec.Socket, func(rs []namespace.Refusal) { s.refusals(b, rs) })
	if werr := <-recorded; err == nil && werr != nil {
		_ = b.client.Stop(ctx) // without a record nobody could take it back
		links.Close()
		return nil, werr
	}
	if err != nil {
		return nil, &control.Error{Code: control.CodeHost, Detail: err.Error(), Hint: "fy doctor"}
	}
	if err := s.carry(ctx, b, links); err != nil {
		_ = b.client.Stop(ctx) // the first error is the one that counts
		return nil, err
	}
	s.log.Info("box started", slog.String("box", id), slog.Bool("oneshot", q.Oneshot))
	return b, nil
}

// ports are those that a box publishes, as its record holds them.
func ports(cfg *config.Effective, name string) (out []string) {
	for _, p := range cfg.Box.Ports {
		if name != twinName {
			out = append(out, p.String())
		}
	}
	return out
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
	s.auditRules("grant", entries)
	return s.apply()
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
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.last.take(id), nil
	}
	out, err := s.stopBox(ctx, b)
	if err != nil || id != "" {
		return out, err
	}
	s.endSession(ctx)
	if !b.inVM() || slices.ContainsFunc(s.running(), (*sandbox).inVM) {
		return out, nil
	}
	s.vm.mu.Lock() // one that is being made is waited for
	defer s.vm.mu.Unlock()
	return out, s.vmIdle(ctx)
}

// stopBox ends a box: it asks the keeper, and kills it when it does not answer. A box that is still there then is an error, and is
// neither forgotten nor called ended.
func (s *Supervisor) stopBox(ctx context.Context, b *sandbox) (control.Stopped, error) {
	limit := stopTimeout
	if b.inVM() {
		limit = vmStopTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := control.Stopped{ID: b.id}
	if err := s.end(ctx, b, limit); err != nil {
		b.release() // its record stays: whoever comes next finds it
		return out, &control.Error{Code: control.CodeHost, Detail: fmt.Sprintf("box %s does not end: %v", b.id, err), Hint: "fy down"}
	}
	b.cancel()
	select {
	case <-b.ended:
	case <-ctx.Done():
	}
	return s.account(b), nil
}

// mustEnd ends a box whose end nobody asked to hear of.
func (s *Supervisor) mustEnd(ctx context.Context, b *sandbox) {
	if _, err := s.stopBox(ctx, b); err != nil {
		s.log.Error("box not ended", slog.String("box", b.id), slog.String("error", err.Error()))
	}
}

// end returns once the keeper is gone, and with it everything in the box.
func (s *Supervisor) end(ctx context.Context, b *sandbox, limit time.Duration) error {
	asked, cancel := context.WithTimeout(ctx, limit/4)
	defer cancel()
	err := b.client.Stop(asked) // an error may mean that it is ending already
	patience := ctx
	if !b.inVM() {
		var done context.CancelFunc
		patience, done = context.WithTimeout(ctx, limit/2)
		defer done()
	}
	select {
	case <-b.links.Gone():
		return nil
	case <-patience.Done():
	}
	s.log.Warn("box did not take stop", slog.String("box", b.id), slog.Any("error", err))
	if kerr := b.links.Kill(); kerr != nil {
		return errors.Join(err, kerr)
	}
	select {
	case <-b.links.Gone():
		return nil
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
