package lima

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// lookScript prints what the guest says of its own construction, each part after a line that names it. systemctl takes as long as all the
// others do together, so they run beside it.
const lookScript = `part() { printf '\n@@ %s\n' "$1"; }
{ part unit
systemctl is-active ` + ruleset.UnitName + `
} | {
part report; cat ` + ruleset.ReportPath + `
part table; cat ` + ruleset.TablePath + `
part clock; date -u +%s
part disk; df -Pk / | tail -n 1
part log; tail -c 4096 ` + ruleset.BootLogPath + `
cat
}
true`

// seen is the guest's word, by part. Absent is "".
type seen map[string]string

// look asks the guest: over the connection that is kept, and over one of its own where none is, or no answer comes.
func (d *Driver) look(ctx context.Context) (seen, error) {
	c := machine.Command{Argv: []string{"sh", "-c", lookScript}}
	kept, cancel := context.WithTimeout(ctx, keptTimeout)
	defer cancel()
	out, err := d.ssh(kept, c, "-o", "ControlMaster=no")
	if err != nil && ctx.Err() == nil {
		out, err = d.ssh(ctx, c, "-o", "ControlMaster=no", "-o", "ControlPath=none")
	}
	if err != nil {
		return nil, err
	}
	return parseSeen(string(out)), nil
}

func parseSeen(out string) seen {
	s := seen{}
	for part := range strings.SplitSeq(out, "\n@@ ") {
		name, text, ok := strings.Cut(part, "\n")
		if _, twice := s[name]; ok && !twice && name != "" {
			s[name] = text
		}
	}
	return s
}

// wanted is what a machine must say of itself to be used.
type wanted struct {
	digest   string // of the boot script
	firewall bool
	guest    ruleset.Guest
	uid      int // of the machine's user
}

// Bounds of what a guest may be.
const (
	maxSkew = 5 * time.Minute // of its clock; certificates are for days, and a slow guest answers late
	minRoom = 64 << 20        // on its disk
)

// check compares the guest's word with what is wanted. An error that is a *machine.Error is one that a new start does not mend.
func (w wanted) check(s seen, now time.Time) (machine.Report, error) {
	var none machine.Report
	if s["report"] == "" {
		if at := s.stopped(); at != "" {
			return none, errors.New("the boot script stopped: " + at)
		}
		return none, errors.New("no boot report")
	}
	r, err := ruleset.ParseReport(s["report"])
	switch {
	case err != nil:
		return none, err
	case r.Digest != w.digest:
		return none, errors.New("another boot script ran than the one that is wanted")
	case r.Firewall != w.firewall:
		return none, errors.New("the VM firewall is not switched as configured")
	}
	if w.firewall {
		if got := strings.TrimSpace(s["unit"]); got != "active" {
			return none, fmt.Errorf("the VM firewall's unit is not active (%.40q)", got)
		}
		table, err := w.guest.TableAs(r.Walled, w.uid)
		if err != nil {
			return none, err
		}
		if strings.TrimSpace(s["table"]) != strings.TrimSpace(table) {
			return none, errors.New("the VM firewall's table is not the one that was rendered")
		}
	}
	if off, ok := s.skew(now); ok && off.Abs() > maxSkew {
		return none, fmt.Errorf("the VM's clock is off by %s", off.Round(time.Second))
	}
	if room, ok := s.room(); ok && room < minRoom {
		return none, &machine.Error{Detail: fmt.Sprintf("the VM's disk is full: %d MiB left", room>>20), Fix: RoomFix}
	}
	return machine.Report{Digest: r.Digest, Walled: r.Walled, BootID: r.BootID}, nil
}

// RoomFix is what to do about a full disk of a machine.
const RoomFix = "fy machine shell, and delete there (podman system prune); or set a larger [machine] disk, then fy machine stop and fy up"

// skew is how far the guest's clock is ahead of now.
func (s seen) skew(now time.Time) (time.Duration, bool) {
	at, err := strconv.ParseInt(strings.TrimSpace(s["clock"]), 10, 64)
	return time.Unix(at, 0).Sub(now), err == nil
}

// room is what is left on the guest's disk, in bytes.
func (s seen) room() (int64, bool) {
	f := strings.Fields(s["disk"])
	if len(f) < 4 {
		return 0, false
	}
	kib, err := strconv.ParseInt(f[3], 10, 64)
	return kib << 10, err == nil && kib >= 0 && kib < 1<<50
}

// stopped is where the boot script stopped, and what it said just before; "" if it did not.
func (s seen) stopped() string {
	lines := strings.Split(strings.TrimSpace(s["log"]), "\n")
	at, ok := strings.CutPrefix(lines[len(lines)-1], "stopped at: ")
	if !ok {
		return ""
	}
	if len(lines) > 1 && !strings.HasPrefix(lines[len(lines)-2], "== ") {
		at += ": " + lines[len(lines)-2]
	}
	return clip(at)
}

// bootFix is what to do about a boot script that stopped.
func bootFix(at string) string {
	if strings.HasPrefix(at, "packages") {
		return "let this computer reach the distribution's mirrors without a proxy, then fy up; or name an image that has these programs ([machine] image)"
	}
	return "mend the VM's image ([machine] image), then fy machine rm and fy up"
}

// blame says what limactl could not do, by its own words, and what mends it. It leaves e as it is where that cannot be told.
func (d *Driver) blame(e *machine.Error, text string) {
	switch {
	case strings.Contains(text, "expected digest"):
		e.Detail, e.Fix = "the VM's image does not have the digest that is configured", "check [machine] image and digest, then fy up"
	case strings.Contains(text, "no space left on device"):
		e.Detail, e.Fix = "there is no space for the VM at "+d.opt.Home, "make room, then fy up"
	case strings.Contains(text, "to download `"):
		e.Detail, e.Fix = "the VM's image cannot be fetched", "check [machine] image, and that this computer reaches it, then fy up"
	case strings.Contains(text, "initialize kvm: "):
		e.Detail, e.Fix = "QEMU may not use "+kvm, "fy doctor: its row acceleration says how it may, then fy up"
	case strings.Contains(text, "guest agent binary could not be found"):
		e.Detail, e.Fix = "limactl was installed without its guest agent", "install Lima whole: share/lima lies beside its bin"
	}
}

// emulatorSaid is the last line of QEMU's own that limactl noted at this start, which it does not pass on; "" if there is none.
func (d *Driver) emulatorSaid() string {
	const most = 1 << 20
	f, err := os.Open(filepath.Join(d.dir(), "ha.stderr.log"))
	if err != nil {
		return ""
	}
	defer f.Close()
	said := ""
	for dec := json.NewDecoder(io.LimitReader(f, most)); ; {
		var line struct{ Msg string }
		if dec.Decode(&line) != nil {
			return clip(said)
		}
		if s, ok := strings.CutPrefix(line.Msg, "qemu[stderr]: "); ok {
			said = s
		}
	}
}

// failed says why a machine that was started cannot be used, and stops it: it must not stay half made.
func (d *Driver) failed(ctx context.Context, err error, say func(string)) error {
	e := &machine.Error{Detail: "the VM did not come up", Fix: "fy machine stop, then fy up; fy machine rm if that does not help", Err: err}
	if ctx.Err() != nil { // interrupted: the next Up goes on from there
		return e
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sshTimeout)
	s, lerr := d.look(ctx)
	cancel()
	text := err.Error()
	if lerr == nil {
		text += s["log"]
		if at := s.stopped(); at != "" {
			e.Detail = "the VM's boot script stopped at: " + at
			e.Fix = bootFix(at)
		}
		if log := filepath.Join(d.dir(), "boot.log"); s["log"] != "" && os.WriteFile(log, []byte(s["log"]), 0o600) == nil {
			e.Detail += " (its log ends in " + log + ")"
		}
	}
	var told *machine.Error
	switch {
	case errors.As(err, &told) && !errors.Is(err, machine.ErrNotRunning):
		e.Detail, e.Fix, err = told.Detail, told.Fix, told.Err
	case strings.Contains(text, "No space left on device") && lerr == nil:
		e.Detail, e.Fix = "the VM's disk is full", "set a larger [machine] disk, then fy up; or fy machine rm"
	case strings.Contains(text, "clock is off"):
		e.Detail, e.Fix = "the VM's clock is off", "set this computer's clock (fy doctor), then fy up"
	default:
		said := d.emulatorSaid()
		if said != "" {
			e.Detail += ": QEMU says: " + said
		}
		d.blame(e, text+said)
	}
	say("stops the VM, which cannot be used")
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*stopTimeout)
	defer cancel()
	e.Err = errors.Join(err, d.Stop(stopCtx))
	return e
}
