package inject

import (
	"errors"
	"io"
)

// reader passes a body on as it comes and masks, or stops at, what its matcher
// finds, wherever the pieces are cut. Of what has arrived it keeps back only
// the beginning of a possible occurrence.
type reader struct {
	src io.Reader
	m   *matcher
	// found is told of each occurrence; an error it returns ends the body
	// before the first byte of the occurrence. Nil error: masked.
	found func(owner int) error
	// partial, if set, is told when a long beginning was kept back and did not
	// go on.
	partial func()

	held  []byte // not passed on yet
	carry int    // bytes of held, and then of src, that belong to an occurrence
	out   []byte // ready, when the caller's buffer was too small
	buf   []byte
	err   error
}

// suspicious is how many bytes of a value must have been kept back in vain
// before it looks like somebody guessing at its beginning.
const suspicious = 12

func newReader(src io.Reader, m *matcher, found func(owner int) error) *reader {
	return &reader{src: src, m: m, found: found}
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if len(r.out) > 0 {
			n := copy(p, r.out)
			r.out = r.out[n:]
			return n, nil
		}
		if r.err != nil {
			return 0, r.err
		}
		small := len(p) < 4*r.m.max
		b := p
		if small {
			if r.buf == nil {
				r.buf = make([]byte, 4*r.m.max+4096)
			}
			b = r.buf
		}
		n := r.fill(b)
		if small {
			r.out = b[:n]
			continue
		}
		if n > 0 {
			return n, nil
		}
	}
}

// fill puts what may be passed on at the start of b, which has room for more
// than is held, and returns its length.
func (r *reader) fill(b []byte) int {
	kept := copy(b, r.held)
	n, err := r.src.Read(b[kept:])
	if n < 0 || n > len(b)-kept {
		n, err = 0, errors.New("a reader that miscounts")
	}
	if n == 0 && err == nil {
		return 0
	}
	b = b[:kept+n]
	ready := len(b)
	if err == nil {
		ready = r.m.pending(b)
	}
	r.held = append(r.held[:0], b[ready:]...) // as they came: what follows is matched with them
	carry := r.carry
	r.err = err
	ready = r.judge(b, ready)
	if r.partial != nil && kept >= suspicious && carry == 0 && ready > 0 && b[0] != mask {
		r.partial()
	}
	return ready
}

// judge masks occurrences in b[:ready], or cuts it before the first one that
// ends the body.
func (r *reader) judge(b []byte, ready int) int {
	var spans [][2]int
	last := r.carry
	r.m.each(b, func(start, end, owner int) bool {
		if start >= ready {
			return false // it is held whole, and found again
		}
		if stop := r.found(owner); stop != nil {
			r.err, ready = stop, start
			return false
		}
		spans = append(spans, [2]int{start, end})
		last = max(last, end)
		return true
	})
	fill(b[:min(r.carry, ready)])
	for _, s := range spans {
		fill(b[s[0]:min(s[1], ready)])
	}
	r.carry = max(0, last-ready)
	return ready
}

func fill(b []byte) {
	for i := range b {
		b[i] = mask
	}
}
