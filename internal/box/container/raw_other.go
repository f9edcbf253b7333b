//go:build !linux

package container

import (
	"errors"
	"os"
)

func rawMode(*os.File) error {
	return errors.New("a terminal of a box in a VM is built for Linux hosts only")
}

func size(*os.File) (rows, cols uint16, err error) {
	return 0, 0, errors.New("a terminal of a box in a VM is built for Linux hosts only")
}
