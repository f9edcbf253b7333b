//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command fy-box is the part of fy that keeps a box and runs in it. It is embedded in fy, and small, because it starts twice for every
// box: the whole of fy would take longer to start than all the rest of making one.
//
// It asks no cgroup how many processors it may use: to find that, the runtime would read every mount of the host, twice a box.
package main

import (
	"os"

	"foldyard/internal/box/agent"
	"foldyard/internal/wall/namespace"
)

func main() { os.Exit(run()) }

func run() int {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case namespace.KeeperVerb:
			return namespace.Keep()
		case namespace.AgentVerb:
			return agent.Main()
		}
	}
	os.Stderr.WriteString("fy-box is fy's own\n")
	return 2
}
