// Package lima drives the limactl program under foldyard's own LIMA_HOME: one
// virtual machine a project. Start with Driver.Up. It obeys the machine's own
// connection and boot report, not limactl's flags; it may not run anything as
// root in the guest (the recorded boot script does that, at boot), nor touch an
// instance that foldyard did not make.
package lima

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// Versions of limactl that this drives: from 2.1 on, before 2.3.
const (
	wantMajor = 2
	minMinor  = 1
	maxMinor  = 2
)

// Bounds of what is waited for.
const (
	sshTimeout   = 40 * time.Second // one connection; an emulated guest is slow
	startTimeout = 20 * time.Minute
	stopTimeout  = 90 * time.Second
)

// Options say where the driver works.
type Options struct {
	Home     string // LIMA_HOME, made when needed; foldyard's own
	Instance string // name of the instance
	Getenv   func(string) string
	GOOS     string
	GOARCH   string
	UID      int
}

// Driver is one instance of Lima's.
type Driver struct {
	opt     Options
	limactl string
	p       platform
}

var _ machine.Machine = (*Driver)(nil)

var instanceRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,40})$`) })

// maxHome bounds LIMA_HOME and instance together: ssh's control socket is below, with a suffix of ssh's own.
const maxHome = 104 - len("/ssh.sock.1234567890123456")

// New looks whether this computer can run Lima at all. Errors are *machine.Error.
func New(ctx context.Context, opt Options) (*Driver, error) {
	d := &Driver{opt: opt, p: platform{opt.GOOS, opt.GOARCH}}
	if opt.UID == 0 {
		return nil, &machine.Error{Detail: "Lima does not run as root", Fix: "run fy as an ordinary user"}
	}
	if !instanceRE().MatchString(opt.Instance) {
		return nil, &machine.Error{Detail: fmt.Sprintf("%q cannot name a VM", opt.Instance), Fix: "shorten [project] name to 40 letters, digits, dot, dash"}
	}
	if n := len(d.dir()); n > maxHome {
		return nil, &machine.Error{Detail: fmt.Sprintf("%s is %d bytes long, and ssh's socket below it cannot be bound", d.dir(), n), Fix: "set FOLDYARD_HOME to a shorter path"}
	}
	path, err := lookPath("limactl", opt.Getenv("PATH"))
	if err != nil {
		return nil, &machine.Error{Detail: "limactl is not installed", Fix: "install Lima 2.1 or 2.2"}
	}
	d.limactl = path
	if err := d.checkVersion(ctx); err != nil {
		return nil, err
	}
	if opt.GOOS == "linux" {
		for _, tool := range []string{"qemu-system-" + d.p.arch(), "qemu-img"} {
			if opt.Getenv("QEMU_SYSTEM_"+strings.ToUpper(d.p.arch())) != "" && strings.HasPrefix(tool, "qemu-system") {
				continue
			}
			if _, err := lookPath(tool, opt.Getenv("PATH")); err != nil {
				return nil, &machine.Error{Detail: tool + " is not installed", Fix: "install QEMU (Debian: apt-get install qemu-system qemu-utils)"}
			}
		}
	}
	return d, nil
}

var versionRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b(\d+)\.(\d+)(?:\.\d+)?`) })

func (d *Driver) checkVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := d.command(ctx, "--version").Output()
	if err != nil {
		return &machine.Error{Detail: d.limactl + " --version failed", Fix: "install Lima 2.1 or 2.2", Err: err}
	}
	m := versionRE().FindStringSubmatch(string(out))
	if m == nil {
		return &machine.Error{Detail: fmt.Sprintf("limactl says its version is %q", strings.TrimSpace(string(out))), Fix: "install Lima 2.1 or 2.2"}
	}
	major, _ := strconv.Atoi(m[1]) // digits
	minor, _ := strconv.Atoi(m[2])
	if major != wantMajor || minor < minMinor || minor > maxMinor {
		return &machine.Error{Detail: fmt.Sprintf("limactl is version %s", m[0]), Fix: "install Lima 2.1 or 2.2"}
	}
	return nil
}

// Kind is the backend's name.
func (d *Driver) Kind() string { return "lima" }

// Gateway is the host as the guest sees it.
func (d *Driver) Gateway() netip.Addr { return gateway() }

func (d *Driver) dir() string        { return filepath.Join(d.opt.Home, d.opt.Instance) }
func (d *Driver) configPath() string { return filepath.Join(d.dir(), "lima.yaml") }
func (d *Driver) sshConfig() string  { return filepath.Join(d.dir(), "ssh.config") }

// environment is what limactl gets: nothing of the operator's but what it needs to find programs and itself.
func (d *Driver) environment() []string {
	env := []string{"LIMA_HOME=" + d.opt.Home}
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "QEMU_SYSTEM_X86_64", "QEMU_SYSTEM_AARCH64"} {
		if v := d.opt.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return append(env, "LC_ALL=C", "LIMA_SSH_OVER_VSOCK=false")
}

func (d *Driver) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.limactl, args...)
	cmd.Env = d.environment()
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// say drops what nobody wants to hear.
func sayer(say func(string)) func(string) {
	if say == nil {
		return func(string) {}
	}
	return say
}

// limactl runs one of its verbs and passes on what it logs, without colours.
func (d *Driver) run(ctx context.Context, say func(string), args ...string) error {
	cmd := d.command(ctx, append([]string{"--tty=false", "--log-format=json"}, args...)...)
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = io.Discard, pw
	var last, fault string
	done := make(chan struct{})
	go func() {
		defer close(done)
		dec := json.NewDecoder(pr)
		for {
			var line struct{ Level, Msg string }
			if err := dec.Decode(&line); err != nil {
				_, _ = io.Copy(io.Discard, pr) // it must not block
				return
			}
			last = line.Msg
			if line.Level == "fatal" || line.Level == "error" {
				fault = line.Msg
			}
			msg := strings.TrimPrefix(line.Msg, "[hostagent] ")
			if line.Level == "info" && len(msg) < 200 && !strings.HasPrefix(msg, "Time sync") {
				say(msg)
			}
		}
	}()
	err := cmd.Run()
	_ = pw.Close() // never fails
	<-done
	if err == nil {
		return nil
	}
	if fault == "" {
		fault = last
	}
	return fmt.Errorf("limactl %s: %w: %s", args[0], err, clip(fault))
}

func clip(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > 600 {
		s = s[:600] + "…"
	}
	return s
}

// listed is what limactl says of the instance.
type listed struct {
	Status       string
	Errors       []string
	HostAgentPID int
	DriverPID    int
}

func (d *Driver) list(ctx context.Context) (listed, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := d.command(ctx, "--tty=false", "list", "--json", d.opt.Instance).Output()
	if err != nil {
		return listed{}, fmt.Errorf("limactl list: %w", err)
	}
	var raw struct {
		Status       string   `json:"status"`
		HostAgentPID int      `json:"hostAgentPID"`
		DriverPID    int      `json:"driverPID"`
		Errors       []string `json:"errors"`
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&raw); err != nil {
		return listed{}, fmt.Errorf("limactl list: %w", err)
	}
	return listed{raw.Status, raw.Errors, raw.HostAgentPID, raw.DriverPID}, nil
}

// State looks: at the disk, at limactl's word, and at last by a connection.
func (d *Driver) State(ctx context.Context) (machine.Status, error) {
	conf, err := os.ReadFile(d.configPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(d.dir()); errors.Is(err, fs.ErrNotExist) {
			return machine.Status{State: machine.Absent}, nil
		}
		return machine.Status{State: machine.Broken, Why: "it was not made to its end"}, nil
	case err != nil:
		return machine.Status{}, err
	case !bytes.HasPrefix(conf, []byte(marker)):
		return machine.Status{State: machine.Foreign, Why: d.dir() + " was not made by foldyard"}, nil
	}
	l, err := d.list(ctx)
	if err != nil {
		return machine.Status{State: machine.Broken, Why: err.Error()}, nil
	}
	switch l.Status {
	case "Stopped", "Uninitialized", "Installing":
		return machine.Status{State: machine.Stopped}, nil
	case "Running":
		if err := d.connects(ctx); err != nil {
			return machine.Status{State: machine.Broken, Why: "it runs and does not answer: " + err.Error()}, nil
		}
		return machine.Status{State: machine.Running}, nil
	}
	return machine.Status{State: machine.Broken, Why: clip("limactl says " + l.Status + ": " + strings.Join(l.Errors, "; "))}, nil
}

// connects makes a connection of its own, not over one that is kept.
func (d *Driver) connects(ctx context.Context) error {
	_, err := d.ssh(ctx, machine.Command{Argv: []string{"true"}}, "-o", "ControlMaster=no", "-o", "ControlPath=none")
	return err
}

// Up makes the machine what spec says and starts it.
func (d *Driver) Up(ctx context.Context, spec machine.Spec, say func(string)) (machine.Report, error) {
	say = sayer(say)
	config, digest, err := d.p.render(spec)
	if err != nil {
		return machine.Report{}, err
	}
	st, err := d.State(ctx)
	if err != nil {
		return machine.Report{}, err
	}
	if st.State == machine.Foreign {
		return machine.Report{}, &machine.Error{Detail: st.Why, Fix: "move it away, or give the project another name"}
	}
	if st.State == machine.Running && d.recorded(config) {
		r, err := d.report(ctx, digest, spec.Firewall)
		if err == nil {
			return r, nil
		}
		say("the VM is not as it should be (" + err.Error() + "): it is started anew")
	}
	if st.State == machine.Running || st.State == machine.Broken {
		if st.State == machine.Running && !d.recorded(config) {
			say("the VM was made otherwise: it is stopped, and made as configured")
		}
		if err := d.Stop(ctx); err != nil {
			return machine.Report{}, err
		}
	}
	if err := d.ensure(ctx, spec, config, say); err != nil {
		return machine.Report{}, err
	}
	say("starts the VM")
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := d.run(startCtx, say, "start", "--timeout="+startTimeout.String(), d.opt.Instance); err != nil {
		return machine.Report{}, d.explain(ctx, err)
	}
	r, err := d.report(ctx, digest, spec.Firewall)
	if err != nil {
		return machine.Report{}, d.explain(ctx, err)
	}
	return r, nil
}

// recorded reports whether the instance's configuration is config.
func (d *Driver) recorded(config string) bool {
	b, err := os.ReadFile(d.configPath())
	return err == nil && string(b) == config
}

// minFree is the space that a start wants beside the disk's own growth.
const minFree = 2 << 30

// ensure creates the instance, or records config in the stopped one.
func (d *Driver) ensure(ctx context.Context, spec machine.Spec, config string, say func(string)) error {
	if err := os.MkdirAll(d.opt.Home, 0o700); err != nil {
		return err
	}
	if free, err := freeBytes(d.opt.Home); err == nil && free < minFree {
		return &machine.Error{Detail: fmt.Sprintf("%s has %d MiB left", d.opt.Home, free>>20), Fix: "make at least 2 GiB free"}
	}
	for _, path := range []string{spec.Image, spec.Kernel, spec.Initrd} {
		if strings.HasPrefix(path, "/") {
			if _, err := os.Stat(path); err != nil {
				return &machine.Error{Detail: "an image of the VM cannot be read", Fix: "check [machine] image, kernel, initrd", Err: err}
			}
		}
	}
	st, err := d.State(ctx)
	if err != nil {
		return err
	}
	if st.State == machine.Broken { // stopped already, and still not whole
		say("removes a VM that was not made to its end")
		if err := d.Remove(ctx); err != nil {
			return err
		}
		st.State = machine.Absent
	}
	if st.State == machine.Absent {
		say("makes the VM")
		file := filepath.Join(d.opt.Home, "."+d.opt.Instance+".yaml")
		if err := writeFile(file, config); err != nil {
			return err
		}
		defer os.Remove(file)
		if err := d.run(ctx, say, "create", "--name="+d.opt.Instance, file); err != nil {
			rerr := d.Remove(context.WithoutCancel(ctx))
			if strings.Contains(err.Error(), "digest") {
				err = &machine.Error{Detail: "the VM's image does not have the digest that is configured", Fix: "check [machine] image and digest", Err: err}
			}
			return errors.Join(err, rerr)
		}
	}
	if !d.recorded(config) {
		return writeFile(d.configPath(), config)
	}
	return nil
}

// writeFile replaces a file in one step.
func writeFile(path, text string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// report reads what the boot script wrote last, and asks systemd.
func (d *Driver) report(ctx context.Context, digest string, firewall bool) (machine.Report, error) {
	out, err := d.Run(ctx, machine.Command{Argv: []string{"cat", ruleset.ReportPath}})
	if err != nil {
		return machine.Report{}, fmt.Errorf("no boot report: %w", err)
	}
	r, err := ruleset.ParseReport(string(out))
	if err != nil {
		return machine.Report{}, err
	}
	switch {
	case r.Digest != digest:
		return machine.Report{}, errors.New("another boot script ran than the one that is wanted")
	case r.Firewall != firewall:
		return machine.Report{}, errors.New("the VM firewall is not switched as configured")
	}
	if firewall {
		if _, err := d.Run(ctx, machine.Command{Argv: []string{"systemctl", "is-active", "foldyard-firewall.service"}}); err != nil {
			return machine.Report{}, fmt.Errorf("the VM firewall's unit is not active: %w", err)
		}
	}
	return machine.Report{Digest: r.Digest, Walled: r.Walled, BootID: r.BootID}, nil
}

// explain adds where the boot script stopped to an error, if the guest can tell.
func (d *Driver) explain(ctx context.Context, err error) error {
	e := &machine.Error{Detail: "the VM did not come up", Fix: "fy machine stop, then fy up; fy machine rm if that does not help", Err: err}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sshTimeout)
	defer cancel()
	out, lerr := d.Run(ctx, machine.Command{Argv: []string{"tail", "-n", "3", ruleset.BootLogPath}})
	if lerr == nil && strings.Contains(string(out), "stopped at: ") {
		e.Detail = "the VM's boot script stopped: " + clip(strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	return e
}

// Stop ends the machine: asked first, then by force.
func (d *Driver) Stop(ctx context.Context) error {
	conf, err := os.ReadFile(d.configPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(conf, []byte(marker)) {
		return &machine.Error{Detail: d.dir() + " was not made by foldyard", Fix: "stop it with limactl"}
	}
	l, err := d.list(ctx)
	if err == nil && (l.Status == "Stopped" || l.Status == "Uninitialized") && l.HostAgentPID == 0 && l.DriverPID == 0 {
		return nil
	}
	nothing := func(string) {}
	if err == nil && l.Status == "Running" {
		gentle, cancel := context.WithTimeout(ctx, stopTimeout)
		err := d.run(gentle, nothing, "stop", d.opt.Instance)
		cancel()
		if err == nil {
			return nil
		}
	}
	return d.run(ctx, nothing, "stop", "--force", d.opt.Instance)
}

// Remove deletes the machine and its disk.
func (d *Driver) Remove(ctx context.Context) error {
	if _, err := os.Lstat(d.dir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	conf, err := os.ReadFile(d.configPath())
	switch {
	case errors.Is(err, fs.ErrNotExist): // not made to its end: nothing runs from it
		return os.RemoveAll(d.dir())
	case err != nil:
		return err
	case !bytes.HasPrefix(conf, []byte(marker)):
		return &machine.Error{Detail: d.dir() + " was not made by foldyard", Fix: "remove it with limactl"}
	}
	if err := d.run(ctx, func(string) {}, "delete", "--force", d.opt.Instance); err != nil {
		return err
	}
	return os.RemoveAll(d.dir())
}
