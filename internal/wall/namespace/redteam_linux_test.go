package namespace

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attacks of docs/red-team.md that had no test of their own.
func init() {
	pidfd := func(then func(fd uintptr) error) func() error {
		return func() error {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return then(uintptr(fd))
		}
	}
	for name, f := range map[string]func() error{
		"getfd-pid1": pidfd(func(fd uintptr) error { return call(unix.SYS_PIDFD_GETFD, fd, 3, 0) }),
		"setns-pid1": pidfd(func(fd uintptr) error { return call(unix.SYS_SETNS, fd, unix.CLONE_NEWNET, 0) }),
		"stop-pid1": pidfd(func(fd uintptr) error {
			if err := call(unix.SYS_PIDFD_SEND_SIGNAL, fd, uintptr(unix.SIGSTOP), 0); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
			if b, err := os.ReadFile("/proc/1/stat"); err != nil || statusOf(b) != 'T' {
				return errors.New("pid 1 goes on")
			}
			return nil
		}),
		"kcmp-pid1": func() error {
			_, _, e := unix.Syscall6(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 3, 3, 0)
			return errnoOf(e)
		},
		"readv-pid1": func() error {
			b := make([]byte, 8)
			_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &b[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
			return err
		},
		"tiocsti-wide": func() error { // the filter sees 32 bits of the request, and so does the kernel
			c := byte('x')
			return call(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
		},
		"open-suid-wide": func() error { // likewise of the mode
			p, _ := unix.BytePtrFromString("wide")
			_, _, e := unix.Syscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(p)), unix.O_CREAT|unix.O_WRONLY, 1<<32|0o4755, 0, 0)
			return errnoOf(e)
		},
		"clone-wide": func() error { return forked(unix.SYS_CLONE, 1<<33|unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)) },
		"openat2":    func() error { _, err := unix.Openat2(unix.AT_FDCWD, ".", &unix.OpenHow{}); return err },
		"file-capability": func() error {
			if err := os.WriteFile("cap", nil, 0o755); err != nil {
				return nil // the control of the test: it would look open
			}
			v2 := []byte{0, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			return unix.Setxattr("cap", "security.capability", v2, 0)
		},
		"device":      func() error { return unix.Mknod("null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
		"ping":        func() error { return openSocket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP) },
		"transparent": func() error { return option(unix.SOL_IP, unix.IP_TRANSPARENT, 1) },
		"mark":        func() error { return option(unix.SOL_SOCKET, unix.SO_MARK, 1) },
		"steal-redirect": func() error {
			return bound(&unix.SockaddrInet4{Port: PortRedirect, Addr: [4]byte{127, 0, 0, 1}})
		},
		"steal-proxy":    func() error { return bound(&unix.SockaddrInet4{Port: PortProxy}) },
		"bind-elsewhere": func() error { return bound(&unix.SockaddrInet4{Port: PortProxy, Addr: [4]byte{127, 0, 0, 9}}) },
	} {
		tries[name] = f
	}
}

func errnoOf(e syscall.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// statusOf is the state in the text of /proc/PID/stat.
func statusOf(b []byte) byte {
	for i := len(b) - 3; i >= 0; i-- {
		if b[i] == ')' {
			return b[i+2]
		}
	}
	return 0
}

func option(level, name, value int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, level, name, value)
}

// bound listens beside whoever is there, with every option that shares a port.
func bound(at unix.Sockaddr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, o := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, at); err != nil {
		return err
	}
	return unix.Listen(fd, 1)
}

func TestWhatTheRedTeamTriedStaysShut(t *testing.T) {
	doors := []string{"getfd-pid1", "setns-pid1", "stop-pid1", "kcmp-pid1", "readv-pid1", "tiocsti-wide", "open-suid-wide", "clone-wide", "openat2",
		"file-capability", "device", "ping", "transparent", "mark", "steal-redirect", "steal-proxy"}
	for _, root := range []bool{false, true} {
		c, spec := testBox(t, func(s *Spec) { withHelper(t, s); s.Root = root })
		got := attempt(t, c, spec, append(doors, "bind-elsewhere", "write-tmp")...)
		wantShut(t, got, doors...)
		wantOpen(t, got, "bind-elsewhere", "write-tmp")
	}
}

func TestGitIsNotGivenAnotherConfiguration(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) {
		if err := os.MkdirAll(filepath.Join(s.Repo, ".git"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.Repo, ".git/config"), []byte("[extensions]\n\tworktreeConfig = true\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	out, _ := in(t, c, spec, "for f in commondir config.worktree; do (echo ../evil > .git/$f) 2>/dev/null && echo wrote $f; done; touch .git/control && echo control")
	if out != "control\n" {
		t.Errorf("the box could write %q, want only the control", out)
	}
}

// A box that root runs, with nested, writes file capabilities through the id-map as the host's root would: whoever executes the file
// on the host has them.
func TestNestedBoxOfRootMakesNoFileCapability(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/setcap"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and setcap")
	}
	c, spec := testBox(t, func(s *Spec) { s.Nested = true })
	out, _ := in(t, c, spec, "cp /bin/true f && unshare -Ur /usr/sbin/setcap cap_setuid+ep f 2>&1; echo tried")
	if _, err := unix.Getxattr(filepath.Join(spec.Repo, "f"), "security.capability", make([]byte, 64)); err == nil {
		t.Errorf("a file on the host has capabilities: %s", out)
	}
}
