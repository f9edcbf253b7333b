package container

import (
	"bytes"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	getTermios = unix.TIOCGETA
	setTermios = unix.TIOCSETA
)

// terminal makes a pseudo terminal. The slave has the name by which it is opened again.
func terminal(rows, cols uint16) (master, slave *os.File, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	master = os.NewFile(uintptr(m), "ptmx")
	name, err := slaveName(m)
	var s int
	if err == nil {
		s, err = unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	slave = os.NewFile(uintptr(s), name)
	if rows > 0 && cols > 0 { // of the slave: the master has none before that is open
		err = setSize(slave, rows, cols)
	}
	return master, slave, err
}

// slaveName opens the other side of a terminal to its owner, and says where it is: grantpt, unlockpt and ptsname.
func slaveName(master int) (string, error) {
	var name [128]byte // as TIOCPTYGNAME fills it
	for _, c := range []struct {
		request uintptr
		arg     unsafe.Pointer
	}{{unix.TIOCPTYGRANT, nil}, {unix.TIOCPTYUNLK, nil}, {unix.TIOCPTYGNAME, unsafe.Pointer(&name[0])}} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), c.request, uintptr(c.arg)); errno != 0 {
			return "", errno
		}
	}
	n := bytes.IndexByte(name[:], 0)
	if n <= 0 {
		return "", unix.EINVAL
	}
	return string(name[:n]), nil
}
