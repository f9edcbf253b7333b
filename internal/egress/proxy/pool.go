package proxy

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/redirect"
)

// pool keeps idle HTTP/1.1 connections to upstreams, the last used first. A
// connection belongs to one target for life, and one that an internal grant
// opened is never lent to a request without one.
type pool struct {
	mu      sync.Mutex // guards the fields that follow
	idle    map[poolKey][]*upstream
	n       int
	most    int
	keep    time.Duration
	closed  bool
	evicted atomic.Int64
}

type poolKey struct {
	target   dest.Target
	tls      bool
	internal bool
	socket   bool // for a WebSocket: never pooled, and no proxy reads along
}

// upstream is one HTTP/1.1 connection to an origin.
type upstream struct {
	net.Conn
	tcp   *net.TCPConn // under it, where it can be looked at
	addr  netip.AddrPort
	key   poolKey
	br    *bufio.Reader // nil while idle
	bw    *bufio.Writer
	used  bool // served a request before
	bound bool // to the user who showed a credential on it, see personal
	via   *forward
	since time.Time
}

// forward says that the connection ends at the operator's upstream proxy.
type forward struct{ auth string }

func (p *pool) init(l Limits) {
	p.idle = make(map[poolKey][]*upstream)
	p.most, p.keep = l.Pooled, l.IdleUpstream
}

// get returns an idle connection that is still open, or nil.
func (p *pool) get(k poolKey) *upstream {
	for {
		p.mu.Lock()
		list := p.idle[k]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		u := list[len(list)-1]
		list[len(list)-1] = nil
		p.idle[k] = list[:len(list)-1]
		p.n--
		p.mu.Unlock()
		if u.fresh() {
			u.open()
			return u
		}
		_ = u.Close() // dead or out of step
	}
}

// fresh reports whether an idle connection can be used: open, and with nothing
// to read. Bytes that nobody asked for would pass for the next answer.
func (u *upstream) fresh() bool {
	if u.tcp == nil {
		return true
	}
	pending, err := redirect.Pending(u.tcp)
	return err == nil && !pending
}

func (u *upstream) open() {
	u.br, u.bw = readers.get(u.Conn), writers.get(u.Conn)
}

func (u *upstream) release() {
	if u.br != nil {
		readers.put(u.br)
		writers.put(u.bw)
		u.br, u.bw = nil, nil
	}
}

// put takes back a connection whose exchange is complete.
func (p *pool) put(u *upstream) {
	if u.br.Buffered() > 0 {
		u.abort()
		return
	}
	u.release()
	u.used, u.since = true, time.Now()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		_ = u.Close() // nobody waits for it
		return
	}
	var oldest *upstream
	if p.n >= p.most {
		oldest = p.evict()
	}
	p.idle[u.key] = append(p.idle[u.key], u)
	p.n++
	p.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // likewise
	}
}

// evict takes the connection that has idled longest. p.mu is held.
func (p *pool) evict() *upstream {
	var old *upstream
	for _, list := range p.idle {
		if len(list) > 0 && (old == nil || list[0].since.Before(old.since)) {
			old = list[0]
		}
	}
	if old != nil {
		p.drop(old.key, 1)
		p.evicted.Add(1)
	}
	return old
}

// drop forgets the first n of a list. p.mu is held.
func (p *pool) drop(k poolKey, n int) {
	list := p.idle[k]
	rest := copy(list, list[n:])
	clear(list[rest:])
	p.n -= n
	if rest == 0 {
		delete(p.idle, k)
		return
	}
	p.idle[k] = list[:rest]
}

// expire closes what has idled too long.
func (p *pool) expire() {
	var old []*upstream
	limit := time.Now().Add(-p.keep)
	p.mu.Lock()
	for k, list := range p.idle {
		n := 0
		for n < len(list) && list[n].since.Before(limit) {
			n++
		}
		old = append(old, list[:n]...)
		p.drop(k, n)
	}
	p.mu.Unlock()
	for _, u := range old {
		_ = u.Close() // nobody waits for it
	}
}

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle, p.n = nil, 0
	p.mu.Unlock()
	for _, list := range idle {
		for _, u := range list {
			_ = u.Close() // nobody waits for it
		}
	}
}

// bare returns the socket under the connection: closing it takes no time.
func (u *upstream) bare() net.Conn {
	if t, ok := u.Conn.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return u.Conn
}

// abort ends a connection in the middle of an exchange. Its buffers are left
// to the collector: an upload may still be writing.
func (u *upstream) abort() { _ = u.bare().Close() }

// connect returns a connection for one exchange: an idle one unless fresh is
// asked for, else a new one.
func (e *Engine) connect(ctx context.Context, k poolKey, fresh bool) (*upstream, error) {
	if !fresh {
		if u := e.pool.get(k); u != nil {
			return u, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, e.lim.Dial)
	defer cancel()
	u := &upstream{key: k}
	if f, ok := e.cfg.Dialer.(Forwarder); ok && !k.tls && !k.socket && f.Forward(k.target) {
		nc, addr, auth, err := f.DialForward(ctx, k.target, k.internal)
		if err != nil {
			return nil, err
		}
		u.Conn, u.addr, u.via = nc, addr, &forward{auth}
		u.tcp, _ = nc.(*net.TCPConn)
	} else if k.tls {
		tc, addr, err := e.cfg.Dialer.DialTLS(ctx, k.target, k.internal, "http/1.1")
		if err != nil {
			return nil, err
		}
		u.Conn, u.addr = tc, addr
		u.tcp, _ = tc.NetConn().(*net.TCPConn)
	} else {
		nc, addr, err := e.cfg.Dialer.Dial(ctx, k.target, k.internal)
		if err != nil {
			return nil, err
		}
		u.Conn, u.addr = nc, addr
		u.tcp, _ = nc.(*net.TCPConn)
	}
	u.open()
	return u, nil
}
