package supervisor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// Verb is the hidden verb of fy's own binary that runs a supervisor.
const Verb = "__supervisor"

// Programs are those that fy carries. Nil is fy itself.
type Programs struct {
	Box   []byte // of keepers and agents
	Guest []byte // of virtual machines, for Linux
}

// Main is the supervisor's process: it was started by control.Launch, in a session of its own. It returns the exit status.
func Main(args []string, version string, programs Programs) int {
	ready := control.ReadyPipe()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	fail := func(err error) int {
		ready.Tell(err)
		log.Error("supervisor not started", slog.String("error", err.Error()))
		return 1
	}
	f := flag.NewFlagSet(Verb, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	name, dir := f.String("project", "", ""), f.String("dir", "", "")
	if err := f.Parse(args); err != nil || f.NArg() > 0 {
		return fail(fmt.Errorf("%s is no command of yours", Verb))
	}
	layout, err := state.NewLayout(os.Getenv)
	if err != nil {
		return fail(err)
	}
	p, err := layout.Project(*name)
	if err != nil {
		return fail(err)
	}
	// A terminal that closes is none of our business; a signal to end leaves the boxes running, as a crash would.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	noCore(log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	program := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		if program, err = os.Executable(); err != nil {
			return fail(err)
		}
	}
	err = Run(ctx, Options{
		Host:    config.Host{Layout: layout, Getenv: os.Getenv, GOOS: runtime.GOOS},
		Project: p, Dir: *dir, Version: version, Program: program, Programs: programs, Binary: control.Binary(),
		Getenv: os.Getenv, Log: log, Now: time.Now, Ready: ready,
	})
	switch {
	case errors.Is(err, control.ErrTaken):
		return 0
	case err != nil:
		log.Error("supervisor failed", slog.String("error", err.Error()))
		return 1
	}
	return 0
}
