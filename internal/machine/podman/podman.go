// Package podman drives podman machine, for who has it already. Its image
// cannot be provisioned by us: the box is routed through the proxy and nothing
// holds it there. It is cooperative, and says so. Start with Driver.Up. It may
// not claim a wall.
package podman

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/machine"
)

// Options say where the driver works.
type Options struct {
	Name   string
	Record string // file that is there while a machine of this name is ours; its directory exists
	Getenv func(string) string
	GOOS   string
	UID    int
}

// Driver is one podman machine.
type Driver struct {
	opt    Options
	podman string
}

var _ machine.Machine = (*Driver)(nil)

// New looks whether there is a podman that has machines.
func New(ctx context.Context, opt Options) (*Driver, error) {
	if opt.UID == 0 {
		return nil, &machine.Error{Detail: "podman machine does not run as root", Fix: "run fy as an ordinary user"}
	}
	for _, dir := range filepath.SplitList(opt.Getenv("PATH")) {
		p := filepath.Join(dir, "podman")
		if st, err := os.Stat(p); filepath.IsAbs(dir) && err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			d := &Driver{opt: opt, podman: p}
			if _, err := d.call(ctx, 20*time.Second, "machine", "info"); err != nil {
				return nil, &machine.Error{Detail: "podman machine does not work here", Fix: "podman machine info says why", Err: err}
			}
			return d, nil
		}
	}
	return nil, &machine.Error{Detail: "podman is not installed", Fix: "install podman, with podman machine"}
}

// Doctor says whether this computer can have a podman machine. It changes nothing.
func Doctor(ctx context.Context, opt Options) []machine.Finding {
	d, err := New(ctx, opt)
	if err != nil {
		return []machine.Finding{machine.Found("podman machine", "", err)}
	}
	out := []machine.Finding{{Name: "podman machine", State: "warn", Detail: d.podman + ": boxes there are cooperative, nothing holds them", Fix: `set [machine] backend = "lima" for a wall`}}
	st, err := d.State(ctx)
	if err == nil && st.Why != "" {
		err = errors.New(st.Why)
	}
	if err != nil {
		return append(out, machine.Found("VM", "", err))
	}
	return append(out, machine.Finding{Name: "VM", State: "ok", Detail: string(st.State)})
}

// Kind is the backend's name.
func (d *Driver) Kind() string { return "podman" }

// Gateway is the host as podman machine's user-mode network shows it.
func (d *Driver) Gateway() netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 127, 254}) }

func (d *Driver) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.podman, args...)
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = []string{"LC_ALL=C"}
	for _, name := range []string{"PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"} {
		if v := d.opt.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}

func (d *Driver) call(ctx context.Context, limit time.Duration, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := d.command(ctx, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("podman %s: %w: %.400s", strings.Join(args[:min(2, len(args))], " "), err, strings.TrimSpace(errs.String()))
	}
	return out, nil
}

// listed is what podman says of a machine. It writes sizes in bytes, as strings.
type listed struct {
	Name             string
	Running          bool
	CPUs             int
	Memory, DiskSize string
}

// list returns our machine, nil if there is none.
func (d *Driver) list(ctx context.Context) (*listed, error) {
	out, err := d.call(ctx, 20*time.Second, "machine", "list", "--format", "json")
	if err != nil {
		return nil, err
	}
	var all []listed
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("podman machine list: %w", err)
	}
	for i := range all {
		if strings.TrimSuffix(all[i].Name, "*") == d.opt.Name { // the default one is marked
			return &all[i], nil
		}
	}
	return nil, nil
}

// State looks, and connects when the machine is said to run.
func (d *Driver) State(ctx context.Context) (machine.Status, error) {
	m, err := d.list(ctx)
	if err != nil {
		return machine.Status{}, err
	}
	return d.state(ctx, m), nil
}

func (d *Driver) state(ctx context.Context, m *listed) machine.Status {
	switch {
	case m == nil:
		return machine.Status{State: machine.Absent}
	case !d.ours():
		return machine.Status{State: machine.Foreign, Why: "the podman machine " + d.opt.Name + " was not made by foldyard"}
	case !m.Running:
		return machine.Status{State: machine.Stopped}
	}
	if _, err := d.ssh(ctx, machine.Command{Argv: []string{"true"}}); err != nil {
		return machine.Status{State: machine.Broken, Why: "it runs and does not answer: " + err.Error()}
	}
	return machine.Status{State: machine.Running}
}

// ours tells whether a machine of this name was made by us. podman has no place to say so.
func (d *Driver) ours() bool {
	_, err := os.Lstat(d.opt.Record)
	return err == nil
}

// foreign refuses to touch somebody else's machine.
func foreign(st machine.Status) error {
	if st.State != machine.Foreign {
		return nil
	}
	return &machine.Error{Detail: st.Why, Fix: "give the project another name; or, if nobody needs it, podman machine rm"}
}

// changes are the flags that make m what spec says.
func (m *listed) changes(spec machine.Spec) ([]string, error) {
	var out []string
	if m.CPUs > 0 && m.CPUs != spec.CPUs {
		out = append(out, "--cpus", fmt.Sprint(spec.CPUs))
	}
	if n, err := strconv.ParseInt(m.Memory, 10, 64); err == nil && n>>20 != spec.Memory>>20 {
		out = append(out, "--memory", fmt.Sprint(spec.Memory>>20))
	}
	n, err := strconv.ParseInt(m.DiskSize, 10, 64)
	switch was, want := n>>30, spec.Disk>>30; {
	case err != nil || was == want:
	case want < was:
		return nil, &machine.Error{
			Detail: fmt.Sprintf("the VM's disk has %d GiB, and cannot shrink to %d", was, want),
			Fix:    fmt.Sprintf(`set [machine] disk to "%dGiB" or more; or fy machine rm, then fy up: its disk goes, and the box's kept home with it`, was),
		}
	default:
		out = append(out, "--disk-size", fmt.Sprint(want))
	}
	return out, nil
}

// Up makes and starts the machine. Processors, memory and a larger disk of one that exists are changed; its image and mounts stay.
func (d *Driver) Up(ctx context.Context, spec machine.Spec, say func(string)) (machine.Report, error) {
	if say == nil {
		say = func(string) {}
	}
	if err := spec.Check(); err != nil {
		return machine.Report{}, err
	}
	if spec.Firewall {
		return machine.Report{}, &machine.Error{Detail: "podman machine cannot have a VM firewall", Fix: `set [machine] firewall = false, or backend = "lima"`}
	}
	m, err := d.list(ctx)
	if err != nil {
		return machine.Report{}, err
	}
	st := d.state(ctx, m)
	if err := foreign(st); err != nil {
		return machine.Report{}, err
	}
	var changes []string
	if m != nil {
		if changes, err = m.changes(spec); err != nil {
			return machine.Report{}, err
		}
	}
	switch {
	case st.State == machine.Broken:
		say("the machine does not answer: it is started anew")
	case st.State == machine.Running && len(changes) > 0:
		say("the machine was made otherwise: it is stopped, and made as configured")
	}
	if st.State == machine.Broken || len(changes) > 0 {
		if err := d.Stop(ctx); err != nil {
			return machine.Report{}, err
		}
		if st.State == machine.Running {
			st.State = machine.Stopped
		}
	}
	if len(changes) > 0 {
		if _, err := d.call(ctx, 2*time.Minute, append(append([]string{"machine", "set"}, changes...), d.opt.Name)...); err != nil {
			return machine.Report{}, err
		}
	}
	if st.State == machine.Absent {
		say("makes the machine")
		if err := os.WriteFile(d.opt.Record, nil, 0o600); err != nil {
			return machine.Report{}, err
		}
		args := []string{
			"machine", "init", "--cpus", fmt.Sprint(spec.CPUs), "--memory", fmt.Sprint(spec.Memory >> 20), "--disk-size", fmt.Sprint(spec.Disk >> 30),
			"--volume", spec.Repo + ":" + spec.Repo,
		}
		if spec.Share != "" {
			args = append(args, "--volume", spec.Share+":"+machine.SharePath+":ro")
		}
		if spec.Image != "" {
			args = append(args, "--image", spec.Image)
		}
		if _, err := d.call(ctx, 20*time.Minute, append(args, d.opt.Name)...); err != nil {
			return machine.Report{}, err
		}
	}
	if st.State != machine.Running {
		say("starts the machine")
		if _, err := d.call(ctx, 10*time.Minute, "machine", "start", d.opt.Name); err != nil {
			return machine.Report{}, err
		}
	}
	out, err := d.Run(ctx, machine.Command{Argv: []string{"cat", "/proc/sys/kernel/random/boot_id"}})
	return machine.Report{Digest: "cooperative", BootID: strings.TrimSpace(string(out))}, err
}

// Stop ends the machine.
func (d *Driver) Stop(ctx context.Context) error {
	st, err := d.State(ctx)
	if err := errors.Join(err, foreign(st)); err != nil || st.State == machine.Absent || st.State == machine.Stopped {
		return err
	}
	_, err = d.call(ctx, 2*time.Minute, "machine", "stop", d.opt.Name)
	return err
}

// Remove deletes the machine and its disk.
func (d *Driver) Remove(ctx context.Context) error {
	st, err := d.State(ctx)
	if err := errors.Join(err, foreign(st)); err != nil {
		return err
	}
	if st.State != machine.Absent {
		if _, err := d.call(ctx, 2*time.Minute, "machine", "rm", "--force", d.opt.Name); err != nil {
			return err
		}
	}
	if err := os.Remove(d.opt.Record); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Uninstall removes the machine if foldyard made one, and returns the command that does where podman cannot be asked any more.
func Uninstall(ctx context.Context, opt Options) (command string, err error) {
	d := &Driver{opt: opt}
	if !d.ours() {
		return "", nil
	}
	made, err := New(ctx, opt)
	if err != nil {
		return "podman machine rm --force " + opt.Name, err
	}
	return "", made.Remove(ctx)
}

// Argv is the command line that runs c in the machine.
func (d *Driver) Argv(c machine.Command) []string {
	words := make([]string, len(c.Argv))
	for i, w := range c.Argv {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return []string{d.podman, "machine", "ssh", d.opt.Name, strings.Join(words, " ")}
}

// Run runs a command in the machine as its user.
func (d *Driver) Run(ctx context.Context, c machine.Command) ([]byte, error) {
	st, err := d.State(ctx)
	if err != nil {
		return nil, err
	}
	if st.State != machine.Running {
		return nil, machine.ErrNotRunning
	}
	return d.ssh(ctx, c)
}

func (d *Driver) ssh(ctx context.Context, c machine.Command) ([]byte, error) {
	cmd := d.command(ctx, d.Argv(c)[1:]...)
	var out, errs machine.Output
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, &out, &errs
	err := cmd.Run()
	if out.Err() != nil || errs.Err() != nil {
		return nil, errors.Join(out.Err(), errs.Err())
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return out.Bytes(), &machine.ExitError{Code: exit.ExitCode(), Stderr: strings.TrimSpace(errs.String())}
	}
	return out.Bytes(), err
}
