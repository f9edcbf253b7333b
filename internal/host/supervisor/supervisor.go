// Package supervisor is the one host process of a project: it composes engine, DNS, grants, boxes and log, and answers the
// control API. Open supervisor.go first: Run is its life from lock to end. It decides nothing about a request (policy does),
// parses no configuration, and may not obey what a box can write.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/proof/battery"
	"foldyard/internal/wall/namespace"
)

// idleStop is how long a supervisor without a box goes on.
const idleStop = 10 * time.Minute

// Options say which project to supervise, and with what.
type Options struct {
	Host     config.Host
	Project  state.Project
	Dir      string // the checkout
	Version  string
	Program  string // path of fy's executable, loaded into sealed memory for probes
	Programs Programs
	Binary   string // its identity, see control.Binary
	Getenv   func(string) string
	Log      *slog.Logger
	Now      func() time.Time
	Ready    *control.Ready
	IdleStop time.Duration // 0: 10 minutes

	// Listen also serves the proxy, to whoever asks, on this loopback address: fy proxy. Then there is no idle stop, and
	// Listening is told where it is and which certificate to trust. With Auth the URL holds a token that every request must
	// show; without it no request gets a credential.
	Listen    string
	Auth      bool
	Listening func(url, caFile string)
}

// Supervisor is the running process. It is the control.Service of its project.
type Supervisor struct {
	opt   Options
	log   *slog.Logger
	now   func() time.Time
	since time.Time

	checkout  config.Checkout
	cfg       atomic.Pointer[config.Effective]
	operator  operatorFile
	grants    *state.Grants
	effective *effective
	capture   *capture.Log
	authority *ca.Authority
	dialer    *dialer.Dialer
	upstream  func(dest.Target) (*url.URL, error) // the operator's proxy, nil if there is none
	engine    *proxy.Engine
	creds     credentials
	trust     func() (map[string][]byte, error)  // certificate files of every box
	program   func() (*namespace.Program, error) // of keepers and agents
	whole     func() (*namespace.Program, error) // fy itself, for probes
	reserve   reserve

	asks       asks
	counts     counts
	outcomes   outcomes
	nameless   atomic.Int64 // questions that got no address, since their box has too many names
	metrics    net.Listener // nil: not asked for, or unmeasured says why not
	unmeasured string
	exporter   *capture.Exporter // likewise
	rearm      chan struct{}     // the next expiry may have changed
	control    battery.Control   // answers control.foldyard.internal

	attributing chan struct{} // a place for each question that is asked of a keeper

	mu        sync.Mutex
	boxes     map[string]*sandbox
	last      lastWords // of one-shot boxes that ended before they were stopped
	vm        vm
	busy      int       // boxes that are being made
	idle      time.Time // since when there is no box
	rendering sync.Mutex
	making    sync.Mutex   // one long-lived box at a time
	homes     sync.RWMutex // read by who makes a box with the kept home, written by who empties it
	verifying sync.Mutex   // one battery at a time

	serving sync.WaitGroup // what serves boxes
	quit    context.CancelFunc
	keep    atomic.Bool // boxes outlive this process
}

// Run supervises until it is told to stop, ctx ends, or nothing happened for IdleStop. It returns control.ErrTaken when
// another supervisor holds the project.
func Run(ctx context.Context, opt Options) (err error) {
	if opt.IdleStop == 0 {
		opt.IdleStop = idleStop
	}
	defer func() {
		opt.Ready.Tell(err) // after a start that went well this says nothing
	}()
	if err := opt.Project.Ensure(); err != nil {
		return err
	}
	lock, err := state.TryLock(opt.Project.SupervisorLock())
	if errors.Is(err, state.ErrLocked) {
		return control.ErrTaken
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := open(ctx, opt)
	if err != nil {
		return err
	}
	defer s.close()
	s.quit = cancel
	l, err := listen(opt.Project.ControlSocket())
	if err != nil {
		return err
	}
	s.adoptAll(ctx)
	if err := s.listenProxy(ctx); err != nil {
		l.Close()
		return err
	}
	s.serving.Go(func() { s.serveMetrics(ctx) })
	opt.Ready.Tell(nil)
	s.log.Info("supervisor started", slog.Int("pid", os.Getpid()), slog.String("project", opt.Project.Name), slog.String("version", opt.Version))
	ticking := make(chan struct{})
	go func() {
		defer close(ticking)
		s.tick(ctx)
	}()
	err = (&control.Server{Service: s, Log: s.log, Binary: opt.Binary}).Serve(ctx, l)
	cancel()
	<-ticking
	s.log.Info("supervisor ends", slog.Bool("boxes_go_on", s.keep.Load()))
	return err
}

// listen makes the control socket. A stale one of a supervisor that crashed is replaced: we hold the lock.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale control socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil { // its directory is 0700 already
		l.Close()
		return nil, err
	}
	return l, nil
}

// open makes all there is, in the order in which it depends on each other. It starts nothing that serves.
func open(ctx context.Context, opt Options) (s *Supervisor, err error) {
	s = &Supervisor{opt: opt, log: opt.Log, now: opt.Now, since: opt.Now(), boxes: map[string]*sandbox{}, attributing: make(chan struct{}, attributions), rearm: make(chan struct{}, 1), idle: opt.Now()}
	made := s // a return of nil, err leaves nothing in s to close
	defer func() {
		if err != nil && made.engine != nil {
			made.close()
		}
	}()
	if s.checkout, err = opt.Host.Resolve(opt.Dir); err != nil {
		return nil, err
	}
	operator, _ := s.operator.look(opt.Host.Layout.OperatorConfig()) // before it is read, so that no change is missed
	s.operator.saw(operator)
	cfg, err := opt.Host.Load(s.checkout)
	if err != nil {
		return nil, err
	}
	s.cfg.Store(cfg)
	if s.grants, err = openGrants(ctx, opt); err != nil {
		return nil, err
	}
	var moved string
	if s.effective, moved, err = openEffective(opt.Project.Effective(), s.now()); err != nil {
		return nil, err
	}
	if moved != "" {
		s.log.Error("damaged policy moved aside", slog.String("from", opt.Project.Effective()), slog.String("to", moved))
	}
	if s.authority, err = ca.LoadOrCreate(opt.Host.Layout.CADir(), s.now()); err != nil {
		return nil, err
	}
	if err := s.openEgress(ctx, cfg); err != nil {
		return nil, err
	}
	s.trust = sync.OnceValues(s.trustFiles)
	s.whole = sync.OnceValues(func() (*namespace.Program, error) { return namespace.OpenProgram(opt.Program) })
	if s.program = s.whole; len(opt.Programs.Box) > 0 {
		s.program = sync.OnceValues(func() (*namespace.Program, error) { return namespace.EmbeddedProgram(opt.Programs.Box) })
	}
	if err := s.seed(ctx, cfg); err != nil {
		return s, err
	}
	return s, s.render(true)
}

// seed takes the first value of the allowlist switch from an adopted configuration; afterwards the store decides.
func (s *Supervisor) seed(ctx context.Context, cfg *config.Effective) error {
	if !cfg.Adopted {
		return nil
	}
	_, err := s.grants.Seed(ctx, cfg.Proxy.Enforce.String(), s.now().Add(time.Hour))
	return err
}

// openGrants opens the store. A damaged one ends the start: boxes that run have no network until it is repaired. Session
// grants survive a crash and a restart, but not a reboot: their session is over.
func openGrants(ctx context.Context, opt Options) (*state.Grants, error) {
	g, err := state.OpenGrants(opt.Project)
	if err != nil {
		return nil, err
	}
	if boot := bootID(); boot != "" && bootChanged(opt.Project, boot) {
		if _, err := g.EndSession(ctx); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// close ends everything in the reverse order.
func (s *Supervisor) close() {
	s.mu.Lock()
	boxes := make([]*sandbox, 0, len(s.boxes))
	for _, b := range s.boxes {
		boxes = append(boxes, b)
	}
	s.mu.Unlock()
	for _, b := range boxes {
		b.release()
	}
	s.vmRelease()
	if !s.keep.Load() {
		if err := s.vmStop(context.Background()); err != nil {
			s.log.Warn("machine not stopped", slog.String("error", err.Error()))
		}
	}
	s.reserve.close()
	s.engine.Close()
	s.closeCredentials()
	s.serving.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s.flushCounts(ctx)
	if s.metrics != nil {
		_ = s.metrics.Close() // closed already, where it was served
	}
	if s.exporter != nil {
		s.exporter.Close()
	}
	if err := s.capture.Close(); err != nil {
		s.log.Warn("close log", slog.String("error", err.Error()))
	}
	// The socket's file is removed by its listener.
}

// tick follows the clock and the policy file until ctx ends.
func (s *Supervisor) tick(ctx context.Context) {
	poll, flush := time.NewTicker(pollEvery), time.NewTicker(flushEvery)
	defer poll.Stop()
	defer flush.Stop()
	expiry := time.NewTimer(time.Hour)
	defer expiry.Stop()
	for {
		now := s.now()
		next := now.Add(time.Hour)
		if t, ok := s.effective.Snapshot().NextChange(now); ok && t.Before(next) {
			next = t
		}
		expiry.Reset(max(next.Sub(now), 0) + time.Millisecond)
		select {
		case <-ctx.Done():
			return
		case <-s.rearm:
		case <-poll.C:
			if s.effective.poll() {
				s.noteFault()
				s.policyChanged()
			}
			if s.idleFor() >= s.opt.IdleStop {
				s.log.Info("idle stop", slog.Duration("after", s.opt.IdleStop))
				s.endSession(ctx)
				s.quit()
			}
		case <-flush.C:
			s.flushCounts(ctx)
		case <-expiry.C:
			s.expire(ctx)
		}
	}
}

// expire takes out of the store what time ended.
func (s *Supervisor) expire(ctx context.Context) {
	_, changed, err := s.grants.Prune(ctx, s.now())
	switch {
	case err != nil:
		s.log.Warn("expired grants not removed", slog.String("error", err.Error()))
	case changed:
		s.audit("expire", "")
		if err := s.apply(); err != nil {
			s.log.Warn("policy not rendered", slog.String("error", err.Error()))
		}
		return
	}
	s.policyChanged() // the snapshot judges expiry by itself; what runs must follow
}

func (s *Supervisor) noteFault() {
	if err := s.effective.Fault(); err != nil {
		s.log.Error("policy unreadable: everything is refused", slog.String("error", err.Error()))
		return
	}
	s.log.Info("policy read again", slog.Uint64("generation", s.effective.Snapshot().Generation()))
}

// endSession drops session and once grants.
func (s *Supervisor) endSession(ctx context.Context) {
	_, err := s.grants.EndSession(ctx)
	if err == nil {
		err = s.apply()
	}
	if err != nil {
		s.log.Warn("session grants not dropped", slog.String("error", err.Error()))
	}
}

func (s *Supervisor) idleFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.boxes) > 0 || s.busy > 0 || s.opt.Listen != "" {
		s.idle = s.now()
	}
	return s.now().Sub(s.idle)
}

// box returns a running box, nil if there is none of that id.
func (s *Supervisor) box(id string) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[id]
}

// running returns the boxes, oldest first.
func (s *Supervisor) running() []*sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*sandbox, 0, len(s.boxes))
	for _, b := range s.boxes {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *sandbox) int { return a.rec.Created.Compare(b.rec.Created) })
	return out
}

func (s *Supervisor) snapshotEnforces() bool { return s.effective.Snapshot().Enforcing(s.now()) }

// audit writes what the operator did, or what time did for them, to the audit log.
func (s *Supervisor) audit(event, detail string) {
	s.capture.Audit(&capture.Event{Event: event, Detail: detail})
}

// Stop ends the supervisor; see control.Service.
func (s *Supervisor) Stop(ctx context.Context, keep bool) error {
	s.keep.Store(keep)
	if !keep {
		for _, b := range s.running() {
			s.mustEnd(ctx, b)
		}
		s.endSession(ctx)
	}
	// The server lets this answer out before it ends.
	s.quit()
	return nil
}
