package container

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	getTermios = unix.TCGETS
	setTermios = unix.TCSETS
)

// terminal makes a pseudo terminal. The slave has the name by which it is opened again.
func terminal(rows, cols uint16) (master, slave *os.File, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	master = os.NewFile(uintptr(m), "ptmx")
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0)
	}
	var s int
	var name string
	if err == nil {
		name = "/dev/pts/" + strconv.Itoa(n)
		s, err = unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	slave = os.NewFile(uintptr(s), name)
	if rows > 0 && cols > 0 {
		err = setSize(master, rows, cols)
	}
	return master, slave, err
}
