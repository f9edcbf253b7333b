package control

import (
	"context"
	"os"

	"foldyard/internal/box/wire"
	"foldyard/internal/wall/namespace"
)

// Command is what to run in a box.
type Command struct {
	Argv []string
	Env  []string // whole
	Dir  string   // in the box
	// TTY asks for a terminal of the box's own; else stdio are three pipes.
	TTY        bool
	Rows, Cols uint16
	// Launch ties the box to this command's connection: when it ends, so does the box.
	Launch bool
}

// Run starts a command over the box's own socket, not through the supervisor. stdio are the box's ends of pipes and stay the
// caller's. A command that cannot be started is a *namespace.StartError.
func (b Box) Run(ctx context.Context, c Command, stdio ...*os.File) (*namespace.Session, error) {
	return namespace.NewClient(b.Socket, b.Nonce).Exec(ctx, wire.Exec{
		Argv: c.Argv, Env: c.Env, Dir: c.Dir, TTY: c.TTY, Rows: c.Rows, Cols: c.Cols, Launch: c.Launch,
	}, stdio...)
}
