package dialer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"foldyard/internal/egress/dest"
)

// race connects to the first of the addresses that answers: the families take
// turns, and the next one is tried when the last failed or has been silent for
// the stagger (RFC 8305).
func (d *Dialer) race(ctx context.Context, t dest.Target, addrs []netip.Addr, check func(netip.Addr) error) (*net.TCPConn, netip.AddrPort, error) {
	order := interleave(addrs, d.lim.Addrs)
	phase, cancel := context.WithTimeout(ctx, d.lim.Connect)
	defer cancel()
	if len(order) == 1 {
		ap := netip.AddrPortFrom(order[0], t.Port)
		c, err := d.connect(phase, ap, check)
		if err != nil {
			return nil, ap, dialError(ctx, t, ap, err)
		}
		return c, ap, nil
	}

	type result struct {
		c   *net.TCPConn
		ap  netip.AddrPort
		err error
	}
	results := make(chan result, len(order))
	stagger := time.NewTimer(d.lim.Stagger)
	defer stagger.Stop()
	next, running := 0, 0
	start := func() {
		ap := netip.AddrPortFrom(order[next], t.Port)
		next, running = next+1, running+1
		stagger.Reset(d.lim.Stagger)
		go func() {
			c, err := d.connect(phase, ap, check)
			results <- result{c, ap, err}
		}()
	}
	var worst *Error
	for start(); running > 0; {
		select {
		case <-stagger.C:
			if next < len(order) {
				start()
			}
		case r := <-results:
			running--
			if r.err == nil {
				cancel()
				for ; running > 0; running-- { // the losers end at once
					if l := <-results; l.err == nil {
						l.c.Close()
					}
				}
				return r.c, r.ap, nil
			}
			worst = worse(worst, dialError(ctx, t, r.ap, r.err))
			if next < len(order) && phase.Err() == nil {
				start()
			}
		}
	}
	return nil, worst.Addr, worst
}

func dialError(ctx context.Context, t dest.Target, ap netip.AddrPort, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok { // the check in connectTCP
		return e
	}
	return &Error{Kind: kindOf(ctx, err), Target: t, Addr: ap, Err: err}
}

// interleave returns at most limit addresses, the families in turn, beginning
// with that of the first address.
func interleave(addrs []netip.Addr, limit int) []netip.Addr {
	var a, b []netip.Addr
	for _, x := range addrs {
		if x.Unmap().Is4() == addrs[0].Unmap().Is4() {
			a = append(a, x)
		} else {
			b = append(b, x)
		}
	}
	out := make([]netip.Addr, 0, len(addrs))
	for len(a) > 0 || len(b) > 0 {
		if len(a) > 0 {
			out, a = append(out, a[0]), a[1:]
		}
		if len(b) > 0 {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out[:min(len(out), limit)]
}
