// Command fy-guest is the part of fy that runs in a virtual machine and in the containers there. It is built for Linux, whatever the
// host, embedded in fy, and small: the machine reads it from the host for every command.
package main

import (
	"context"
	"os"
	"strings"

	"foldyard/internal/box/container"
	"foldyard/internal/proof/vmprobe"
)

func main() { os.Exit(run()) }

func run() int {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case container.PauseVerb:
			return container.Pause()
		case container.EnterVerb:
			return container.Enter(os.Stdin, os.Stdout, os.Stderr)
		case container.DialVerb:
			return container.Connect(strings.Join(os.Args[2:], " "), os.Stdin, os.Stdout)
		case vmprobe.Verb:
			return vmprobe.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout)
		}
	}
	os.Stderr.WriteString("fy-guest is fy's own\n")
	return 2
}
