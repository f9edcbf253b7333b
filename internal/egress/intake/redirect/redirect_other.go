//go:build !linux

package redirect

import (
	"net"
	"net/netip"
	"time"
)

// OriginalDst is only known to Linux: elsewhere it returns ErrNotSupported.
func OriginalDst(*net.TCPConn) (netip.AddrPort, error) {
	return netip.AddrPort{}, ErrNotSupported
}

func quiet(*net.TCPConn) (time.Duration, bool) { return 0, false }

func gone(*net.TCPConn) bool { return false }
func dead(*net.TCPConn) bool { return false }
func ended(int) bool         { return false }
