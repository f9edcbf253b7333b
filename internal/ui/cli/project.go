package cli

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"runtime"

	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// project is where a command line stands.
type project struct {
	host     config.Host
	checkout config.Checkout
}

// machine reports whether the project's boxes are made in a virtual machine.
func (p *project) machine() bool {
	cfg, err := p.host.Load(p.checkout)
	return err == nil && (cfg.Machine.Backend == config.Lima || cfg.Machine.Backend == config.Podman)
}

// layout says where foldyard keeps its files, without asking which project this is.
func (a *app) layout() (config.Host, error) {
	l, err := state.NewLayout(a.Getenv)
	if err != nil {
		return config.Host{}, err
	}
	return config.Host{Layout: l, Getenv: a.Getenv, GOOS: runtime.GOOS}, nil
}

// dir is the directory that the command line acts in.
func (a *app) dir() string {
	if a.chdir == "" || filepath.IsAbs(a.chdir) {
		return cmp.Or(a.chdir, a.Dir)
	}
	return filepath.Join(a.Dir, a.chdir)
}

// discover finds the project directory, adopted or not.
func (a *app) discover() (config.Host, string, error) {
	h, err := a.layout()
	if err != nil {
		return h, "", err
	}
	dir, err := h.Discover(a.dir())
	if _, refused := errors.AsType[*config.RefusedError](err); refused {
		err = hint(err, "stand in a project's directory, or name one with -C DIR")
	}
	return h, dir, err
}

// project finds the project and the state that belongs to it.
func (a *app) project() (*project, error) {
	h, dir, err := a.discover()
	if err != nil {
		return nil, err
	}
	c, err := h.Resolve(dir)
	if err != nil {
		return nil, err
	}
	return &project{h, c}, nil
}

// launch says how the project's supervisor is started and reached.
func (a *app) launch(p *project) control.Launch {
	return control.Launch{
		Program: a.Program,
		Args:    []string{"__supervisor", "--project", p.checkout.Project.Name, "--dir", p.checkout.Dir},
		Socket:  p.checkout.Project.ControlSocket(),
		Lock:    p.checkout.Project.SupervisorLock(),
		Log:     p.checkout.Project.SupervisorLog(),
		Binary:  control.Binary(),
		Prepare: func() error { return p.host.Prepare(p.checkout, a.Now()) },
	}
}

// connect returns a client of the project's supervisor, which is started if none runs.
func (a *app) connect(ctx context.Context) (*control.Client, *project, error) {
	p, err := a.project()
	if err != nil {
		return nil, nil, err
	}
	c, _, err := a.launch(p).Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c, p, nil
}

// running returns a client only if a supervisor runs; nil if not.
func (a *app) running(ctx context.Context) (*control.Client, *project, error) {
	p, err := a.project()
	if err != nil {
		return nil, nil, err
	}
	c := control.NewClient(p.checkout.Project.ControlSocket())
	if _, err := c.Status(ctx); control.NotRunning(err) {
		return nil, p, nil
	}
	return c, p, nil
}

// alive is running, but for boxes whose supervisor died one is started, which
// takes them back.
func (a *app) alive(ctx context.Context) (*control.Client, *project, error) {
	c, p, err := a.running(ctx)
	if err == nil && c == nil && len(a.leftBoxes(p)) > 0 {
		c, _, err = a.launch(p).Connect(ctx)
	}
	return c, p, err
}
