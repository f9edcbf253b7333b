package lima

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// Doctor says whether this computer can have the machine that spec describes, row by row, and how one that runs is. It changes nothing.
// Of spec only what the operator configures is looked at.
func Doctor(ctx context.Context, opt Options, spec machine.Spec, now time.Time) []machine.Finding {
	d := newDriver(opt)
	return d.doctor(ctx, spec, now)
}

func (d *Driver) doctor(ctx context.Context, spec machine.Spec, now time.Time) []machine.Finding {
	var out []machine.Finding
	for _, n := range d.needs() {
		detail, err := n.look(ctx)
		out = append(out, machine.Found(n.name, detail, err))
	}
	if d.opt.GOOS == "linux" {
		out = append(out, d.acceleration(kvm))
	}
	out = append(out, d.space(spec), d.image(ctx, spec))
	for _, path := range []string{spec.Kernel, spec.Initrd} {
		if path != "" {
			_, err := readable(path)
			out = append(out, machine.Found("VM kernel, initrd", path, err))
		}
	}
	if d.limactl == "" {
		return out
	}
	return append(out, d.instance(ctx, now)...)
}

// kvm is what QEMU needs not to emulate.
const kvm = "/dev/kvm"

// acceleration looks whether QEMU may use KVM. limactl emulates where there is none, and insists on one that is there.
func (d *Driver) acceleration(path string) machine.Finding {
	const name = "acceleration"
	if v := d.emulator(); d.opt.Getenv(v) != "" {
		return machine.Finding{Name: name, State: "ok", Detail: "as " + v + " says"}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_ = f.Close() // it was opened: that is all
		return machine.Finding{Name: name, State: "ok", Detail: path}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return machine.Finding{Name: name, State: "warn", Detail: "the VM is emulated, and slow: " + err.Error(), Fix: "switch virtualization on in the firmware, or live with it"}
	}
	return machine.Finding{
		Name: name, State: "fail", Detail: "QEMU may not use KVM: " + err.Error(),
		Fix: "sudo usermod -aG kvm \"$USER\" (or the group that ls -l " + path + " shows), then log in again and fy supervisor restart; to emulate instead: docs/manual/lima.md",
	}
}

// space looks at the room where the VM's disk grows.
func (d *Driver) space(spec machine.Spec) machine.Finding {
	const name = "VM space"
	dir := d.opt.Home
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := d.free(dir)
	detail := fmt.Sprintf("%d MiB free at %s", free>>20, dir)
	switch {
	case err != nil:
		return machine.Finding{Name: name, State: "warn", Detail: err.Error(), Fix: "see that " + dir + " is mounted"}
	case free < minFree:
		return machine.Finding{Name: name, State: "fail", Detail: detail, Fix: "make at least 2 GiB free"}
	case free < spec.Disk:
		return machine.Finding{Name: name, State: "warn", Detail: fmt.Sprintf("%s: the VM's disk may grow to %d MiB", detail, spec.Disk>>20), Fix: "make room, or set a smaller [machine] disk before the first fy up"}
	}
	return machine.Finding{Name: name, State: "ok", Detail: detail}
}

// image looks at the VM's image: that there is one, and that one on this computer is what its digest says.
func (d *Driver) image(ctx context.Context, spec machine.Spec) machine.Finding {
	const name = "VM image"
	location, digest, _, err := d.p.image(spec)
	if err != nil {
		return machine.Found(name, "", err)
	}
	if !strings.HasPrefix(location, "/") {
		return machine.Finding{Name: name, State: "ok", Detail: location + ": fetched and checked at the first start"}
	}
	f, err := readable(location)
	if err != nil {
		return machine.Found(name, "", err)
	}
	kind, want, _ := strings.Cut(digest, ":")
	got, err := sumOf(ctx, f, kind)
	if err == nil && got != want {
		err = &machine.Error{Detail: fmt.Sprintf("%s has the digest %s:%s, and another is configured", f, kind, got), Fix: "set [machine] digest to that, if this is the image you mean"}
	}
	return machine.Found(name, spec.Image, err)
}

// readable returns path if a regular file can be read there.
func readable(path string) (string, error) {
	fix := "check [machine] image, kernel, initrd"
	f, err := os.Open(path)
	if err != nil {
		return "", &machine.Error{Detail: "a file of the VM cannot be read", Fix: fix, Err: err}
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", &machine.Error{Detail: path + " is no file", Fix: fix, Err: err}
	}
	return path, nil
}

// sumOf is a file's digest, in hexadecimal. It ends early with ctx.
func sumOf(ctx context.Context, path, kind string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var sum hash.Hash = sha256.New()
	if kind == "sha512" {
		sum = sha512.New()
	}
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		switch {
		case errors.Is(err, io.EOF):
			return hex.EncodeToString(sum.Sum(nil)), nil
		case err != nil:
			return "", err
		case ctx.Err() != nil:
			return "", ctx.Err()
		}
	}
}

// instance looks at the machine itself, and asks one that runs.
func (d *Driver) instance(ctx context.Context, now time.Time) []machine.Finding {
	const name = "VM"
	st, err := d.flagged(ctx)
	switch {
	case err != nil:
		return []machine.Finding{machine.Found(name, "", err)}
	case st.State == machine.Foreign:
		return []machine.Finding{{Name: name, State: "fail", Detail: st.Why, Fix: "move it away, or give the project another name"}}
	case st.State == machine.Broken:
		return []machine.Finding{{Name: name, State: "warn", Detail: st.Why, Fix: "fy up mends it; fy machine rm if that does not help"}}
	case st.State != machine.Running:
		return []machine.Finding{{Name: name, State: "ok", Detail: string(st.State)}}
	}
	s, err := d.look(ctx)
	if err != nil {
		return []machine.Finding{{Name: name, State: "warn", Detail: "it runs and does not answer: " + err.Error(), Fix: "fy up mends it"}}
	}
	return append([]machine.Finding{{Name: name, State: "ok", Detail: "running"}}, s.findings(now)...)
}

// findings are what a guest says of itself.
func (s seen) findings(now time.Time) []machine.Finding {
	const anew = "fy machine stop, then fy up"
	boot := machine.Finding{Name: "VM boot", State: "ok", Detail: "the boot script ran to its end"}
	r, err := ruleset.ParseReport(s["report"])
	switch {
	case err == nil && r.Firewall && strings.TrimSpace(s["unit"]) != "active":
		boot = machine.Finding{Name: "VM boot", State: "fail", Detail: "the VM firewall's unit is not active", Fix: anew}
	case err == nil:
	case s.stopped() != "":
		boot = machine.Finding{Name: "VM boot", State: "fail", Detail: "the boot script stopped at: " + s.stopped(), Fix: bootFix(s.stopped())}
	default:
		boot = machine.Finding{Name: "VM boot", State: "fail", Detail: "no boot report", Fix: anew}
	}
	out := []machine.Finding{boot}
	if off, ok := s.skew(now); ok {
		f := machine.Finding{Name: "VM clock", State: "ok", Detail: "as this computer's"}
		if off.Abs() > maxSkew {
			f = machine.Finding{Name: "VM clock", State: "fail", Detail: "off by " + off.Round(time.Second).String() + ": certificates will not verify", Fix: anew}
		}
		out = append(out, f)
	}
	if room, ok := s.room(); ok {
		f := machine.Finding{Name: "VM disk", State: "ok", Detail: fmt.Sprintf("%d MiB left", room>>20)}
		if room < minRoom {
			f.State, f.Fix = "fail", RoomFix
		}
		out = append(out, f)
	}
	return out
}
