//go:build !linux

package container

import (
	"errors"
	"io"
	"os"
)

// Pause is for the container, which is Linux.
func Pause() int { return 125 }

// Enter is for the container, which is Linux.
func Enter(io.Reader, *os.File, *os.File) int { return 125 }

func terminal(uint16, uint16) (master, slave *os.File, err error) {
	return nil, nil, errors.New("a terminal of a box in a VM is built for Linux hosts only")
}
