//go:build unix

package testkit

import (
	"os"
	"os/exec"
	"syscall"
)

// become makes cmd run as u, in a process group of its own.
func become(cmd *exec.Cmd, u User) {
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if u.UID != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)} //nolint:gosec // ids are not negative
	}
}
