// Package gather writes behind: what is written to a connection while a write
// is on its way goes out with the next one. The streams of an HTTP/2
// connection, which write a few bytes each, share system calls that way.
package gather

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	size   = 32 << 10 // of a buffer: more does not wait, its writer does
	direct = 8 << 10  // a write of so much is worth a system call of its own
)

type buffer [size]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// Conn is a connection whose writes are gathered from Gather on. As with a
// socket's own buffer, the error of a write is that of a later one. Make one
// with New.
type Conn struct {
	net.Conn
	on atomic.Bool

	mu      sync.Mutex // guards the fields that follow
	changed sync.Cond  // when any of them did, on mu
	pending *buffer    // nil: nothing waits
	n       int        // bytes in pending
	writing bool
	closing bool
	err     error
}

// New returns a connection over c. Until Gather it passes each write on.
func New(c net.Conn) *Conn {
	g := &Conn{Conn: c}
	g.changed.L = &g.mu
	return g
}

// Gather begins to gather.
func (c *Conn) Gather() { c.on.Store(true) }

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.on.Load() {
		return c.Conn.Write(p)
	}
	c.mu.Lock()
	for c.err == nil && c.writing && c.n+len(p) > size {
		c.changed.Wait()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	first := !c.writing
	c.writing = true
	if first && len(p) >= direct {
		c.mu.Unlock()
		n, err := c.Conn.Write(p)
		if c.wrote(err) {
			go c.drain()
		}
		return n, err
	}
	if c.pending == nil {
		c.pending = buffers.Get().(*buffer)
	}
	c.n += copy(c.pending[c.n:], p)
	c.mu.Unlock()
	if first {
		go c.drain()
	}
	return len(p), nil
}

// wrote ends a write, and reports whether something waits for the next.
func (c *Conn) wrote(err error) (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.err == nil {
		c.err = err
	}
	if c.err != nil && c.pending != nil {
		buffers.Put(c.pending)
		c.pending, c.n = nil, 0
	}
	c.writing = c.pending != nil
	c.changed.Broadcast()
	return c.writing
}

// drain writes until nothing waits. Each time it lets those run first that may
// have something to add.
func (c *Conn) drain() {
	for more := true; more; {
		runtime.Gosched()
		c.mu.Lock()
		b, n := c.pending, c.n
		c.pending, c.n = nil, 0
		c.changed.Broadcast()
		c.mu.Unlock()
		_, err := c.Conn.Write(b[:n])
		buffers.Put(b)
		more = c.wrote(err)
	}
}

// lastWords is how long Close waits for the other side to take what was written.
const lastWords = time.Second

// Close implements net.Conn. What was written goes out first. A second Close
// does not wait for that.
func (c *Conn) Close() error {
	c.mu.Lock()
	if !c.closing && c.writing {
		c.closing = true
		_ = c.Conn.SetWriteDeadline(time.Now().Add(lastWords)) // fails only on a dead connection, and so does the write
		for c.writing {
			c.changed.Wait()
		}
	}
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	return c.Conn.Close()
}
