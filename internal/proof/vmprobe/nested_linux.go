package vmprobe

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// nested starts our own program again in every namespace that a container has but the network's.
func nested(ctx context.Context, in io.Reader, out io.Writer) int {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Verb)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "fy: namespaces in a container:", err)
		return 3
	}
	return 0
}
