package lima

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/machine"
	"foldyard/internal/testkit"
	"foldyard/internal/wall/ruleset"
)

// Each row of the doctor says what is wrong and what mends it; on a computer where nothing is wrong it is ok.
func TestDoctor(t *testing.T) {
	image := filepath.Join(t.TempDir(), "guest.qcow2")
	if err := os.WriteFile(image, []byte("an image"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("an image"))
	spec := labSpec()
	spec.Image, spec.Digest, spec.Disk = image, "sha256:"+hex.EncodeToString(sum[:]), 4<<30
	up := func(l *lab) {
		if _, _, err := l.up(spec); err != nil {
			l.t.Fatal(err)
		}
	}
	tool := func(name, text string) func(*lab) {
		return func(l *lab) {
			if text == "" {
				l.d.opt.Getenv = options(l.dir, "").Getenv // without /usr/bin
				_ = os.Remove(filepath.Join(l.dir, name))
				return
			}
			testkit.WriteExecutable(t, filepath.Join(l.dir, name), "#!/bin/sh\n"+text+"\n")
		}
	}
	for _, tt := range []struct {
		name               string
		spoil              func(*lab)
		change             func(*machine.Spec)
		row, state, detail string
	}{
		{"all is well, no machine", nil, nil, "VM", "ok", "absent"},
		{"all is well, it runs", up, nil, "VM boot", "ok", "to its end"},
		{"the image is right", nil, nil, "VM image", "ok", image},
		{"root", func(l *lab) { l.d.opt.UID = 0 }, nil, "user", "fail", "as root"},
		{"no limactl", tool("limactl", ""), nil, "limactl", "fail", "not installed"},
		{"an old limactl", tool("limactl", "echo limactl version 1.0.7"), nil, "limactl", "fail", "1.0.7"},
		{"no QEMU", tool("qemu-system-x86_64", ""), nil, "QEMU", "fail", "not installed"},
		{"no qemu-img", tool("qemu-img", ""), nil, "qemu-img", "fail", "not installed"},
		{"no ssh", tool("ssh", ""), nil, "ssh", "fail", "not installed"},
		{"a long home", func(l *lab) { l.d.opt.Home = "/" + strings.Repeat("h", 90) }, nil, "LIMA_HOME", "fail", "bytes long"},
		{"no space", func(l *lab) { l.d.free = func(string) (int64, error) { return 1 << 20, nil } }, nil, "VM space", "fail", "1 MiB"},
		{"less space than the disk may take", func(l *lab) { l.d.free = func(string) (int64, error) { return 3 << 30, nil } }, nil, "VM space", "warn", "may grow"},
		{"no image is named", nil, func(s *machine.Spec) { s.Image, s.Digest = "", "" }, "VM image", "ok", "debian-13-generic-amd64"},
		{"a distribution's image", nil, func(s *machine.Spec) { s.Image, s.Digest = "fedora", "" }, "VM image", "ok", "Fedora-Cloud-Base"},
		{"a distribution's image with a digest", nil, func(s *machine.Spec) { s.Image = "debian" }, "VM image", "fail", "of its own"},
		{"an image without a digest", nil, func(s *machine.Spec) { s.Digest = "" }, "VM image", "fail", "digest"},
		{"an image that is not there", nil, func(s *machine.Spec) { s.Image += "x" }, "VM image", "fail", "no such file"},
		{"another digest", nil, func(s *machine.Spec) { s.Digest = "sha256:" + strings.Repeat("0", 64) }, "VM image", "fail", hex.EncodeToString(sum[:])},
		{"an image to be fetched", nil, func(s *machine.Spec) { s.Image = "https://images.example.com/x.qcow2" }, "VM image", "ok", "first start"},
		{"a kernel that is not there", nil, func(s *machine.Spec) { s.Kernel = "/no/kernel" }, "VM kernel, initrd", "fail", "/no/kernel"},
		{"someone else's instance", func(l *lab) {
			_ = os.MkdirAll(l.d.dir(), 0o700)
			_ = os.WriteFile(l.d.configPath(), []byte("images: []\n"), 0o600)
		}, nil, "VM", "fail", "not made by foldyard"},
		{"half an instance", func(l *lab) { _ = os.MkdirAll(l.d.dir(), 0o700) }, nil, "VM", "warn", "not made to its end"},
		{"it does not answer", func(l *lab) { up(l); l.turn(knobNoConn, "") }, nil, "VM", "warn", "does not answer"},
		{"a guest whose script stopped", func(l *lab) {
			up(l)
			f := fake{dir: l.d.dir()}
			_ = os.Remove(f.guest(ruleset.ReportPath))
			_ = os.WriteFile(f.guest(ruleset.BootLogPath), []byte("this image has no systemd\nstopped at: firewall (exit 1)\n"), 0o600)
		}, nil, "VM boot", "fail", "no systemd"},
		{"a guest without a report", func(l *lab) { up(l); _ = os.Remove(fake{dir: l.d.dir()}.guest(ruleset.ReportPath)) }, nil, "VM boot", "fail", "no boot report"},
		{"an inactive unit", func(l *lab) { up(l); l.turn(knobUnit, "") }, nil, "VM boot", "fail", "not active"},
		{"a clock that is off", func(l *lab) { up(l); l.turn(knobClock, "90000") }, nil, "VM clock", "fail", "off by 2"},
		{"a full disk", func(l *lab) { up(l); l.turn(knobDisk, "10") }, nil, "VM disk", "fail", "0 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			s := spec
			if tt.spoil != nil {
				tt.spoil(l)
			}
			if tt.change != nil {
				tt.change(&s)
			}
			l.d.limactl = ""
			before := l.calls()
			rows := l.d.doctor(t.Context(), s, time.Now())
			found := false
			for _, r := range rows {
				if r.Name == tt.row {
					found = true
					if r.State != tt.state || !strings.Contains(r.Detail, tt.detail) || (r.State == "ok") != (r.Fix == "") {
						t.Errorf("row %+v, want %s, %q", r, tt.state, tt.detail)
					}
				} else if tt.state == "ok" && r.Name != "acceleration" && r.State != "ok" {
					t.Errorf("row %+v on a computer where all is well", r)
				}
			}
			if !found {
				t.Errorf("no row %s in %+v", tt.row, rows)
			}
			if l.calls() != before {
				t.Errorf("it changed something: %s", l.calls())
			}
		})
	}
}

func TestAccelerationIsNamed(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "kvm")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	d := newDriver(Options{GOOS: "linux", GOARCH: "amd64", Getenv: func(k string) string { return env[k] }})
	if f := d.acceleration(there); f.State != "ok" {
		t.Errorf("control: %+v", f)
	}
	if f := d.acceleration(filepath.Join(dir, "none")); f.State != "warn" || f.Fix == "" {
		t.Errorf("none there: %+v", f)
	}
	// One that is there and cannot be opened ends QEMU: nothing is emulated.
	if f := d.acceleration(filepath.Join(there, "below")); f.State != "fail" || f.Fix == "" {
		t.Errorf("one that cannot be opened: %+v", f)
	}
	env["QEMU_SYSTEM_X86_64"] = "qemu-system-x86_64 -accel tcg"
	if f := d.acceleration(filepath.Join(there, "below")); f.State != "ok" {
		t.Errorf("the operator chose another: %+v", f)
	}
}

// An image is read no longer than the operator waits.
func TestDigestOfAnImageEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sumOf(ctx, "/dev/zero", "sha512"); err == nil {
		t.Error("read to the end of what has none")
	}
}
