// Package proxy carries what a box sends, from an accepted socket to its end:
// intake, Flow, decide, then refuse, tunnel or intercept, then record. Read
// flow.go first; every way in meets there.
//
// It composes the other packages of egress. It may not resolve or dial by
// itself, keep policy of its own, read files, or let anything pass that
// policy.Snapshot did not permit.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/intake/redirect"
	"foldyard/internal/egress/policy"
)

// Dialer is the only way out. dialer.Dialer is one.
type Dialer interface {
	// Dial connects to a checked address of t; internal lets non-public
	// addresses through.
	Dial(ctx context.Context, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error)
	// DialTLS is Dial and a handshake that verified t's certificate.
	DialTLS(ctx context.Context, t dest.Target, internal bool, alpn ...string) (*tls.Conn, netip.AddrPort, error)
	// LookAhead begins to resolve the name of t for a dial soon; it does not
	// wait, and connects to nothing.
	LookAhead(ctx context.Context, t dest.Target)
}

// Forwarder is a Dialer that may have to send plain HTTP requests to the
// operator's upstream proxy in absolute form, since many of those refuse
// CONNECT to port 80.
type Forwarder interface {
	Forward(t dest.Target) bool
	DialForward(ctx context.Context, t dest.Target, internal bool) (c net.Conn, at netip.AddrPort, auth string, err error)
}

// Leaves gives the certificate to answer for a host with. ca.Leaves does.
type Leaves interface {
	Get(ctx context.Context, box string, h dest.Host) (*tls.Certificate, error)
	// Prepare is Get without waiting, ahead of one. It reports whether h is
	// new: nothing is cached for it.
	Prepare(ctx context.Context, box string, h dest.Host) bool
}

// Ask is a refused connection or request whose box waits for the operator.
type Ask struct {
	Box     string
	Target  dest.Target
	Scheme  string
	Method  string // "" while only the target is known
	Path    string // without its query
	Process *capture.Process
}

// Config is what an Engine works with. Policy, Dialer, Leaves and Record are
// required.
type Config struct {
	// Policy returns the snapshot in force; it is called for every decision.
	Policy func() *policy.Snapshot
	Dialer Dialer
	Leaves Leaves
	// Record takes one finished record and owns it; it must not block.
	Record func(*capture.Record)
	// Hold waits until the operator has answered a, and returns why it stays
	// refused, or "" when there was an answer: then policy decides again. Nil
	// refuses at once.
	Hold func(ctx context.Context, a Ask) policy.Reason
	// Inject puts credentials on requests and keeps them out of answers. Nil:
	// there are none.
	Inject *inject.Injector
	// Control answers dest.ControlName. Nil: that name is refused.
	Control http.Handler
	// Now is the clock that policy is asked with; nil means time.Now.
	Now func() time.Time
	// Attribute finds the process in a box that owns the socket at remote
	// (its own end) connected to local. Nil or a nil answer: unknown.
	Attribute func(box string, local, remote netip.AddrPort) *capture.Process
	Limits    Limits

	// originalDst replaces SO_ORIGINAL_DST in tests.
	originalDst func(net.Conn) (netip.AddrPort, error)
}

// BoxWay is a box as its intakes know it.
type BoxWay struct {
	ID string
	// Resolve returns the name behind a synthetic address of this box.
	Resolve func(netip.Addr) (dest.Host, bool)
	// Token, if set, returns what a request on the proxy port must show (407
	// without; "" is shown by nobody).
	Token func() string
}

// Engine serves any number of boxes. Make one with New.
type Engine struct {
	cfg    Config
	lim    Limits
	heads  http1.Limits
	meters meters
	live   registry
	pool   pool
	tls    *tls.Config // one for all, so that session tickets resume
	front  *front      // HTTP/2

	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	sweep sync.Once
	ticks atomic.Uint32 // coarse clock, one tick a sweep
}

// New returns an engine that serves nothing yet. It starts no goroutine.
func New(cfg Config) *Engine {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.originalDst == nil {
		cfg.originalDst = originalDst
	}
	e := &Engine{cfg: cfg, lim: cfg.Limits.orDefaults()}
	e.heads = http1.Limits{HeadBytes: e.lim.HeaderBytes, Fields: e.lim.HeaderFields}
	e.meters.init(e.lim)
	e.live.init(e.lim)
	e.pool.init(e.lim)
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.tls = &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: e.leaf,
	}
	e.front = newFront(e)
	return e
}

func originalDst(c net.Conn) (netip.AddrPort, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, redirect.ErrNotSupported
	}
	return redirect.OriginalDst(tcp)
}

// ServeRedirect serves connections that the box's kernel redirected to l. It
// closes l, and returns nil, when ctx or the engine ends.
func (e *Engine) ServeRedirect(ctx context.Context, box BoxWay, l *net.TCPListener) error {
	return e.serve(ctx, box, l, e.redirected)
}

// ServeProxy serves CONNECT, absolute-form requests and SOCKS5. It closes l,
// and returns nil, when ctx or the engine ends.
func (e *Engine) ServeProxy(ctx context.Context, box BoxWay, l net.Listener) error {
	return e.serve(ctx, box, l, e.proxied)
}

func (e *Engine) serve(ctx context.Context, box BoxWay, l net.Listener, handle func(*client)) error {
	e.sweep.Do(func() { e.wg.Go(e.sweeper) })
	closeListener := func() { _ = l.Close() } // an accept fails next, which ends the loop
	defer context.AfterFunc(ctx, closeListener)()
	defer context.AfterFunc(e.ctx, closeListener)()
	wait := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			wait = 5 * time.Millisecond
			e.accepted(ctx, box, nc, handle)
		case ctx.Err() != nil || e.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // out of descriptors, most likely: others will end
			select {
			case <-time.After(wait):
				wait = min(2*wait, time.Second)
			case <-ctx.Done():
			case <-e.ctx.Done():
			}
		}
	}
}

// lastWords is how long the end of a box waits for records of what it ended.
const lastWords = 2 * time.Second

// CloseBox ends everything of one box at once, and returns when all of it is
// recorded: the box may have gone on an answer that we still wrote down.
func (e *Engine) CloseBox(id string) {
	for _, c := range e.live.all() {
		if c.box.ID == id {
			c.cut(endStopped)
		}
	}
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case <-e.live.quiet(id):
	case <-late.C:
	}
	e.live.forget(id)
}

// Close ends everything and waits until it has ended.
func (e *Engine) Close() {
	e.stop()
	for _, c := range e.live.all() {
		c.cut(endStopped)
	}
	e.front.close()
	e.wg.Wait()
	e.pool.close()
}
