//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// errLinux: processor time and memory of another process are read from Linux's /proc, and boxes are Linux's anyway.
var errLinux = errors.New("the bench needs Linux")

func cpuOf(int) (time.Duration, error)       { return 0, errLinux }
func childrenCPU(int) (time.Duration, error) { return 0, errLinux }
func memory(int, string) (int, error)        { return 0, errLinux }
func count(int, string) (int, error)         { return 0, errLinux }
func forgetPeak(int) error                   { return errLinux }
func endWithUs(*exec.Cmd)                    {}
func adoptOrphans() error                    { return errLinux }
func reapOrphans() time.Duration             { return 0 }
func spent(s *os.ProcessState) time.Duration { return s.UserTime() + s.SystemTime() }
