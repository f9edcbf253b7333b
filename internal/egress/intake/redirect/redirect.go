// Package redirect reads where a redirected connection was really going, and
// looks at a connection's first bytes without taking them. It decides nothing
// and dials nothing.
package redirect

import (
	"errors"
	"net"
	"time"
)

// ErrNotSupported is returned where the kernel keeps no original destination.
var ErrNotSupported = errors.New("original destination of a redirected connection: only on Linux")

// ErrClosed is returned by [Peek] when the peer closed before it sent a byte.
var ErrClosed = errors.New("closed before the first byte")

// Gone says whether the peer of c has shut its sending half down or reset the
// connection, without reading. It never waits. Off Linux it answers false
// while bytes are unread.
func Gone(c *net.TCPConn) bool {
	if gone(c) {
		return true
	}
	_, err := Pending(c)
	return err != nil
}

// Dead says whether nothing can be sent to the peer of c any more: both
// directions are shut, or it was reset. It never waits. Off Linux it is never
// known.
func Dead(c *net.TCPConn) bool { return dead(c) }

// Quiet returns for how long the peer of c has sent no data, where the kernel
// tells.
func Quiet(c *net.TCPConn) (d time.Duration, known bool) { return quiet(c) }
