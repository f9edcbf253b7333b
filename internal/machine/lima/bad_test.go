package lima

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// Each thing that can be wrong with a start is told with what mends it, and nothing runs afterwards.
func TestBadStartIsExplainedAndLeavesNothingRunning(t *testing.T) {
	for _, tt := range []struct {
		name, knob, text string
		detail, fix      string
	}{
		{"another digest", knobCreate, "to download `/x`: expected digest `sha256:aa`, got `sha256:bb`", "does not have the digest", "[machine] image and digest"},
		{"an image that is not there", knobCreate, "to download `https://images.example.com/x`: 404", "cannot be fetched", "[machine] image"},
		{"half a limactl", knobCreate, "guest agent binary could not be found for Linux-x86_64", "guest agent", "install Lima whole"},
		{"something else at create", knobCreate, "the moon is full", "was not made", "fy doctor"},
		{"something else at start", knobStart, "the moon is full", "did not come up", "fy machine rm"},
		{"KVM is not for this user", knobQEMU, "qemu-system-x86_64: failed" + " to initialize kvm: Permission denied", "QEMU may not use /dev/kvm", "fy doctor"},
		{"QEMU ends", knobQEMU, "qemu-system-x86_64: cannot set up guest memory", "did not come up: QEMU says: qemu-system-x86_64: cannot set up", "fy machine rm"},
		{"no nftables", knobBoot, "== firewall\nthis image has no /usr/sbin/nft: install nftables in it\nstopped at: firewall (exit 1)\n", "no /usr/sbin/nft", "image"},
		{"no mirror", knobBoot, "== packages\napt-get update failed, and this image has no podman\nstopped at: packages (exit 1)\n", "packages", "mirrors"},
		{"no systemd", knobBoot, "== firewall\nthis image has no systemd\nstopped at: firewall (exit 1)\n", "no systemd", "image"},
		{"no trust store", knobBoot, "== certificate\nthis image has neither update-ca-certificates nor update-ca-trust\nstopped at: certificate (exit 1)\n", "certificate", "image"},
		{"no report and no reason", knobBoot, "== user\n", "did not come up", "fy machine rm"},
		{"a full guest disk, at boot", knobFull, "", "the VM's disk is full", "larger [machine] disk"},
		{"a full guest disk, later", knobDisk, "12", "the VM's disk is full", "larger [machine] disk"},
		{"a full host disk", knobStart, "convert the disk: no space left on device", "no space for the VM", "make room"},
		{"a clock that is behind", knobClock, "-7200", "clock is off", "set this computer's clock"},
		{"a clock that is ahead", knobClock, "7200", "clock is off", "set this computer's clock"},
		{"another table", knobTable, "", "did not come up", "fy machine"},
		{"a unit that failed", knobUnit, "", "did not come up", "fy machine"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.turn(tt.knob, tt.text)
			_, _, err := l.up(labSpec())
			var e *machine.Error
			if !errors.As(err, &e) || !strings.Contains(e.Detail, tt.detail) || !strings.Contains(e.Fix, tt.fix) {
				t.Errorf("got %v (fix %v), want %q and %q", err, e, tt.detail, tt.fix)
			}
			if n := l.pids(); len(n) > 0 {
				t.Errorf("processes %v go on", n)
			}
			if tt.knob == knobCreate {
				if _, err := os.Lstat(l.d.dir()); !os.IsNotExist(err) {
					t.Errorf("half an instance is left: %v", err)
				}
			}
			l.turnBack(tt.knob)
			if _, _, err := l.up(labSpec()); err != nil {
				t.Errorf("control, once it is mended: %v", err)
			}
		})
	}
}

// A running machine that is not what it should be is started anew, once; what a start does not mend is told at once.
func TestRunningMachineThatIsNotAsItShouldBe(t *testing.T) {
	l := newLab(t)
	first, _, err := l.up(labSpec())
	if err != nil {
		t.Fatal(err)
	}
	table := fake{dir: l.d.dir()}.guest(ruleset.TablePath)
	b, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(table, []byte(strings.Replace(string(b), "goto refuse", "accept", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	second, said, err := l.up(labSpec())
	if err != nil || second.BootID == first.BootID || len(said) == 0 || !strings.Contains(said[0], "table") {
		t.Errorf("another table: %+v, said %q, %v", second, said, err)
	}
	before := l.calls()
	l.turn(knobDisk, "12")
	_, _, err = l.up(labSpec())
	var e *machine.Error
	if !errors.As(err, &e) || !strings.Contains(e.Detail, "disk is full") || l.calls() != before {
		t.Errorf("a full disk: %v, limactl was told %q", err, strings.TrimPrefix(l.calls(), before))
	}
	if len(l.pids()) != 2 {
		t.Error("it was stopped, and what fills its disk cannot be removed")
	}
}

func TestNoSpaceOnTheHostIsSaidBeforeAnythingIsMade(t *testing.T) {
	l := newLab(t)
	l.d.free = func(string) (int64, error) { return 100 << 20, nil }
	_, _, err := l.up(labSpec())
	var e *machine.Error
	if !errors.As(err, &e) || !strings.Contains(e.Detail, "100 MiB") || l.calls() != "" {
		t.Errorf("%v, limactl was told %q", err, l.calls())
	}
	l.d.free = func(string) (int64, error) { return 100 << 30, nil }
	if _, _, err := l.up(labSpec()); err != nil {
		t.Errorf("control: %v", err)
	}
}

func TestImageThatIsNotThereIsSaidBeforeAnythingIsMade(t *testing.T) {
	l := newLab(t)
	spec := labSpec()
	spec.Image = l.dir + "/no-such.qcow2"
	_, _, err := l.up(spec)
	var e *machine.Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "no-such.qcow2") || l.calls() != "" {
		t.Errorf("%v, limactl was told %q", err, l.calls())
	}
}

// The guest's word is compared part by part, and its ids must hold whom they are for.
func TestGuestsWordIsCompared(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	spec := labSpec()
	w := wanted{strings.Repeat("d", 64), true, guestOf(spec), spec.UID}
	const walled = "1000, 1000-4294967294, 524288-589823"
	table, err := w.guest.TableAs(walled, spec.UID)
	if err != nil {
		t.Fatal(err)
	}
	good := func() seen {
		return seen{
			"report": "foldyard boot report 1\ndigest " + w.digest + "\nfirewall on\nwalled " + walled + "\nboot b\n",
			"unit":   "active\n", "table": table, "clock": "1800000010\n", "disk": "/dev/vda1 100 50 99999999 1% /\n", "log": "== report\n",
		}
	}
	if r, err := w.check(good(), now); err != nil || r.BootID != "b" || r.Walled != walled {
		t.Fatalf("control: %+v, %v", r, err)
	}
	for name, f := range map[string]func(seen){
		"no report":             func(s seen) { delete(s, "report") },
		"half a report":         func(s seen) { s["report"] = s["report"][:40] },
		"another digest":        func(s seen) { s["report"] = strings.Replace(s["report"], "ddd", "eee", 1) },
		"no firewall":           func(s seen) { s["report"] = strings.Replace(s["report"], "firewall on", "firewall off", 1) },
		"the user is not held":  func(s seen) { s["report"] = strings.Replace(s["report"], "1000, ", "", 1) },
		"others are not held":   func(s seen) { s["report"] = strings.Replace(s["report"], "1000-4294967294, ", "", 1) },
		"ids that are a rule":   func(s seen) { s["report"] = strings.Replace(s["report"], "524288-589823", "1 } accept", 1) },
		"root is held":          func(s seen) { s["report"] = strings.Replace(s["report"], "524288-589823", "0-5", 1) },
		"an inactive unit":      func(s seen) { s["unit"] = "inactive\n" },
		"no unit":               func(s seen) { delete(s, "unit") },
		"another table":         func(s seen) { s["table"] = strings.Replace(table, "goto refuse", "accept", 1) },
		"a table with a rule":   func(s seen) { s["table"] = table + "\nadd rule inet foldyard output accept\n" },
		"no table":              func(s seen) { delete(s, "table") },
		"another band's table":  func(s seen) { s["table"] = strings.ReplaceAll(table, "41000", "41200") },
		"a clock behind":        func(s seen) { s["clock"] = "1799990000" },
		"a full disk":           func(s seen) { s["disk"] = "/dev/vda1 100 100 1 100% /" },
		"a script that stopped": func(s seen) { s["report"], s["log"] = "", "== sudo\nbad\nstopped at: sudo (exit 1)\n" },
	} {
		s := good()
		f(s)
		if _, err := w.check(s, now); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	w.firewall = false
	s := good()
	s["report"] = strings.Replace(s["report"], "firewall on", "firewall off", 1)
	delete(s, "unit")
	delete(s, "table")
	if _, err := w.check(s, now); err != nil {
		t.Errorf("without a firewall: %v", err)
	}
}

func TestDigestIsOfAKnownKind(t *testing.T) {
	p := platform{"linux", "amd64"}
	for digest, ok := range map[string]bool{
		"sha256:" + strings.Repeat("0a", 32): true, "sha512:" + strings.Repeat("0a", 64): true,
		"sha512:" + strings.Repeat("0a", 32): false, "sha256:" + strings.Repeat("0a", 64): false, "md5:" + strings.Repeat("0a", 16): false,
		"sha256:" + strings.Repeat("0A", 32): false, "": false,
	} {
		s := labSpec()
		s.Digest = digest
		if _, _, err := p.render(s); (err == nil) != ok {
			t.Errorf("digest %q: %v", digest, err)
		}
	}
}
