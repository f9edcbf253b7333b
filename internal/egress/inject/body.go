package inject

import (
	"errors"
	"io"
)

// maxScanned bounds what is looked through of one request body: what follows
// passes.
const maxScanned = 8 << 20

// Reads reports whether Request reads the body.
func (g *Grip) Reads() bool {
	return g != nil && (g.scan || g.signing != nil && g.signing.chunked != nil)
}

// Request returns the body of the request as it is to be sent. A dummy in it
// that does not belong to the target ends it with a *Refusal.
func (g *Grip) Request(r io.Reader) io.Reader {
	if g == nil {
		return r
	}
	if g.scan {
		r = g.watched(r)
	}
	if g.signing != nil && g.signing.chunked != nil {
		r = g.signing.chunked.over(r)
	}
	return r
}

func (g *Grip) watched(r io.Reader) io.Reader {
	bounded := &io.LimitedReader{R: r, N: maxScanned}
	dummies := g.set.dummies
	m := g.set.trip
	if g.view != nil {
		m, dummies = g.view.foreign, g.view.dummies
	}
	if m == nil {
		return r
	}
	return &scanned{rest: r, bounded: bounded, watch: newReader(bounded, m, func(i int) error {
		refusal := g.in.elsewhere(&dummies[i], g.req, "in the body")
		g.tripped.Store(refusal)
		return refusal
	})}
}

// Tripped returns why the body was stopped, nil if it was not.
func (g *Grip) Tripped() *Refusal {
	if g == nil {
		return nil
	}
	return g.tripped.Load()
}

// scanned reads through watch up to its bound, then on without it.
type scanned struct {
	watch   io.Reader
	bounded *io.LimitedReader
	rest    io.Reader
	past    bool
}

func (s *scanned) Read(p []byte) (int, error) {
	if s.past {
		return s.rest.Read(p)
	}
	n, err := s.watch.Read(p)
	if errors.Is(err, io.EOF) && s.bounded.N <= 0 {
		s.past, err = true, nil
		if n == 0 {
			return s.rest.Read(p)
		}
	}
	return n, err
}
