// Command fy runs untrusted code in a box whose only way out is the operator's. This file only tells the daemons that fy
// starts from its own binary, by hidden verbs, from the command line.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"foldyard/internal/box/agent"
	"foldyard/internal/box/container"
	"foldyard/internal/host/control"
	"foldyard/internal/host/supervisor"
	"foldyard/internal/proof/probe"
	"foldyard/internal/proof/vmprobe"
	"foldyard/internal/ui/cli"
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
		case container.PauseVerb:
			return container.Pause()
		case container.EnterVerb:
			return container.Enter(os.Stdin, os.Stdout, os.Stderr)
		case container.DialVerb:
			return container.Connect(strings.Join(os.Args[2:], " "), os.Stdin, os.Stdout)
		case vmprobe.Verb:
			return vmprobe.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout)
		case namespace.ProbeVerb:
			return probe.Main(context.Background(), os.Stdin, os.Stdout)
		case supervisor.Verb:
			return supervisor.Main(os.Args[2:], version(), supervisor.Programs{Box: boxProgram, Guest: guestProgram})
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: working directory:", err)
		return 1
	}
	program, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: own program:", err)
		return 1
	}
	return cli.Main(cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, Environ: os.Environ, Dir: dir, Now: time.Now, Version: version(), Program: program,
		MachineRows: supervisor.MachineRows, RemoveMachines: supervisor.RemoveMachines,
		Serve: func(ctx context.Context, s cli.Serve) error {
			return supervisor.Run(ctx, supervisor.Options{
				Host: s.Host, Project: s.Project, Dir: s.Dir, Version: version(), Program: program, Binary: control.Binary(),
				Getenv: os.Getenv, Now: time.Now, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
				Listen: s.Listen, Auth: s.Auth, Listening: s.Listening,
			})
		},
	})
}

// version is the module's, as the go command recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
