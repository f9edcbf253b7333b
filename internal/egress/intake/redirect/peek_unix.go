//go:build linux || darwin

package redirect

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peek waits until more than have bytes are there to read (or c's read
// deadline passes, or the peer closes), copies up to len(b) of them and leaves
// them in the socket. At the end of the stream it returns what there is, with
// ErrClosed when that is not more than have.
func Peek(c *net.TCPConn, b []byte, have int) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("peek: %w", err)
	}
	var n int
	var errno error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, errno = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if errno != unix.EINTR {
				break
			}
		}
		if errno == unix.EAGAIN {
			return false
		}
		if errno != nil || n > have || n == len(b) {
			return true
		}
		return n == 0 || ended(int(fd)) // a short peek wakes again only when more comes
	})
	if err != nil {
		return max(n, 0), fmt.Errorf("peek: %w", err)
	}
	if errno != nil {
		return 0, fmt.Errorf("peek: %w", errno)
	}
	if n <= have && n < len(b) {
		return n, ErrClosed
	}
	return n, nil
}

// Pending says what an idle connection holds: nothing to read and still open
// (false, nil), bytes nobody asked for (true, nil), or an end (an error).
func Pending(c *net.TCPConn) (bool, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("look at idle connection: %w", err)
	}
	var n int
	var errno error
	var one [1]byte
	if err := raw.Control(func(fd uintptr) {
		n, _, errno = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}); err != nil {
		return false, fmt.Errorf("look at idle connection: %w", err)
	}
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return false, nil
	case errno != nil:
		return false, fmt.Errorf("look at idle connection: %w", errno)
	case n == 0:
		return false, ErrClosed
	}
	return true, nil
}
