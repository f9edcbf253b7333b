package namespace

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tries are attacks that the test's own binary attempts inside a box, each named, each with an outcome of "open" or "shut: why".
// The same ones run outside are the control: there they are open.
var tries = map[string]func() error{
	"unshare-user": func() error { return forked(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"clone-user":   func() error { return forked(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)) },
	"clone3": func() error {
		args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)}
		return forked(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	},
	"vsock":         func() error { return openSocket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
	"alg":           func() error { return openSocket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
	"packet":        func() error { return openSocket(unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"raw":           func() error { return openSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
	"netlink-audit": func() error { return openSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT) },
	"netlink-route": func() error { return openSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) },
	"io_uring": func() error {
		p := make([]byte, 256)
		return call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p[0])))
	},
	"mount":           func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") },
	"umount-proc-sys": func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) },
	"fsopen":          func() error { _, err := unix.Fsopen("tmpfs", 0); return err },
	"keyctl":          func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true); return err },
	"tiocsti": func() error {
		c := byte('x')
		return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
	},
	"tiocsetd": func() error {
		n := int32(0)
		return call(unix.SYS_IOCTL, 0, unix.TIOCSETD, uintptr(unsafe.Pointer(&n)))
	},
	"lease": func() error {
		f, err := os.OpenFile("leased", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		return err
	},
	"getfl":         func() error { _, err := unix.FcntlInt(0, unix.F_GETFL, 0); return err },
	"chmod-suid":    func() error { os.WriteFile("s", nil, 0o755); return unix.Chmod("s", 0o4755) },
	"fchmodat-sgid": func() error { os.WriteFile("s", nil, 0o755); return unix.Fchmodat(unix.AT_FDCWD, "s", 0o2755, 0) },
	"open-suid": func() error {
		fd, err := unix.Openat(unix.AT_FDCWD, "s2", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o4755)
		unix.Close(fd)
		return err
	},
	"tmpfile-suid": func() error {
		_, err := unix.Openat(unix.AT_FDCWD, ".", unix.O_TMPFILE|unix.O_WRONLY, 0o4755)
		return err
	},
	"mknod-suid":   func() error { return unix.Mknod("s3", unix.S_IFREG|0o4755, 0) },
	"chmod-plain":  func() error { os.WriteFile("p", nil, 0o755); return unix.Chmod("p", 0o700) },
	"core-pattern": func() error { return appendTo("/proc/sys/kernel/core_pattern") },
	"sysrq":        func() error { return appendTo("/proc/sysrq-trigger") },
	"write-usr":    func() error { return os.WriteFile("/usr/foldyard-was-here", nil, 0o644) },
	"write-etc":    func() error { return os.WriteFile("/etc/foldyard-was-here", nil, 0o644) },
	"write-root":   func() error { return os.WriteFile("/foldyard-was-here", nil, 0o644) },
	"write-tmp":    func() error { return os.WriteFile("/tmp/x", nil, 0o644) },
	"read-shadow":  func() error { _, err := os.ReadFile("/etc/shadow"); return err },
	"see-sys":      func() error { _, err := os.Stat("/sys/kernel"); return err },
	"pid1-exe":     func() error { _, err := os.OpenFile("/proc/1/exe", os.O_RDWR, 0); return err },
	"pid1-fd":      func() error { _, err := os.ReadDir("/proc/1/fd"); return err },
	"pid1-mem":     func() error { _, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0); return err },
	"pid1-trace":   func() error { return unix.PtraceAttach(1) },
	"pid1-kill": func() error {
		if err := unix.Kill(1, unix.SIGKILL); err != nil {
			return err
		}
		// The kernel has dropped the signal by now, or pid 1 has it, and all that is in the box ends with it.
		status, err := os.ReadFile("/proc/1/status")
		if err != nil || dying(string(status)) {
			return nil
		}
		return errors.New("pid 1 goes on")
	},
	"git-config":      func() error { return appendTo(".git/config") },
	"git-hook":        func() error { return os.WriteFile(".git/hooks/post-checkout", nil, 0o755) },
	"git-info":        func() error { return os.WriteFile(".git/info/attributes", nil, 0o644) },
	"hooks-path":      func() error { return os.WriteFile("tools/git-hooks/post-checkout", nil, 0o755) },
	"git-rename":      func() error { return os.Rename(".git", ".git2") },
	"hooks-rename":    func() error { return os.Rename(".git/hooks", ".git/hooks2") },
	"module-hook":     func() error { return os.WriteFile(".git/modules/a/b/hooks/x", nil, 0o755) },
	"module-move":     func() error { return os.Rename(".git/modules/a", ".git/modules/c") },
	"envrc":           func() error { return appendTo(".envrc") },
	"vscode":          func() error { return os.WriteFile(".vscode/tasks.json", nil, 0o644) },
	"hooks-path-move": func() error { return os.Rename("tools", "tools2") },
	"git-object":      func() error { return os.WriteFile(".git/objects/x", nil, 0o644) },
	"repo-socket":     func() error { return dialUnix("left.sock") },
	"repo-fifo": func() error {
		fd, err := unix.Open("left.fifo", unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		unix.Fstat(fd, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFIFO {
			return errors.New("covered")
		}
		return nil
	},
}

// dying tells from a /proc/PID/status whether SIGKILL is pending, or has ended the process.
func dying(status string) bool {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "State":
			if value[0] == 'Z' || value[0] == 'X' {
				return true
			}
		case "SigPnd", "ShdPnd":
			if set, err := strconv.ParseUint(value, 16, 64); err != nil || set&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}

// The control of pid1-kill: a process that is killed is seen to be.
func TestDyingIsSeen(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	look := func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return dying(string(status))
	}
	if look() {
		t.Error("it is said to be dying while it lives")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !look(); { // for a moment it is neither here nor there; then it stays until it is waited for
		if time.Now().After(end) {
			t.Fatal("it is not said to be dying once it was killed")
		}
	}
	_ = cmd.Wait() // it was killed
}

func dialUnix(p string) error {
	c, err := net.Dial("unix", p)
	if err == nil {
		c.Close()
	}
	return err
}

func appendTo(p string) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func openSocket(family, typ, proto int) error {
	fd, err := unix.Socket(family, typ, proto)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func call(nr uintptr, a ...uintptr) error {
	a = append(a, 0, 0, 0, 0, 0, 0)
	if _, _, e := syscall.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// forked tries a call that must not happen in this process, in a forked child, with the machinery under test.
func forked(nr uintptr, args ...uintptr) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	l := &list{}
	l.add("try", nr, args...)
	l.tell("that it is open", w.Fd())
	pid, err := l.start(0, w.Fd())
	w.Close()
	if err != nil {
		return err
	}
	b := make([]byte, 8)
	n, _ := r.Read(b)
	var ws unix.WaitStatus
	unix.Wait4(pid, &ws, 0, nil)
	switch {
	case n == 8:
		return l.failure(b)
	case n == 1 || n == 2: // what clone made says it too
		return nil
	}
	return fmt.Errorf("the child ended: %v", ws)
}

// try runs the named attacks and prints a line for each.
func try(names []string) int {
	for _, n := range names {
		if f := tries[n]; f == nil {
			fmt.Println(n, "unknown")
		} else if err := f(); err != nil {
			fmt.Println(n, "shut:", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println(n, "open")
		}
	}
	return 0
}

// dialAll dials each network and address, sends a byte and prints what came of it.
func dialAll(args []string) int {
	for i := 0; i+1 < len(args); i += 2 {
		start := time.Now()
		fmt.Print(args[i], " ", args[i+1], " ")
		c, err := net.DialTimeout(args[i], args[i+1], 10*time.Second)
		if err == nil {
			c.SetDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, 64)
			var n int
			if _, err = c.Write([]byte("q")); err == nil || args[i] == "tcp" {
				n, err = c.Read(b)
			}
			c.Close()
			if err == nil {
				fmt.Printf("%s\n", b[:n])
				continue
			}
		}
		speed := "fast"
		if time.Since(start) > 8*time.Second { // of the ten that a dial may take: the computer may be busy
			speed = "slowly"
		}
		fmt.Println("refused", speed, err)
	}
	return 0
}

// listenAt serves every connection one word.
func listenAt(addr string) int {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		c.Write([]byte("served"))
		c.Close()
	}
}
