// Package lima drives the limactl program under foldyard's own LIMA_HOME: one
// virtual machine a project. Start with Driver.Up. It obeys the machine's own
// connection and boot report, not limactl's flags; it may not run anything as
// root in the guest (the recorded boot script does that, at boot), nor touch an
// instance that foldyard did not make.
package lima

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"foldyard/internal/machine"
)

// Bounds of what is waited for.
const (
	sshTimeout   = 40 * time.Second // one connection; an emulated guest is slow
	keptTimeout  = 15 * time.Second // an answer over one that is there
	startTimeout = 20 * time.Minute
	stopTimeout  = 90 * time.Second
)

// Options say where the driver works.
type Options struct {
	Home     string // LIMA_HOME, made when needed; foldyard's own
	Cache    string // where images are kept that were fetched; "" leaves it to limactl
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
	free    func(dir string) (int64, error)

	patience time.Duration // for one end of the machine, asked or forced
}

var _ machine.Machine = (*Driver)(nil)

func newDriver(opt Options) *Driver {
	return &Driver{opt: opt, p: platform{opt.GOOS, opt.GOARCH}, free: freeBytes, patience: stopTimeout}
}

// New looks whether this computer can run Lima at all. Errors are *machine.Error.
func New(ctx context.Context, opt Options) (*Driver, error) {
	d := newDriver(opt)
	for _, c := range d.needs() {
		if _, err := c.look(ctx); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Kind is the backend's name.
func (d *Driver) Kind() string { return "lima" }

// Gateway is the host as the guest sees it.
func (d *Driver) Gateway() netip.Addr { return gateway() }

func (d *Driver) dir() string        { return filepath.Join(d.opt.Home, d.opt.Instance) }
func (d *Driver) configPath() string { return filepath.Join(d.dir(), "lima.yaml") }
func (d *Driver) sshConfig() string  { return filepath.Join(d.dir(), "ssh.config") }

// State looks: at the disk, at limactl's word, and at last by a connection.
func (d *Driver) State(ctx context.Context) (machine.Status, error) {
	st, err := d.flagged(ctx)
	if err != nil || st.State != machine.Running {
		return st, err
	}
	if _, err := d.ssh(ctx, machine.Command{Argv: []string{"true"}}, "-o", "ControlMaster=no", "-o", "ControlPath=none"); err != nil {
		return machine.Status{State: machine.Broken, Why: "it runs and does not answer: " + err.Error()}, nil
	}
	return st, nil
}

// flagged is the state as the disk and limactl say it. Running is not believed before there was a connection.
func (d *Driver) flagged(ctx context.Context) (machine.Status, error) {
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
	switch {
	case err != nil:
		return machine.Status{State: machine.Broken, Why: err.Error()}, nil
	case l.Status == "Stopped" || l.Status == "Uninitialized" || l.Status == "Installing":
		return machine.Status{State: machine.Stopped}, nil
	case l.Status == "Running", l.HostAgentPID > 0 && l.DriverPID > 0: // limactl calls one broken that is slow to answer
		return machine.Status{State: machine.Running}, nil
	}
	return machine.Status{State: machine.Broken, Why: clip("limactl says " + l.Status + ": " + strings.Join(l.Errors, "; "))}, nil
}

// Up makes the machine what spec says and starts it.
func (d *Driver) Up(ctx context.Context, spec machine.Spec, say func(string)) (machine.Report, error) {
	say = sayer(say)
	config, digest, err := d.p.render(spec)
	if err != nil {
		return machine.Report{}, err
	}
	w := wanted{digest, spec.Firewall, guestOf(spec), spec.UID}
	// The guest is asked while limactl looks: each takes its time.
	var found machine.Report
	var wrong error
	var asked sync.WaitGroup
	askCtx, enough := context.WithCancel(ctx)
	defer enough()
	if d.recorded(config) {
		asked.Go(func() { found, wrong = d.usable(askCtx, w) })
	}
	st, err := d.flagged(ctx)
	if err != nil || st.State != machine.Running {
		enough()
	}
	asked.Wait()
	if err != nil {
		return machine.Report{}, err
	}
	if st.State == machine.Foreign {
		return machine.Report{}, &machine.Error{Detail: st.Why, Fix: "move it away, or give the project another name"}
	}
	if err := d.changeable(config); err != nil {
		return machine.Report{}, err
	}
	switch {
	case st.State == machine.Running && d.recorded(config):
		if wrong == nil {
			return found, nil
		}
		if e := (*machine.Error)(nil); errors.As(wrong, &e) && !errors.Is(wrong, machine.ErrNotRunning) {
			return found, wrong
		}
		say("the VM is not as it should be (" + wrong.Error() + "): it is started anew")
	case st.State == machine.Running:
		say("the VM was made otherwise: it is stopped, and made as configured")
	case st.State == machine.Broken:
		say("the VM is broken (" + st.Why + "): it is started anew")
	}
	if st.State == machine.Running || st.State == machine.Broken {
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
	err = d.run(startCtx, say, "start", "--timeout="+startTimeout.String(), d.opt.Instance)
	var r machine.Report
	if err == nil {
		r, err = d.usable(ctx, w)
	}
	if err != nil {
		return machine.Report{}, d.failed(ctx, err, say)
	}
	return r, nil
}

// usable looks, and compares with what is wanted.
func (d *Driver) usable(ctx context.Context, w wanted) (machine.Report, error) {
	s, err := d.look(ctx)
	if err != nil {
		return machine.Report{}, err
	}
	return w.check(s, time.Now())
}

// recorded reports whether the instance's configuration is config.
func (d *Driver) recorded(config string) bool {
	b, err := os.ReadFile(d.configPath())
	return err == nil && string(b) == config
}

// changeable says why an instance cannot become what config says: its disk was made from another image, or is larger.
func (d *Driver) changeable(config string) error {
	b, err := os.ReadFile(d.configPath())
	if err != nil {
		return nil //nolint:nilerr // there is none, or State says what is wrong with it
	}
	old := string(b)
	if was, now := section(old, "images:", "cpus:"), section(config, "images:", "cpus:"); was != now && (nameOf(was) == "" || nameOf(was) != nameOf(now)) {
		return &machine.Error{
			Detail: "the VM was made from another image than is configured",
			Fix:    "fy machine rm, then fy up: its disk goes, and the box's kept home with it; or set [machine] image and digest back",
		}
	}
	if was, now := diskOf(old), diskOf(config); now < was {
		return &machine.Error{
			Detail: fmt.Sprintf("the VM's disk has %d MiB, and cannot shrink to %d", was, now),
			Fix:    fmt.Sprintf(`set [machine] disk to "%dMiB" or more; or fy machine rm, then fy up: its disk goes, and the box's kept home with it`, was),
		}
	}
	return nil
}

// section is the part of a configuration from one line to another.
func section(config, from, to string) string {
	_, rest, _ := strings.Cut(config, "\n"+from+"\n")
	part, _, _ := strings.Cut(rest, "\n"+to)
	return part
}

// nameOf is the distribution whose image an instance has, "" for one of the operator's own.
func nameOf(images string) string {
	rest, ok := strings.CutPrefix(images, named)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "\n")
	return name
}

// diskOf is the disk of a configuration, in MiB; 0 if it cannot be told.
func diskOf(config string) int {
	_, rest, _ := strings.Cut(config, "\ndisk: ")
	n, _, _ := strings.Cut(rest, "MiB\n")
	mib, err := strconv.Atoi(n)
	if err != nil {
		return 0
	}
	return mib
}

// minFree is the space that a start wants beside the disk's own growth.
const minFree = 2 << 30

// ensure creates the instance, or records config in the stopped one.
func (d *Driver) ensure(ctx context.Context, spec machine.Spec, config string, say func(string)) error {
	if err := os.MkdirAll(d.opt.Home, 0o700); err != nil {
		return err
	}
	if free, err := d.free(d.opt.Home); err == nil && free < minFree {
		return &machine.Error{Detail: fmt.Sprintf("%s has %d MiB left", d.opt.Home, free>>20), Fix: "make at least 2 GiB free"}
	}
	for _, path := range []string{spec.Image, spec.Kernel, spec.Initrd} {
		if strings.HasPrefix(path, "/") {
			if _, err := os.Stat(path); err != nil {
				return &machine.Error{Detail: "an image of the VM cannot be read", Fix: "check [machine] image, kernel, initrd", Err: err}
			}
		}
	}
	st, err := d.flagged(ctx)
	if err != nil {
		return err
	}
	if st.State == machine.Broken { // stopped already, and still not whole
		if d.hasDisk() {
			return &machine.Error{Detail: "the VM is broken: " + st.Why, Fix: "fy machine status; fy machine rm deletes it, and the box's kept home with it"}
		}
		say("removes a VM that was not made to its end")
		if err := d.Remove(ctx); err != nil {
			return err
		}
		st.State = machine.Absent
	}
	if st.State == machine.Absent {
		say("makes the VM")
		if name := nameOf(section(config, "images:", "cpus:")); name != "" {
			say("fetches " + name + "'s image, and at the first start in the VM what it lacks: past the proxy, in some minutes")
		}
		file := filepath.Join(d.opt.Home, "."+d.opt.Instance+".yaml")
		if err := writeFile(file, config); err != nil {
			return err
		}
		defer os.Remove(file)
		if err := d.run(ctx, say, "create", "--name="+d.opt.Instance, file); err != nil {
			e := &machine.Error{Detail: "the VM was not made", Fix: "fy doctor, then fy up", Err: errors.Join(err, d.Remove(context.WithoutCancel(ctx)))}
			d.blame(e, err.Error())
			return e
		}
	}
	if !d.recorded(config) {
		return writeFile(d.configPath(), config)
	}
	return nil
}

// hasDisk reports whether the instance has a disk, which may hold what its user wants to keep.
func (d *Driver) hasDisk() bool {
	for _, name := range []string{"disk", "diffdisk"} {
		if _, err := os.Lstat(filepath.Join(d.dir(), name)); err == nil {
			return true
		}
	}
	return false
}

// writeFile replaces a file in one step.
func writeFile(path, text string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Stop ends the machine: asked first, then by force.
func (d *Driver) Stop(ctx context.Context) error {
	conf, err := os.ReadFile(d.configPath())
	if errors.Is(err, fs.ErrNotExist) {
		return d.reap(ctx)
	}
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(conf, []byte(marker)) {
		return &machine.Error{Detail: d.dir() + " was not made by foldyard", Fix: "stop it with limactl"}
	}
	l, err := d.list(ctx)
	if err == nil && (l.Status == "Stopped" || l.Status == "Uninitialized") && l.HostAgentPID == 0 && l.DriverPID == 0 {
		return d.reap(ctx)
	}
	nothing := func(string) {}
	if err == nil && l.Status == "Running" {
		gentle, cancel := context.WithTimeout(ctx, d.patience)
		err := d.run(gentle, nothing, "stop", d.opt.Instance)
		cancel()
		if err == nil {
			return d.reap(ctx)
		}
	}
	forced, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	err = d.run(forced, nothing, "stop", "--force", d.opt.Instance)
	if forced.Err() != nil && ctx.Err() == nil { // a limactl that hangs leaves it to us
		err = nil
	}
	return errors.Join(err, d.reap(ctx))
}

// Remove deletes the machine and its disk. limactl need not understand it any more: nothing runs from it afterwards.
func (d *Driver) Remove(ctx context.Context) error {
	if _, err := os.Lstat(d.dir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	conf, err := os.ReadFile(d.configPath())
	switch {
	case errors.Is(err, fs.ErrNotExist): // not made to its end
	case err != nil:
		return err
	case !bytes.HasPrefix(conf, []byte(marker)):
		return &machine.Error{Detail: d.dir() + " was not made by foldyard", Fix: "remove it with limactl"}
	default:
		if d.limactl != "" {
			_ = d.run(ctx, func(string) {}, "delete", "--force", d.opt.Instance) // what it leaves is ended and removed here
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(d.reap(ctx), os.RemoveAll(d.dir()))
}
