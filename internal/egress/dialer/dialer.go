// Package dialer holds the only way out: it resolves, classifies every
// address, dials exactly a checked one, goes through the operator's upstream
// proxy and does upstream TLS. Nobody else resolves or dials. It knows no
// policy: what was granted as internal its caller says.
package dialer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"foldyard/internal/egress/dest"
)

// Config is what a Dialer needs. The zero Config uses the system's resolver
// and roots and no proxy.
type Config struct {
	Resolver    string                              // IP[:PORT]; "": the system's. See ParseResolver
	Roots       *x509.CertPool                      // nil: the system's
	Proxy       func(dest.Target) (*url.URL, error) // nil, or nil URL: direct. See ProxyFunc
	ClientCerts func(dest.Host) *tls.Certificate    // nil, or nil certificate: none
	Own         func(netip.Addr) bool               // this host's addresses; nil: read from its interfaces at each dial
	Limits      Limits
}

// Limits bounds the phases of a dial. A zero field takes the default. None of
// them outlives the dial: a body may take for ever.
type Limits struct {
	Dials    int           // dials at once, 256; more wait for Wait
	Wait     time.Duration // 5 s
	Resolve  time.Duration // 10 s
	Connect  time.Duration // 10 s, over all addresses
	Proxy    time.Duration // 15 s, for the upstream proxy's answer
	TLS      time.Duration // 15 s
	Stagger  time.Duration // 250 ms before the next address is tried as well, RFC 8305
	Addrs    int           // addresses tried, 8; all are checked
	Sessions int           // TLS sessions kept for resumption, 1024
}

func (l Limits) orDefault() Limits {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	count := func(v *int, n int) {
		if *v <= 0 {
			*v = n
		}
	}
	count(&l.Dials, 256)
	def(&l.Wait, 5*time.Second)
	def(&l.Resolve, 10*time.Second)
	def(&l.Connect, 10*time.Second)
	def(&l.Proxy, 15*time.Second)
	def(&l.TLS, 15*time.Second)
	def(&l.Stagger, 250*time.Millisecond)
	count(&l.Addrs, 8)
	count(&l.Sessions, 1024)
	return l
}

// Dialer dials out. It is safe for concurrent use.
type Dialer struct {
	cfg     Config
	lim     Limits
	slots   chan struct{}
	base    *tls.Config
	ahead   ahead
	lookup  func(ctx context.Context, name string) ([]netip.Addr, error)
	connect func(ctx context.Context, a netip.AddrPort, check func(netip.Addr) error) (*net.TCPConn, error)
}

// New returns a Dialer. A resolver that cannot be parsed makes every look-up
// fail.
func New(cfg Config) *Dialer {
	d := &Dialer{cfg: cfg, lim: cfg.Limits.orDefault(), lookup: system, connect: connectTCP}
	d.slots = make(chan struct{}, d.lim.Dials)
	d.base = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            cfg.Roots,
		ClientSessionCache: tls.NewLRUClientSessionCache(d.lim.Sessions),
	}
	if cfg.Resolver != "" {
		server, err := ParseResolver(cfg.Resolver)
		s := &stub{server: server, try: udpTry}
		d.lookup = s.lookup
		if err != nil {
			d.lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, err }
		}
	}
	return d
}

// InFlight returns how many dials are under way and how many may be.
func (d *Dialer) InFlight() (now, limit int) { return len(d.slots), cap(d.slots) }

// Dial connects to t: through the upstream proxy if there is one for t, else
// to an address that t resolves to now. All addresses must be public, or all
// of them such as an internal grant permits. The connection is a bare
// *net.TCPConn but behind an https:// proxy; the address is the one dialled,
// which may be the proxy's. Errors are *Error.
func (d *Dialer) Dial(ctx context.Context, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error) {
	if t.Host.IsZero() || t.Port == 0 {
		return nil, netip.AddrPort{}, &Error{Kind: KindNoName, Target: t, Err: errors.New("no host or no port")}
	}
	if err := d.acquire(ctx, t); err != nil {
		return nil, netip.AddrPort{}, err
	}
	defer d.release()
	via, err := d.proxy(t)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	if via != nil {
		return d.dialVia(ctx, via, t, internal)
	}
	return d.direct(ctx, t, internal)
}

func (d *Dialer) acquire(ctx context.Context, t dest.Target) error {
	select {
	case d.slots <- struct{}{}:
		return nil
	default:
	}
	wait := time.NewTimer(d.lim.Wait)
	defer wait.Stop()
	select {
	case d.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &Error{Kind: kindOf(ctx, ctx.Err()), Target: t, Err: ctx.Err()}
	case <-wait.C:
		return &Error{Kind: KindLimit, Target: t, Err: errors.New("too many dials at once")}
	}
}

func (d *Dialer) release() { <-d.slots }

func (d *Dialer) direct(ctx context.Context, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error) {
	g := d.guard(t, internal)
	addrs, err := d.resolve(ctx, t)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	for _, a := range addrs { // every answer, also those that are not tried
		if err := g.check(a); err != nil {
			return nil, netip.AddrPort{}, err
		}
	}
	c, ap, err := d.race(ctx, t, addrs, g.check)
	if err != nil {
		return nil, ap, err
	}
	if !internal && toOurselves(c, ap.Addr()) {
		c.Close()
		return nil, ap, &Error{Kind: KindClass, Target: t, Addr: ap, Class: dest.ClassOwn}
	}
	return c, ap, nil
}

// toOurselves catches the addresses of this host that no interface lists: local
// routes to whole prefixes, subnet-router anycast, an address that came just
// now. The system connects to those from the address itself.
func toOurselves(c *net.TCPConn, to netip.Addr) bool {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap().WithZone("") == to.Unmap().WithZone("")
}

// known returns the addresses of a host that nobody need be asked for.
func known(h dest.Host) []netip.Addr {
	switch {
	case h.IsIP():
		return []netip.Addr{h.Addr()}
	case h.Loopback():
		return []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return nil
}

// resolve returns the addresses of t, asking once.
func (d *Dialer) resolve(ctx context.Context, t dest.Target) ([]netip.Addr, error) {
	if addrs := known(t.Host); addrs != nil {
		return addrs, nil
	}
	phase, cancel := context.WithTimeout(ctx, d.lim.Resolve)
	defer cancel()
	addrs, err := d.ask(phase, t.Host.Name())
	if err == nil && len(addrs) == 0 {
		err = errNoAddress
	}
	if err != nil {
		k := KindNoName
		if errors.Is(ctx.Err(), context.Canceled) {
			k = KindCanceled
		}
		return nil, &Error{Kind: k, Target: t, Err: err}
	}
	return addrs, nil
}

// guard judges addresses for one dial.
type guard struct {
	target   dest.Target
	internal bool
	own      func(netip.Addr) bool
}

func (d *Dialer) guard(t dest.Target, internal bool) guard {
	g := guard{target: t, internal: internal, own: d.cfg.Own}
	if g.own == nil {
		g.own = interfaces()
	}
	return g
}

func (g *guard) check(a netip.Addr) error {
	c := dest.Classify(a, g.own)
	if c.Public() || g.internal && grantable(c) {
		return nil
	}
	return &Error{Kind: KindClass, Target: g.target, Addr: netip.AddrPortFrom(a, g.target.Port), Class: c}
}

// grantable tells the classes that an internal grant opens.
func grantable(c dest.Class) bool {
	switch c {
	case dest.ClassPublic, dest.ClassLoopback, dest.ClassPrivate, dest.ClassLinkLocal, dest.ClassCGNAT,
		dest.ClassULA, dest.ClassReserved, dest.ClassMetadata, dest.ClassOwn:
		return true
	case dest.ClassUnknown, dest.ClassMulticast, dest.ClassBroadcast, dest.ClassUnspecified, dest.ClassSynthetic:
	}
	return false
}

// Opens tells which grant opens the way to t, as far as t says so itself: one
// that is internal, or none at all. A name may lead anywhere.
func Opens(t dest.Target) (internal, ok bool) {
	switch {
	case t.Host.Loopback():
		return true, true
	case !t.Host.IsIP():
		return false, true
	}
	c := dest.Classify(t.Host.Addr(), interfaces())
	return !c.Public(), grantable(c)
}

// Never tells whether the failed dial is a refusal that no grant lifts.
func (e *Error) Never() bool { return e.Kind == KindClass && !grantable(e.Class) }

// NeverText is Never for the text of an error.
func NeverText(text string) bool {
	for _, c := range []dest.Class{dest.ClassUnknown, dest.ClassMulticast, dest.ClassBroadcast, dest.ClassUnspecified, dest.ClassSynthetic} {
		if strings.HasSuffix(text, KindClass.String()+": "+c.String()) {
			return true
		}
	}
	return false
}

// interfaces tells this host's addresses as they are at the first call. When
// they cannot be read every address is taken for one of them.
func interfaces() func(netip.Addr) bool {
	read := sync.OnceValues(interfaceAddrs)
	return func(a netip.Addr) bool {
		own, err := read()
		return err != nil || slices.Contains(own, a)
	}
}

func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	own := make([]netip.Addr, 0, len(all))
	for _, n := range all {
		if n, ok := n.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, a.Unmap())
			}
		}
	}
	return own, nil
}

// connectTCP dials one address, checking what the system is really about to
// connect to.
func connectTCP(ctx context.Context, a netip.AddrPort, check func(netip.Addr) error) (*net.TCPConn, error) {
	nd := net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		got, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if got.Addr().Unmap() != a.Addr().Unmap() || got.Port() != a.Port() {
			return errors.New("about to connect to another address than was checked")
		}
		return check(got.Addr())
	}}
	c, err := nd.DialContext(ctx, "tcp", a.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}
