//go:build !linux

package testkit

import (
	"errors"
	"testing"
)

// Main runs setup and then the tests of m.
func Main(m *testing.M, setup func() (done func(), err error)) int { return Run(m, setup) }

// Lab is for Linux.
type Lab struct{}

// Open fails: there are no network namespaces here.
func Open() (*Lab, error) {
	return nil, errors.New("a lab needs Linux: it is made of network namespaces")
}

// Far fails.
func (*Lab) Far(func() error) error { return errors.New("a lab needs Linux") }
