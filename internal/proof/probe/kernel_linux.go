package probe

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// door is a system call in a child of its own that must be refused.
type door struct {
	name string
	trap uintptr
	args [6]uintptr
}

// call runs one system call in a forked child, which has one thread and ends
// after it, and returns what it met.
func call(d door) (Outcome, string) {
	pid := forkSyscall(d.trap, d.args[0], d.args[1], d.args[2], d.args[3], d.args[4], d.args[5])
	return childMet(pid)
}

func childMet(pid uintptr) (Outcome, string) {
	if p := int(pid); p <= 0 {
		return Errored, fmt.Sprintf("fork: errno %d", -p)
	}
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(int(pid), &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Errored, "wait: " + err.Error()
		}
		break
	}
	switch {
	case ws.Signaled() && ws.Signal() == unix.SIGSYS:
		return Refused, "killed"
	case ws.Signaled():
		return Errored, "ended by " + ws.Signal().String()
	case ws.ExitStatus() == 0:
		return Reached, "it worked"
	}
	switch errno := unix.Errno(ws.ExitStatus()); errno {
	case unix.EPERM, unix.EACCES, unix.ENOSYS:
		return Refused, errno.Error()
	default:
		return Reached, "the kernel ran it: " + errno.Error()
	}
}

func (p *prober) doors(doors ...door) Finding {
	var t tally
	for _, d := range doors {
		o, how := call(d)
		t.add(o, d.name, how)
	}
	f := t.finding("")
	f.Uncontrolled = forkWorks()
	return f
}

// forkWorks is the control of rows that ask in a child.
func forkWorks() string {
	if o, how := call(door{name: "getpid", trap: unix.SYS_GETPID}); !(o == Reached && how == "it worked") && !strings.Contains(how, "ran it") {
		return "a harmless call in a child fails too: " + how
	}
	return ""
}

// Flags of clone and unshare.
const (
	newUser = unix.CLONE_NEWUSER
	sigchld = uintptr(unix.SIGCHLD)
)

func (p *prober) userns(context.Context, string) Finding {
	if p.plan.Nested {
		return Finding{Outcome: Skipped, Detail: "[box] nested = true allows them"}
	}
	var doors []door
	for name, flag := range map[string]uintptr{
		"user": newUser, "mount": unix.CLONE_NEWNS, "network": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID, "ipc": unix.CLONE_NEWIPC,
		"uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "user and network": newUser | unix.CLONE_NEWNET,
	} {
		doors = append(doors,
			door{"unshare " + name, unix.SYS_UNSHARE, [6]uintptr{flag}},
			door{"clone " + name, unix.SYS_CLONE, [6]uintptr{flag | sigchld}},
		)
	}
	doors = append(doors, door{"unshare time", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWTIME}}, door{"setns", unix.SYS_SETNS, [6]uintptr{^uintptr(0)}})
	return p.doors(doors...)
}

func (p *prober) clone3(context.Context, string) Finding {
	args := new([11]uint64)
	args[0], args[4] = newUser, uint64(sigchld)
	plain := new([11]uint64)
	plain[4] = uint64(sigchld)
	doors := []door{{"without flags", unix.SYS_CLONE3, [6]uintptr{uintptr(unsafe.Pointer(plain)), unsafe.Sizeof(*plain)}}}
	if !p.plan.Nested {
		doors = append(doors, door{"new user namespace", unix.SYS_CLONE3, [6]uintptr{uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args)}})
	}
	f := p.doors(doors...)
	runtime.KeepAlive(args)
	runtime.KeepAlive(plain)
	if p.plan.Nested && f.Outcome == Reached {
		return Finding{Outcome: Skipped, Detail: "[box] nested = true allows it"}
	}
	return f
}

const none = ^uintptr(0) // a descriptor, pointer or number that is nothing

func (p *prober) kernelDoors(context.Context, string) Finding {
	return p.doors(
		door{"bpf", unix.SYS_BPF, [6]uintptr{none}},
		door{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{1}},
		door{"io_uring_enter", unix.SYS_IO_URING_ENTER, [6]uintptr{none}},
		door{"io_uring_register", unix.SYS_IO_URING_REGISTER, [6]uintptr{none}},
		door{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{}},
		door{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{none}},
		door{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{none}},
		door{"add_key", unix.SYS_ADD_KEY, [6]uintptr{}},
		door{"request_key", unix.SYS_REQUEST_KEY, [6]uintptr{}},
		door{"keyctl", unix.SYS_KEYCTL, [6]uintptr{none}},
		door{"kexec_load", unix.SYS_KEXEC_LOAD, [6]uintptr{}},
		door{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [6]uintptr{none, none}},
		door{"init_module", unix.SYS_INIT_MODULE, [6]uintptr{}},
		door{"finit_module", unix.SYS_FINIT_MODULE, [6]uintptr{none}},
		door{"delete_module", unix.SYS_DELETE_MODULE, [6]uintptr{}},
		door{"swapon", unix.SYS_SWAPON, [6]uintptr{}},
		door{"acct", unix.SYS_ACCT, [6]uintptr{1}},
		door{"reboot", unix.SYS_REBOOT, [6]uintptr{}},
	)
}

func (p *prober) tiocsti(context.Context, string) Finding {
	return p.doors(
		door{"TIOCSTI", unix.SYS_IOCTL, [6]uintptr{none, unix.TIOCSTI}},
		door{"TIOCLINUX", unix.SYS_IOCTL, [6]uintptr{none, 0x541c}},
		// A 64-bit number that a filter of 64-bit comparisons takes for another.
		door{"TIOCSTI with high bits", unix.SYS_IOCTL, [6]uintptr{none, 1<<32 | unix.TIOCSTI}},
	)
}

func (p *prober) mountAPI(context.Context, string) Finding {
	if p.plan.Nested {
		return Finding{Outcome: Skipped, Detail: "[box] nested = true allows them"}
	}
	return p.doors(
		door{"open_tree", unix.SYS_OPEN_TREE, [6]uintptr{none}},
		door{"move_mount", unix.SYS_MOVE_MOUNT, [6]uintptr{none}},
		door{"fsopen", unix.SYS_FSOPEN, [6]uintptr{}},
		door{"fsconfig", unix.SYS_FSCONFIG, [6]uintptr{none}},
		door{"fsmount", unix.SYS_FSMOUNT, [6]uintptr{none}},
		door{"fspick", unix.SYS_FSPICK, [6]uintptr{none}},
		door{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uintptr{none}},
		door{"umount2", unix.SYS_UMOUNT2, [6]uintptr{}},
		door{"pivot_root", unix.SYS_PIVOT_ROOT, [6]uintptr{}},
	)
}

// remount tries to make /usr and others writable again, and to mount over
// them. Should it work, the mount is put back.
func (p *prober) remount(context.Context, string) Finding {
	var t tally
	for _, dir := range []string{"/", "/usr", "/etc/foldyard", "/proc/sys"} {
		name, err := unix.BytePtrFromString(dir)
		if err != nil {
			t.add(Errored, dir, err.Error())
			continue
		}
		at := uintptr(unsafe.Pointer(name))
		remount := door{"remount " + dir, unix.SYS_MOUNT, [6]uintptr{0, at, 0, unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV}}
		o, how := call(remount)
		if o == Reached && how == "it worked" {
			remount.args[3] |= unix.MS_RDONLY
			_, _ = call(remount)
		} else if o == Reached {
			o = Refused // no such mount, or not one of ours to change
		}
		t.add(o, remount.name, how)
		runtime.KeepAlive(name)
	}
	f := t.finding("")
	f.Uncontrolled = forkWorks()
	return f
}

func (p *prober) syscall32(context.Context, string) Finding {
	if runtime.GOARCH != "amd64" {
		return Finding{Outcome: Skipped, Detail: "this architecture makes no 32-bit call from a 64-bit program"}
	}
	var t tally
	o, how := childMet(forkInt80())
	if o == Errored && strings.HasPrefix(how, "ended by segmentation") {
		o, how = Absent, "the kernel has none"
	}
	t.add(o, "int 0x80", how)
	const x32 = 0x40000000
	o, how = call(door{"x32", x32 | 39, [6]uintptr{}})
	t.add(o, "x32 call", how)
	f := t.finding("")
	f.Uncontrolled = forkWorks()
	return f
}

// privileges asks the kernel what this process may become.
func (p *prober) privileges(context.Context, string) Finding {
	var t tally
	say := func(ok bool, what, how string) {
		o := Reached
		if ok {
			o = Absent
		}
		t.add(o, what, how)
	}
	nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	say(err == nil && nnp == 1, "no_new_privs", fmt.Sprint(nnp))
	mode, err2 := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	say(err2 == nil && mode == unix.SECCOMP_MODE_FILTER, "seccomp mode", fmt.Sprint(mode))
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		t.add(Errored, "core limit", err.Error())
	} else {
		say(core.Max == 0, "core limit", fmt.Sprint(core.Max))
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.add(Errored, "capabilities", err.Error())
	} else if !p.plan.AsRoot {
		sum := data[0].Effective | data[0].Permitted | data[0].Inheritable | data[1].Effective | data[1].Permitted | data[1].Inheritable
		say(sum == 0, "capabilities", fmt.Sprintf("%08x%08x", data[1].Permitted, data[0].Permitted))
	}
	f := t.finding("")
	if err != nil || err2 != nil {
		f.Uncontrolled = "prctl does not answer"
	}
	return f
}

// ptraceHost tries to trace and read the supervisor and the keeper. This
// process has the host's numbers for them, which no box has.
func (p *prober) ptraceHost(context.Context, string) Finding {
	const seize = 0x4206
	var t tally
	var local [8]byte
	iov := &unix.Iovec{Base: &local[0], Len: 8}
	pids := []int{os.Getppid()}
	for _, h := range p.plan.Processes {
		pids = append(pids, h.PID)
	}
	for _, pid := range pids {
		if pid <= 0 {
			continue // started by a process of another pid namespace
		}
		who := fmt.Sprintf("process %d", pid)
		o, how := call(door{"ptrace", unix.SYS_PTRACE, [6]uintptr{seize, uintptr(pid)}})
		t.add(unlessGone(o, how), who+" ptrace", how)
		at := uintptr(unsafe.Pointer(iov))
		o, how = call(door{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [6]uintptr{uintptr(pid), at, 1, at, 1}})
		t.add(unlessGone(o, how), who+" memory", how)
	}
	runtime.KeepAlive(iov)
	f := t.finding("no process to try")
	if o, how := call(door{"traceme", unix.SYS_PTRACE, [6]uintptr{}}); o != Reached {
		f.Uncontrolled = "a child cannot be traced either: " + how
	}
	return f
}

// unlessGone takes the answer that there is no such process for what it is.
func unlessGone(o Outcome, how string) Outcome {
	if strings.HasSuffix(how, unix.ESRCH.Error()) {
		return Absent
	}
	return o
}

// processesHost looks whether the box's /proc shows processes of the host. A
// box has processes of the same numbers, but not of the same start.
func (p *prober) processesHost(context.Context, string) Finding {
	var t tally
	for _, h := range p.plan.Processes {
		start, err := startTime(fmt.Sprintf("/proc/%d/stat", h.PID))
		if err == nil && start == h.Start {
			t.add(Reached, fmt.Sprintf("process %d", h.PID), "the box sees it")
		} else {
			t.add(Absent, fmt.Sprintf("process %d", h.PID), "not in the box's /proc")
		}
	}
	f := t.finding("no process to look for")
	if len(boxPIDs()) == 0 {
		f.Uncontrolled = "the box's /proc lists no process"
	}
	return f
}

// startTime reads when a process started from its stat file, in clock ticks
// since boot.
func startTime(path string) (uint64, error) {
	data, err := readSome(path, 4096)
	if err != nil {
		return 0, err
	}
	return ParseStart(string(data))
}
