package ca

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"foldyard/internal/egress/dest"
)

const (
	leafLife  = 7 * 24 * time.Hour
	leafRenew = 2 * 24 * time.Hour // left to live when a new one is minted
	maxCommon = 64                 // bytes of a common name, RFC 5280 appendix A.1
)

// ErrLimit is returned by Get when a box asks for new leaves too fast. It may
// ask again a moment later; leaves in the cache stay free.
var ErrLimit = errors.New("too many new certificates")

// Limits bounds a Leaves. A zero field takes the default.
type Limits struct {
	Cache     int     // leaves kept, of all boxes; 1024
	PerSecond float64 // leaves minted for one box; 50
	Burst     int     // leaves minted for one box at once; 256
	Boxes     int     // boxes whose budget is remembered; 256
}

// Leaves mints and caches leaf certificates.
type Leaves struct {
	a     *Authority
	now   func() time.Time
	lim   Limits
	cache *lru.Cache[dest.Host, leaf]
	group singleflight.Group
	gone  atomic.Int64 // forgotten for others

	mu      sync.Mutex // guards the fields that follow
	budgets *lru.Cache[string, *rate.Limiter]
}

type leaf struct {
	cert             *tls.Certificate
	notBefore, renew time.Time
}

// NewLeaves returns an empty cache of leaves signed by a.
func NewLeaves(a *Authority, now func() time.Time, lim Limits) *Leaves {
	if lim.Cache <= 0 {
		lim.Cache = 1024
	}
	if lim.PerSecond <= 0 {
		lim.PerSecond = 50
	}
	if lim.Burst <= 0 {
		lim.Burst = 256
	}
	if lim.Boxes <= 0 {
		lim.Boxes = 256
	}
	l := &Leaves{a: a, now: now, lim: lim}
	l.cache, _ = lru.NewWithEvict(lim.Cache, func(dest.Host, leaf) { l.gone.Add(1) }) // errs only on a size below 1
	l.budgets, _ = lru.New[string, *rate.Limiter](lim.Boxes)
	return l
}

// Get returns the leaf for h, minting it at the cost of the box when it is not
// in the cache. The error is ErrLimit when the box has used up its budget. The
// certificate is shared: the caller must not change it.
func (l *Leaves) Get(ctx context.Context, box string, h dest.Host) (*tls.Certificate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if h.IsZero() {
		return nil, errors.New("mint a certificate: no host")
	}
	now := l.now()
	if c, ok := l.cached(h, now); ok {
		return c, nil
	}
	v, err, _ := l.group.Do(box+" "+h.String(), func() (any, error) {
		if c, ok := l.cached(h, now); ok {
			return c, nil
		}
		if !l.budget(box).AllowN(now, 1) {
			return nil, ErrLimit
		}
		n, err := l.mint(h, now)
		if err != nil {
			return nil, err
		}
		l.cache.Add(h, n)
		return n.cert, nil
	})
	if err != nil {
		return nil, fmt.Errorf("mint a certificate for %s: %w", h, err)
	}
	return v.(*tls.Certificate), nil
}

// Prepare begins to mint the leaf for h where a Get would have to, and reports
// whether it would. It does not wait.
func (l *Leaves) Prepare(ctx context.Context, box string, h dest.Host) bool {
	if _, ok := l.cached(h, l.now()); ok || h.IsZero() {
		return false
	}
	go func() { _, _ = l.Get(ctx, box, h) }() // whoever needs it asks again
	return true
}

func (l *Leaves) cached(h dest.Host, now time.Time) (*tls.Certificate, bool) {
	c, ok := l.cache.Get(h)
	if !ok || now.Before(c.notBefore) || now.After(c.renew) {
		return nil, false
	}
	return c.cert, true
}

func (l *Leaves) budget(box string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.budgets.Get(box)
	if !ok {
		b = rate.NewLimiter(rate.Limit(l.lim.PerSecond), l.lim.Burst)
		l.budgets.Add(box, b)
	}
	return b
}

// Len returns how many leaves are cached.
func (l *Leaves) Len() int { return l.cache.Len() }

// Limits returns what l is bounded by.
func (l *Leaves) Limits() Limits { return l.lim }

// Forgotten returns how many leaves were dropped to make room.
func (l *Leaves) Forgotten() int64 { return l.gone.Load() }

func (l *Leaves) mint(h dest.Host, now time.Time) (leaf, error) {
	ca := l.a.cert
	notAfter := now.Add(leafLife)
	n := leaf{notBefore: now.Add(-backdate), renew: notAfter.Add(-leafRenew)}
	if notAfter.After(ca.NotAfter) { // the last week of the authority
		notAfter, n.renew = ca.NotAfter, ca.NotAfter
	}
	if n.notBefore.Before(ca.NotBefore) {
		n.notBefore = ca.NotBefore
	}
	t := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"foldyard"}},
		NotBefore:   n.notBefore.UTC(),
		NotAfter:    notAfter.UTC(),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		// not an authority, and says so
		BasicConstraintsValid: true,
	}
	if name := h.String(); len(name) <= maxCommon {
		t.Subject.CommonName = name
	}
	if h.IsIP() {
		t.IPAddresses = []net.IP{h.Addr().AsSlice()}
	} else {
		t.DNSNames = []string{h.Name()}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, &l.a.leaf.PublicKey, l.a.key)
	if err != nil {
		return leaf{}, err
	}
	// Leaf stays nil: a parsed certificate takes several times its DER.
	n.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: l.a.leaf}
	return n, nil
}
