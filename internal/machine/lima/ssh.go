package lima

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"foldyard/internal/machine"
)

// sshFailed is ssh's own exit status when it, not the command, failed.
const sshFailed = 255

// Argv is the ssh command line that runs c in the machine.
func (d *Driver) Argv(c machine.Command) []string { return d.sshArgv(c) }

func (d *Driver) sshArgv(c machine.Command, options ...string) []string {
	argv := []string{"ssh", "-F", d.sshConfig(), "-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR", "-o", "ForwardAgent=no", "-o", "SendEnv=-*"}
	if c.TTY {
		argv = append(argv, "-t") // none where ssh itself has none: a script on its input ends
	} else {
		argv = append(argv, "-T")
	}
	argv = append(argv, options...)
	argv = append(argv, "lima-"+d.opt.Instance, "--")
	for _, a := range c.Argv {
		argv = append(argv, shellQuote(a))
	}
	return argv
}

// shellQuote writes a word so that the guest's shell takes it as it is.
func shellQuote(s string) string {
	safe := s != ""
	for _, c := range []byte(s) {
		safe = safe && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_./:=,+@%", c) >= 0)
	}
	if safe {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Run runs a command in the machine as its user.
func (d *Driver) Run(ctx context.Context, c machine.Command) ([]byte, error) {
	if _, err := os.Stat(d.sshConfig()); err != nil {
		return nil, machine.ErrNotRunning
	}
	return d.ssh(ctx, c)
}

func (d *Driver) ssh(ctx context.Context, c machine.Command, options ...string) ([]byte, error) {
	if _, ok := ctx.Deadline(); !ok && c.Stdin == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*sshTimeout)
		defer cancel()
	}
	argv := d.sshArgv(c, options...)
	path, err := lookPath(argv[0], d.opt.Getenv("PATH"))
	if err != nil {
		return nil, &machine.Error{Detail: "ssh is not installed", Fix: "install the OpenSSH client"}
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdin = d.environment(), "/", c.Stdin
	cmd.WaitDelay = 5 * time.Second
	var out, errs machine.Output
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case out.Err() != nil || errs.Err() != nil:
		return nil, errors.Join(out.Err(), errs.Err())
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return out.Bytes(), nil
	case errors.As(err, &exit) && exit.ExitCode() == sshFailed:
		return nil, &machine.Error{Detail: "no connection to the VM: " + clip(errs.String()), Fix: "fy machine status", Err: machine.ErrNotRunning}
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return out.Bytes(), &machine.ExitError{Code: exit.ExitCode(), Stderr: clip(errs.String())}
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, err
}

// lookPath finds a program in a PATH that is not this process's.
func lookPath(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}
