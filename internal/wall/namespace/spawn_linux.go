package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process of ours enters the box between fork and exec, because only there is it single-threaded, as setns and unshare of a user
// namespace demand. The Go runtime cannot run in that place, so the child only walks a list of system calls that the parent prepared:
// the list, read top to bottom, is how a process becomes one of the box.
type step struct {
	what string
	nr   uintptr
	args [6]uintptr
	soft bool // may fail: what it asks for may not exist on this kernel
	full bool // must move one byte: the end of a pipe is a keeper that died
	keep bool // the result is the descriptor that later steps with useFD mean
}

// useFD, as an argument, stands for the result of the last step with keep.
const useFD = ^uintptr(0) - 4095

// errEnter tells which step failed.
type errEnter struct {
	step string
	err  unix.Errno
}

func (e *errEnter) Error() string { return e.step + ": " + e.err.Error() }
func (e *errEnter) Unwrap() error { return e.err }

// list builds steps, and keeps alive what their pointers mean.
type list struct {
	steps []step
	hold  []any
}

func (l *list) add(what string, nr uintptr, args ...uintptr) *step {
	s := step{what: what, nr: nr}
	copy(s.args[:], args)
	l.steps = append(l.steps, s)
	return &l.steps[len(l.steps)-1]
}

func (l *list) text(s string) uintptr {
	b := append([]byte(s), 0)
	l.hold = append(l.hold, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

func (l *list) texts(ss []string) uintptr {
	ps := make([]uintptr, len(ss)+1)
	for i, s := range ss {
		ps[i] = l.text(s)
	}
	l.hold = append(l.hold, ps)
	return uintptr(unsafe.Pointer(&ps[0]))
}

// write adds the steps that write s to a file.
func (l *list) write(path, s string) {
	l.add("open "+path, unix.SYS_OPENAT, atCWD, l.text(path), unix.O_WRONLY|unix.O_CLOEXEC).keep = true
	l.add("write "+path, unix.SYS_WRITE, useFD, l.text(s), uintptr(len(s)))
	l.add("close "+path, unix.SYS_CLOSE, useFD)
}

const atCWD = ^uintptr(99) // AT_FDCWD, -100

// tell adds a step that writes one byte to the parent.
func (l *list) tell(what string, to uintptr) {
	one := []byte{0}
	l.hold = append(l.hold, one)
	l.add("tell the other side "+what, unix.SYS_WRITE, to, uintptr(unsafe.Pointer(&one[0])), 1).full = true
}

// wait adds a step that tells the parent and one that waits for its answer. Both pipes must be open in the child.
func (l *list) wait(what string, tell, listen uintptr) {
	l.tell(what, tell)
	one := []byte{0}
	l.hold = append(l.hold, one)
	p := uintptr(unsafe.Pointer(&one[0]))
	l.add("wait for the other side "+what, unix.SYS_READ, listen, p, 1).full = true
}

// ownDescriptors moves the given descriptors to 0, 1, 2 … and closes everything else but the program's and the report pipe.
func (l *list) ownDescriptors(files []uintptr, program, report uintptr) {
	for i, f := range files {
		l.add("place descriptor "+strconv.Itoa(i), unix.SYS_DUP3, f, uintptr(i), 0)
	}
	a, b := min(program, report), max(program, report)
	l.add("close descriptors", unix.SYS_CLOSE_RANGE, uintptr(len(files)), a-1, 0)
	if b > a+1 {
		l.add("close descriptors", unix.SYS_CLOSE_RANGE, a+1, b-1, 0)
	}
	l.add("close descriptors", unix.SYS_CLOSE_RANGE, b+1, ^uintptr(0)>>32, 0)
}

// Capabilities that uid 0 of a box keeps in its own user namespace: what makes it root there, and none that opens the kernel or, like
// CAP_SYS_PTRACE, pid 1, which is of that namespace too.
var rootCapabilities = []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT}

type capHeader struct {
	version uint32
	pid     int32
}

type capData [2]struct{ effective, permitted, inheritable uint32 }

// powers adds the steps that take the capabilities away: all, or for root all but rootCapabilities, or none.
func (l *list) powers(p power) {
	l.add("clear ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL)
	if p == every {
		return
	}
	var keep capData
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if p == rootly && slices.Contains(rootCapabilities, c) {
			keep[c/32].effective |= 1 << (c % 32)
			keep[c/32].permitted |= 1 << (c % 32)
			continue
		}
		l.add("drop capability "+strconv.Itoa(int(c))+" for good", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c).soft = true
	}
	header := &capHeader{version: unix.LINUX_CAPABILITY_VERSION_3}
	l.hold = append(l.hold, header, &keep)
	l.add("drop capabilities", unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&keep)))
}

type power int

const (
	nothing power = iota // no capability, and no way back to one
	rootly               // rootCapabilities
	every                // all of the box's user namespace: for probes that try what root could
)

// limits of every process of the box: processes of its user, open files, no core dumps (they would land on the host).
var limits = []struct {
	name   uintptr
	soft   uint64
	hard   uint64
	called string
}{
	{unix.RLIMIT_NPROC, 8192, 8192, "processes"},
	{unix.RLIMIT_NOFILE, 65536, 65536, "open files"},
	{unix.RLIMIT_CORE, 0, 0, "core size"},
}

// confine adds the steps that every process of the box goes through last, in this order.
func (l *list) confine(p power, prog []unix.SockFilter) {
	for _, r := range limits {
		lim := &unix.Rlimit{Cur: r.soft, Max: r.hard}
		l.hold = append(l.hold, lim)
		l.add("limit "+r.called, unix.SYS_PRLIMIT64, 0, r.name, uintptr(unsafe.Pointer(lim)), 0).soft = true
	}
	l.powers(p)
	l.add("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
	fprog := &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	l.hold = append(l.hold, fprog)
	l.add("load the filter", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(fprog)))
	l.add("end with the keeper", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
}

// exec adds the last steps: default signals, none blocked, and the program.
func (l *list) exec(program uintptr, argv, env []string) {
	l.hold = append(l.hold, &sigset{})
	none := l.hold[len(l.hold)-1].(*sigset)
	l.add("unblock signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(none)), 0, 8)
	l.add("execute", unix.SYS_EXECVEAT, program, l.text(""), l.texts(argv), l.texts(env), unix.AT_EMPTY_PATH)
}

type sigset [1]uint64

// start forks with the given namespace flags and walks the steps in the child. The report pipe's write end must be open in the child
// at the number report: a failed step is told there. It returns once the child exists; see report.
func (l *list) start(flags uintptr, report uintptr) (int, error) {
	// Go's handlers must not run in the child: every signal is blocked before the fork, and set to its default after it.
	defaults := &list{}
	act := new([4]uint64) // struct sigaction of the kernel: SIG_DFL, no flags, no mask
	defaults.hold = append(defaults.hold, act)
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig != uintptr(unix.SIGKILL) && sig != uintptr(unix.SIGSTOP) {
			defaults.add("default signals", unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(act)), 0, 8).soft = true
		}
	}
	steps := append(defaults.steps, l.steps...)
	failure := new([2]uint32)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, old := &sigset{^uint64(0)}, &sigset{}
	if _, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(all)), uintptr(unsafe.Pointer(old)), 8, 0, 0); e != 0 {
		return 0, fmt.Errorf("block signals: %w", e)
	}
	pid, errno := forkWalk(flags|uintptr(unix.SIGCHLD), steps, report, failure)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(old)), 0, 8, 0, 0)
	runtime.KeepAlive(steps)
	runtime.KeepAlive(l.hold)
	runtime.KeepAlive(defaults.hold)
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", errno)
	}
	return int(pid), nil
}

// forkWalk forks without sharing memory. The child never returns: it walks the steps, of which the last one executes a program, and
// on the first failure writes its number and errno to report and exits. It may not allocate, grow its stack or call into the runtime.
//
//go:norace
//go:noinline
func forkWalk(flags uintptr, steps []step, report uintptr, failure *[2]uint32) (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	var fd, r uintptr
	var a [6]uintptr
	for i := range steps {
		s := &steps[i]
		a = s.args
		for k := range a {
			if a[k] == useFD {
				a[k] = fd
			}
		}
		r, _, errno = syscall.RawSyscall6(s.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 && s.full && r != 1 {
			errno = syscall.EPIPE
		}
		if errno != 0 && !s.soft {
			failure[0], failure[1] = uint32(i), uint32(errno)
			syscall.RawSyscall6(unix.SYS_WRITE, report, uintptr(unsafe.Pointer(failure)), 8, 0, 0, 0)
			break
		}
		if s.keep {
			fd = r
		}
	}
	for {
		syscall.RawSyscall6(unix.SYS_EXIT_GROUP, 127, 0, 0, 0, 0, 0)
	}
}

// defaultSteps is how many steps start puts in front of a list.
const defaultSteps = 62

// report reads what a child says of its way in: nothing, and the end, when it has become the program.
func (l *list) report(r *os.File) error {
	var b [8]byte
	n, err := r.Read(b[:])
	if n == 0 && err != nil {
		return nil
	}
	if n != len(b) {
		return errors.New("enter the box: a damaged report")
	}
	return l.failure(b[:])
}

// failure reads the report of a failed step.
func (l *list) failure(b []byte) error {
	i, errno := int(binary.NativeEndian.Uint32(b[:])), unix.Errno(binary.NativeEndian.Uint32(b[4:]))
	what := "default signals"
	if i -= defaultSteps; i >= 0 && i < len(l.steps) {
		what = l.steps[i].what
	}
	return &errEnter{what, errno}
}

// highFD duplicates f to a number above those that a child's own descriptors get, so that placing those cannot hit it.
func highFD(f *os.File) (uintptr, error) {
	n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		return 0, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return uintptr(n), nil
}

// numbers are descriptors duplicated for a child. Each is closed once: its number may be another's a moment later.
type numbers []uintptr

func highFDs(files ...*os.File) (numbers, error) {
	n := make(numbers, len(files))
	for i, f := range files {
		var err error
		if n[i], err = highFD(f); err != nil {
			n.closeAll()
			return nil, err
		}
	}
	return n, nil
}

func (n numbers) close(i int) {
	if n[i] != 0 {
		unix.Close(int(n[i]))
		n[i] = 0
	}
}

func (n numbers) closeAll() {
	for i := range n {
		n.close(i)
	}
}
