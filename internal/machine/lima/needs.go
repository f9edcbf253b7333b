package lima

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"foldyard/internal/machine"
)

// Versions of limactl that this drives: from 2.1 on, before 2.3.
const (
	wantMajor = 2
	minMinor  = 1
	maxMinor  = 2
)

const installLima = "install Lima 2.1 or 2.2 (macOS: brew install lima; Linux: docs/manual/lima.md)"

var instanceRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,40})$`) })

// maxHome bounds LIMA_HOME and instance together: ssh's control socket is below, with a suffix of ssh's own.
const maxHome = 104 - len("/ssh.sock.1234567890123456")

// need is something without which there is no machine here.
type need struct {
	name string
	look func(context.Context) (detail string, err error)
}

// needs are in the order in which they are to be mended.
func (d *Driver) needs() []need {
	all := []need{{"user", d.ordinary}, {"LIMA_HOME", d.place}, {"limactl", d.version}, {"ssh", d.tool("ssh", "install the OpenSSH client")}}
	if d.opt.GOOS != "linux" {
		return all
	}
	const install = "install QEMU (Debian: apt-get install qemu-system qemu-utils ovmf)"
	if d.opt.Getenv(d.emulator()) == "" {
		all = append(all, need{"QEMU", d.tool("qemu-system-"+d.p.arch(), install)})
	}
	return append(all, need{"qemu-img", d.tool("qemu-img", install)})
}

// emulator is the variable that names limactl another QEMU, with arguments.
func (d *Driver) emulator() string { return "QEMU_SYSTEM_" + strings.ToUpper(d.p.arch()) }

func (d *Driver) ordinary(context.Context) (string, error) {
	if d.opt.UID == 0 {
		return "", &machine.Error{Detail: "Lima does not run as root", Fix: "run fy as an ordinary user"}
	}
	return fmt.Sprintf("uid %d", d.opt.UID), nil
}

func (d *Driver) place(context.Context) (string, error) {
	if !instanceRE().MatchString(d.opt.Instance) {
		return "", &machine.Error{Detail: fmt.Sprintf("%q cannot name a VM", d.opt.Instance), Fix: "shorten [project] name to 40 letters, digits, dot, dash"}
	}
	if n := len(d.dir()); n > maxHome {
		return "", &machine.Error{Detail: fmt.Sprintf("%s is %d bytes long, and ssh's socket below it cannot be bound", d.dir(), n), Fix: "set FOLDYARD_HOME to a shorter path"}
	}
	return d.opt.Home, nil
}

// tool looks for a program in the operator's PATH.
func (d *Driver) tool(name, fix string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		path, err := lookPath(name, d.opt.Getenv("PATH"))
		if err != nil {
			return "", &machine.Error{Detail: name + " is not installed", Fix: fix}
		}
		return path, nil
	}
}

var versionRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b(\d+)\.(\d+)(?:\.\d+)?`) })

// version finds limactl, and asks which it is.
func (d *Driver) version(ctx context.Context) (string, error) {
	path, err := d.tool("limactl", installLima)(ctx)
	if err != nil {
		return "", err
	}
	d.limactl = path
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := d.command(ctx, "--version").Output()
	if err != nil {
		return "", &machine.Error{Detail: d.limactl + " --version failed", Fix: installLima, Err: err}
	}
	m := versionRE().FindStringSubmatch(string(out))
	if m == nil {
		return "", &machine.Error{Detail: fmt.Sprintf("limactl says its version is %.80q", strings.TrimSpace(string(out))), Fix: installLima}
	}
	major, _ := strconv.Atoi(m[1]) // digits
	minor, _ := strconv.Atoi(m[2])
	if major != wantMajor || minor < minMinor || minor > maxMinor {
		return "", &machine.Error{Detail: fmt.Sprintf("limactl is version %s", m[0]), Fix: installLima}
	}
	return d.limactl + ", version " + m[0], nil
}
