package lima

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// roleVar makes the test binary one of the programs that the driver starts.
const roleVar = "FY_LIMA_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "limactl":
		os.Exit(fakeLimactl(os.Args[1:]))
	case "ssh":
		os.Exit(fakeSSH(os.Args[1:]))
	case "process": // a QEMU, or a host agent
		time.Sleep(10 * time.Minute)
	}
	os.Exit(m.Run())
}

// lab is a computer with a limactl, an ssh and QEMU that are this test binary. Its machines run as two processes, and what is run in one
// runs here. Files in dir say how it is to misbehave.
type lab struct {
	t   *testing.T
	dir string // of the knobs
	d   *Driver
}

// Knobs: a file of this name in the lab's directory.
const (
	knobDigest   = "wrong-digest"    // the image has another digest
	knobBoot     = "boot-stops"      // the boot script stops; the file holds its log
	knobClock    = "clock-off"       // seconds that the guest is ahead
	knobDisk     = "disk-left"       // KiB that are left on the guest's disk
	knobTable    = "table-changed"   // the guest's table is another one
	knobUnit     = "unit-inactive"   // and its unit not active
	knobHang     = "start-hangs"     // limactl start does not come back
	knobNoConn   = "no-connection"   // ssh cannot connect
	knobSlowInfo = "says-broken"     // limactl says broken of what runs
	knobCrash    = "create-crashes"  // limactl dies half way through create
	knobNoList   = "list-fails"      // limactl list fails
	knobSpace    = "no-space-left"   // the host's disk is full
	knobFull     = "guest-disk-full" // the boot script finds the guest's disk full
)

func newLab(t *testing.T) *lab {
	t.Helper()
	// Short, for ssh's sockets would lie below it.
	dir, err := os.MkdirTemp("/tmp", "fylima")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"limactl", "ssh"} {
		script := fmt.Sprintf("#!/bin/sh\n%s=%s FY_LIMA_LAB=%s exec %s \"$@\"\n", roleVar, tool, dir, self)
		if err := os.WriteFile(filepath.Join(dir, tool), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tool := range []string{"qemu-system-x86_64", "qemu-img"} {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := &lab{t: t, dir: dir}
	l.d, err = New(t.Context(), options(dir+":/usr/bin:/bin", filepath.Join(dir, "home")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range l.pids() {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		_ = os.RemoveAll(dir)
	})
	return l
}

func (l *lab) turn(knob, text string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, knob), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) turnBack(knob string) { _ = os.Remove(filepath.Join(l.dir, knob)) }

// calls are limactl's command lines so far, without version and list.
func (l *lab) calls() string {
	b, _ := os.ReadFile(filepath.Join(l.dir, "calls"))
	return string(b)
}

// pids are the processes of the machine that live.
func (l *lab) pids() []int {
	var out []int
	all, _ := os.ReadFile(filepath.Join(l.dir, "processes"))
	for _, f := range strings.Fields(string(all)) {
		if pid, err := strconv.Atoi(f); err == nil && alive(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// alive tells a process from one that ended and that nobody waited for.
func alive(pid int) bool {
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, rest, _ := strings.Cut(string(b), ") ")
		return !strings.HasPrefix(rest, "Z")
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(out) > 0 && !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

// The fake.

type fake struct{ lab, home, dir string }

func (f fake) knob(name string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(f.lab, name))
	return string(b), err == nil
}

func (f fake) is(name string) bool { _, ok := f.knob(name); return ok }

func (f fake) pid(name string) int {
	b, _ := os.ReadFile(filepath.Join(f.dir, name+".pid"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || !alive(pid) {
		return 0
	}
	return pid
}

// fatal logs as limactl does, and fails.
func fatal(format string, args ...any) int {
	b, _ := json.Marshal(map[string]string{"level": "fatal", "msg": fmt.Sprintf(format, args...)})
	fmt.Fprintln(os.Stderr, string(b))
	return 1
}

func fakeLimactl(args []string) int {
	f := fake{lab: os.Getenv("FY_LIMA_LAB"), home: os.Getenv("LIMA_HOME")}
	var verb []string
	for _, a := range args {
		if a == "--version" {
			fmt.Println("limactl version 2.2.0")
			return 0
		}
		if !strings.HasPrefix(a, "--tty") && !strings.HasPrefix(a, "--log-format") {
			verb = append(verb, a)
		}
	}
	name := verb[len(verb)-1]
	if verb[0] == "create" {
		name = strings.TrimPrefix(verb[1], "--name=")
	}
	f.dir = filepath.Join(f.home, name)
	if verb[0] != "list" {
		log, err := os.OpenFile(filepath.Join(f.lab, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fatal("%v", err)
		}
		fmt.Fprintln(log, strings.Join(verb, " "))
		_ = log.Close()
	}
	switch verb[0] {
	case "list":
		return f.list()
	case "create":
		return f.create(verb[len(verb)-1])
	case "start":
		return f.start()
	case "stop":
		force := verb[1] == "--force"
		if !force && f.pid("ha") == 0 {
			return fatal("expected status %q, got %q (maybe use `limactl stop -f`?)", "Running", "Broken")
		}
		f.kill()
		return 0
	case "delete":
		f.kill()
		_ = os.RemoveAll(f.dir)
		return 0
	}
	return fatal("unknown command %q", verb[0])
}

func (f fake) list() int {
	if f.is(knobNoList) {
		return fatal("no list today")
	}
	qemu, agent := f.pid("qemu"), f.pid("ha")
	status, errs := "Stopped", []string{}
	switch {
	case qemu > 0 && agent > 0:
		status = "Running"
		if f.is(knobSlowInfo) {
			status, errs = "Broken", []string{"no Info"}
		}
	case qemu > 0 || agent > 0:
		status, errs = "Broken", []string{"one runs and the other does not"}
	}
	b, _ := json.Marshal(map[string]any{"name": filepath.Base(f.dir), "status": status, "hostAgentPID": agent, "driverPID": qemu, "errors": errs})
	fmt.Println(string(b))
	return 0
}

func (f fake) create(config string) int {
	text, err := os.ReadFile(config)
	if err != nil {
		return fatal("%v", err)
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fatal("%v", err)
	}
	if f.is(knobCrash) {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "lima.yaml"), text, 0o600); err != nil {
		return fatal("%v", err)
	}
	return 0
}

// spawn starts a process of the machine, which outlives us.
func (f fake) spawn(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	file := filepath.Join(f.dir, name+".pid")
	cmd := exec.Command(self, "--pidfile", file)
	cmd.Env = []string{roleVar + "=process"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	all, err := os.OpenFile(filepath.Join(f.lab, "processes"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer all.Close()
	fmt.Fprintln(all, cmd.Process.Pid)
	return os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

func (f fake) kill() {
	for _, name := range []string{"qemu", "ha"} {
		if pid := f.pid(name); pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
			for alive(pid) {
				time.Sleep(5 * time.Millisecond)
			}
		}
		_ = os.Remove(filepath.Join(f.dir, name+".pid"))
	}
}

func (f fake) guest(path string) string { return filepath.Join(f.dir, "guest", path) }

// start boots: the script's own digest goes into the report, as the script would write it.
func (f fake) start() int {
	fmt.Fprintln(os.Stderr, `{"level":"info","msg":"Starting"}`)
	switch {
	case f.is(knobDigest):
		return fatal("download the image: expected digest %q, got %q", "sha256:aa", "sha256:bb")
	case f.is(knobSpace):
		return fatal("convert the disk: no space left on device")
	}
	text, err := os.ReadFile(filepath.Join(f.dir, "lima.yaml"))
	if err != nil {
		return fatal("%v", err)
	}
	_ = os.WriteFile(filepath.Join(f.dir, "disk"), nil, 0o600)
	for _, name := range []string{"qemu", "ha"} {
		if err := f.spawn(name); err != nil {
			return fatal("%v", err)
		}
	}
	_ = os.WriteFile(filepath.Join(f.dir, "ssh.config"), nil, 0o600)
	if f.is(knobHang) {
		time.Sleep(10 * time.Minute)
	}
	if err := f.boot(string(text)); err != nil {
		return fatal("%v", err)
	}
	return 0
}

func (f fake) boot(config string) error {
	_ = os.RemoveAll(f.guest("run"))
	for _, d := range []string{"run/foldyard", "etc/foldyard"} {
		if err := os.MkdirAll(f.guest(d), 0o700); err != nil {
			return err
		}
	}
	write := func(path, text string) error { return os.WriteFile(f.guest(path), []byte(text), 0o600) }
	if log, ok := f.knob(knobBoot); ok {
		return write(ruleset.BootLogPath, log)
	}
	if f.is(knobFull) {
		return write(ruleset.BootLogPath, "== journal\ncat: write error: No space left on device\nstopped at: journal (exit 1)\n")
	}
	digest := regexp.MustCompile(`echo 'digest ([0-9a-f]{64})'`).FindStringSubmatch(config)
	on := regexp.MustCompile(`echo 'firewall (on|off)'`).FindStringSubmatch(config)
	if digest == nil || on == nil {
		return fmt.Errorf("no boot script in the configuration")
	}
	const walled = "1000, 1000-4294967294, 524288-589823"
	if on[1] == "on" {
		_, table, _ := strings.Cut(config, "template.nft <<'FY_END'\n")
		table, _, _ = strings.Cut(table, "    FY_END\n")
		table = strings.Replace(regexp.MustCompile(`(?m)^    `).ReplaceAllString(table, ""), "@WALLED@", walled, 1)
		if f.is(knobTable) {
			table = strings.Replace(table, "goto refuse", "accept", 1)
		}
		if err := write(ruleset.TablePath, table); err != nil {
			return err
		}
	}
	b, _ := os.ReadFile(filepath.Join(f.lab, "boots"))
	boot := len(b) + 1
	if err := os.WriteFile(filepath.Join(f.lab, "boots"), append(b, 'x'), 0o600); err != nil {
		return err
	}
	return write(ruleset.ReportPath, fmt.Sprintf("foldyard boot report 1\ndigest %s\nfirewall %s\nwalled %s\nboot boot-%d\n", digest[1], on[1], walled, boot))
}

// fakeSSH runs a command on this computer, in a guest whose own files are below the instance's directory.
func fakeSSH(args []string) int {
	f := fake{lab: os.Getenv("FY_LIMA_LAB")}
	var words []string
	for i, a := range args {
		if a == "-F" {
			f.dir = filepath.Dir(args[i+1])
		}
		if a == "--" {
			words = args[i+1:]
			break
		}
	}
	if f.is(knobNoConn) || f.pid("qemu") == 0 {
		fmt.Fprintln(os.Stderr, "ssh: connect to host 127.0.0.1: Connection refused")
		return sshFailed
	}
	text := strings.Join(words, " ")
	for _, path := range []string{"/run/foldyard", "/etc/foldyard"} {
		text = strings.ReplaceAll(text, path, f.guest(path))
	}
	state := "active"
	if f.is(knobUnit) {
		state = "failed"
	}
	at := time.Now()
	if off, ok := f.knob(knobClock); ok {
		s, _ := strconv.Atoi(off)
		at = at.Add(time.Duration(s) * time.Second)
	}
	left, ok := f.knob(knobDisk)
	if !ok {
		left = "10000000"
	}
	text = strings.NewReplacer("systemctl is-active", "echo "+state+" #", "date -u +%s", fmt.Sprintf("echo %d", at.Unix()), "df -Pk /", "echo /dev/vda1 0 0 "+left+" 0 / #").Replace(text)
	cmd := exec.Command("/bin/sh", "-c", text)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return max(cmd.ProcessState.ExitCode(), 1)
	}
	return 0
}

// up brings the machine up, or says how that failed.
func (l *lab) up(spec machine.Spec) (machine.Report, []string, error) {
	var said []string
	r, err := l.d.Up(l.t.Context(), spec, func(line string) { said = append(said, line) })
	return r, said, err
}
