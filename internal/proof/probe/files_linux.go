package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (p *prober) scratch(dir string) string {
	return filepath.Join(dir, ".foldyard-probe-"+p.plan.Nonce)
}

// tryCreate adds the making of a file where none may be made.
func (p *prober) tryCreate(t *tally, dir string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		t.add(Absent, dir, "not there")
		return
	}
	path := p.scratch(dir)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		closeFD(fd)
		_ = unix.Unlink(path) // our own file, just made
		t.add(Reached, dir, "a file could be made")
		return
	}
	o, how := fromError(err)
	t.add(o, dir, how)
}

// tmpWritable is the control of rows about what cannot be written.
func (p *prober) tmpWritable() string {
	path := p.scratch("/tmp") + "-w"
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "/tmp cannot be written either: " + err.Error()
	}
	closeFD(fd)
	_ = unix.Unlink(path) // another row may have been faster
	return ""
}

func (p *prober) unwritable(paths ...string) Finding {
	var t tally
	for _, path := range paths {
		tryOpen(&t, path, unix.O_WRONLY)
	}
	f := t.finding("")
	f.Uncontrolled = p.tmpWritable()
	return f
}

func (p *prober) writeOutside(context.Context, string) Finding {
	var t tally
	for _, dir := range []string{
		"/", "/usr", "/usr/bin", "/usr/lib", "/usr/local/bin", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/etc/foldyard", "/etc/ssl/certs",
		"/boot", "/root", "/opt", "/srv", "/mnt", "/media",
	} {
		if !slices.Contains(p.plan.Opened, dir) {
			p.tryCreate(&t, dir)
		}
	}
	for _, file := range []string{
		"/etc/passwd", "/etc/resolv.conf", "/etc/hosts", "/etc/foldyard/ca.pem", "/etc/foldyard/bundle.pem", "/etc/foldyard/box",
		"/etc/ld.so.cache", "/etc/ssl/certs/ca-certificates.crt", "/usr/bin/env", "/bin/sh",
	} {
		tryOpen(&t, file, unix.O_WRONLY)
	}
	f := t.finding("")
	f.Uncontrolled = p.tmpWritable()
	return f
}

func protectedInRepo() []string {
	return []string{".git/config", ".git/config.worktree", ".git/hooks", ".git/info", ".envrc", ".vscode", ".idea", ".husky"}
}

func (p *prober) repoProtected(context.Context, string) Finding {
	var t tally
	for _, name := range protectedInRepo() {
		path := filepath.Join(p.plan.Repo, name)
		var st unix.Stat_t
		if p.plan.Repo == "" || unix.Lstat(path, &st) != nil || p.opened(name) {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			p.tryCreate(&t, path)
		case unix.S_IFREG:
			tryOpen(&t, path, unix.O_WRONLY)
		}
	}
	f := t.finding("the repo holds none")
	f.Uncontrolled = p.tmpWritable()
	return f
}

// opened reports whether config.toml opened a protected path of the repo.
func (p *prober) opened(name string) bool {
	for _, w := range p.plan.Writable {
		if w == name || w == filepath.Dir(name) {
			return true
		}
	}
	return false
}

func (p *prober) procSys(context.Context, string) Finding {
	return p.unwritable(
		"/proc/sys/kernel/sysrq", "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/vm/overcommit_memory",
		"/proc/sys/vm/drop_caches", "/proc/sys/fs/protected_symlinks", "/proc/sys/fs/suid_dumpable", "/proc/sys/fs/binfmt_misc/register",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/core/rmem_max", "/proc/sys/user/max_user_namespaces", "/proc/irq/default_smp_affinity",
	)
}

func (p *prober) corePattern(context.Context, string) Finding {
	return p.unwritable("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/core_uses_pid", "/proc/sys/kernel/core_pipe_limit")
}

func (p *prober) sysrq(context.Context, string) Finding { return p.unwritable("/proc/sysrq-trigger") }

func (p *prober) uevent(context.Context, string) Finding {
	return p.unwritable("/sys/kernel/uevent_helper", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/poweroff_cmd",
		"/sys/power/state", "/sys/fs/cgroup/release_agent")
}

func (p *prober) procMemory(context.Context, string) Finding {
	var t tally
	for _, path := range []string{"/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/kallsyms.gz", "/proc/timer_list", "/proc/sched_debug", "/dev/mem", "/dev/kmem", "/dev/kmsg"} {
		tryRead(&t, path)
	}
	f := t.finding("")
	f.Uncontrolled = p.tmpWritable()
	return f
}

func (p *prober) sysAbsent(context.Context, string) Finding {
	var t tally
	entries, err := os.ReadDir("/sys")
	switch {
	case err != nil:
		t.add(Absent, "/sys", "not there")
	case len(entries) == 0:
		t.add(Absent, "/sys", "empty")
	default:
		t.add(Reached, "/sys", fmt.Sprintf("has %d entries", len(entries)))
	}
	f := t.finding("")
	f.Uncontrolled = p.tmpWritable()
	return f
}

// deviceNodes looks for nodes in /dev beside the harmless ones, and tries some
// by name.
func (p *prober) deviceNodes(context.Context, string) Finding {
	var t tally
	harmless := map[uint64]bool{
		unix.Mkdev(1, 3): true, unix.Mkdev(1, 5): true, unix.Mkdev(1, 7): true, unix.Mkdev(1, 8): true, unix.Mkdev(1, 9): true,
		unix.Mkdev(5, 0): true, unix.Mkdev(5, 2): true,
	}
	p.nodes(&t, "/dev", harmless)
	for _, name := range []string{"net/tun", "fuse", "kvm", "vsock", "vhost-vsock", "loop-control", "mapper/control", "uinput", "mem"} {
		tryOpen(&t, "/dev/"+name, unix.O_RDWR)
	}
	f := t.finding("")
	f.Uncontrolled = p.tmpWritable()
	return f
}

func (p *prober) nodes(t *tally, dir string, harmless map[uint64]bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.add(Errored, dir, err.Error())
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if e.IsDir() || unix.Lstat(path, &st) != nil {
			continue // /dev/pts holds terminals of the box's own, /dev/shm files
		}
		kind := st.Mode & unix.S_IFMT
		if kind == unix.S_IFBLK || kind == unix.S_IFCHR && !harmless[uint64(st.Rdev)] {
			tryOpen(t, path, unix.O_RDONLY)
		}
	}
}

// setuidBits tries every call that can give a file such a bit. Through an
// id-map the file may be root's on the host.
func (p *prober) setuidBits(context.Context, string) Finding {
	var t tally
	path := p.scratch("/tmp") + "-s"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return Finding{Outcome: Errored, Detail: "make a file in /tmp: " + err.Error()}
	}
	defer closeFD(fd)
	defer unix.Unlink(path) //nolint:errcheck // our own file
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return Finding{Outcome: Errored, Detail: err.Error()}
	}
	raw := func(trap uintptr, args ...uintptr) error {
		var a [5]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(trap, a[0], a[1], a[2], a[3], a[4], 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	cwd := unix.AT_FDCWD
	at, namePtr := uintptr(cwd), uintptr(unsafe.Pointer(name))
	for _, bits := range []uint32{0o4000, 0o2000, 0o6000} {
		mode := bits | 0o700
		p.noBits(&t, path, "fchmod", func() error { return unix.Fchmod(fd, mode) })
		p.noBits(&t, path, "fchmodat", func() error { return raw(unix.SYS_FCHMODAT, at, namePtr, uintptr(mode)) })
		p.noBits(&t, path, "fchmodat2", func() error { return raw(452, at, namePtr, uintptr(mode), 0) })
		p.madeWithBits(&t, "openat", func(to string) error {
			return made(unix.Open(to, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, mode))
		})
		p.madeWithBits(&t, "openat2", func(to string) error {
			return made(unix.Openat2(unix.AT_FDCWD, to, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_CLOEXEC, Mode: uint64(mode)}))
		})
		p.madeWithBits(&t, "mknodat", func(to string) error { return unix.Mknod(to, unix.S_IFREG|mode, 0) })
	}
	runtime.KeepAlive(name)
	f := t.finding("")
	if err := unix.Fchmod(fd, 0o700); err != nil {
		f.Uncontrolled = "an ordinary mode cannot be set either: " + err.Error()
	}
	return f
}

func made(fd int, err error) error {
	if err == nil {
		closeFD(fd)
	}
	return err
}

// noBits runs a call on a file and looks whether the bit is there after it.
func (p *prober) noBits(t *tally, path, call string, try func() error) {
	err := try()
	var st unix.Stat_t
	if serr := unix.Lstat(path, &st); serr != nil {
		t.add(Errored, call, serr.Error())
		return
	}
	if st.Mode&0o6000 != 0 {
		t.add(Reached, call, fmt.Sprintf("mode %o", st.Mode&0o7777))
		return
	}
	if err == nil {
		t.add(Refused, call, "the bit was dropped")
		return
	}
	t.add(Refused, call, err.Error())
}

func (p *prober) madeWithBits(t *tally, call string, try func(path string) error) {
	path := p.scratch("/tmp") + "-" + call
	defer unix.Unlink(path) //nolint:errcheck // our own file, if it was made
	if err := try(path); err != nil {
		t.add(Refused, call, err.Error())
		return
	}
	p.noBits(t, path, call, func() error { return nil })
}
