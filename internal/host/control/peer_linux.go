package control

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CheckPeer refuses a connection unless its other end is a process of this user (or root) in our own user and network
// namespaces: a box that got hold of the socket is neither. What cannot be read is refused.
func CheckPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if credErr != nil {
		return fmt.Errorf("peer credentials: %w", credErr)
	}
	return judgePeer(int(cred.Uid), int(cred.Pid), os.Getuid(), nsOf)
}

// judgePeer is CheckPeer without the socket. ns names the user and network namespaces of a process; pid 0 is ourselves.
func judgePeer(uid, pid, own int, ns func(pid int) (string, error)) error {
	if uid != own && uid != 0 {
		return fmt.Errorf("peer uid %d is not %d", uid, own)
	}
	if pid <= 0 {
		return fmt.Errorf("peer of uid %d is in a pid namespace we cannot see", uid)
	}
	theirs, err := ns(pid)
	if err != nil {
		return fmt.Errorf("peer %d: %w", pid, err)
	}
	ours, err := ns(0)
	if err != nil {
		return fmt.Errorf("own namespaces: %w", err)
	}
	if theirs != ours {
		return fmt.Errorf("peer %d is in other namespaces: %s, ours %s", pid, theirs, ours)
	}
	return nil
}

func nsOf(pid int) (string, error) {
	dir := "/proc/self/ns/"
	if pid != 0 {
		dir = "/proc/" + strconv.Itoa(pid) + "/ns/"
	}
	user, err := os.Readlink(dir + "user")
	if err != nil {
		return "", err
	}
	net, err := os.Readlink(dir + "net")
	if err != nil {
		return "", err
	}
	return user + " " + net, nil
}
