package namespace

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// The filter of the box: kernel doors that no untrusted program needs, and that other walls were got around through. It is loaded
// before the first program of the box is executed, with no-new-privs, and is inherited by everything after it.
//
// What is checked is the number of the call and the low 32 bits of its arguments: a filter cannot follow pointers, so calls that hide
// what matters behind one (clone3, openat2) answer ENOSYS, and libraries fall back.
//
// See seccomp(2) and Documentation/userspace-api/seccomp_filter.rst.

// Layout of struct seccomp_data (linux/seccomp.h), little endian.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16 // low half of argument n at dataArgs + 8n
)

const (
	retAllow = unix.SECCOMP_RET_ALLOW
	retKill  = unix.SECCOMP_RET_KILL_PROCESS
)

func refuse(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// check is one row of the filter: what happens when a call with this number has a matching argument.
type check struct {
	nr  uint32
	arg int // -1: always
	// With mask, the row matches when arg&mask != 0, and, with otherMask, only if otherArg&otherMask != 0 too.
	// Without mask it matches when arg is one of values; with not, when it is none of them; with family, only if argument 0 is that.
	mask      uint32
	otherArg  int
	otherMask uint32
	values    []uint32
	not       bool
	family    uint32
	answer    uint32
}

const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME

// makes is the family that [box] nested relaxes, and nothing else.
func makes() []check {
	rows := []check{
		{nr: unix.SYS_CLONE, arg: 0, mask: namespaceFlags, answer: refuse(unix.EPERM)},
		{nr: unix.SYS_CLONE3, arg: -1, answer: refuse(unix.ENOSYS)},
	}
	for _, nr := range []uint32{unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, sysOpenTreeAttr} {
		rows = append(rows, check{nr: nr, arg: -1, answer: refuse(unix.EPERM)})
	}
	return rows
}

// sysSetxattrat is setxattrat(2), Linux 6.13, the same number on every architecture.
const sysSetxattrat = 463

// sysOpenTreeAttr is open_tree_attr(2), Linux 6.15, the same number on every architecture.
const sysOpenTreeAttr = 467

func checks(nested bool) []check {
	var rows []check
	if !nested {
		rows = makes()
	}
	if nested {
		// In a user namespace of its own the box has CAP_SETFCAP, and through an id-map what it sets is set as the host's root: a file
		// with capabilities that whoever executes it on the host would have.
		for _, nr := range []uint32{unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, sysSetxattrat} {
			rows = append(rows, check{nr: nr, arg: -1, answer: refuse(unix.EOPNOTSUPP)})
		}
	}
	never := func(e unix.Errno, nrs ...uint32) {
		for _, nr := range nrs {
			rows = append(rows, check{nr: nr, arg: -1, answer: refuse(e)})
		}
	}
	never(unix.EPERM, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT,
		unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SYSLOG,
		unix.SYS_VHANGUP, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_FANOTIFY_INIT, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME)
	never(unix.ENOSYS, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_OPENAT2, sysFchmodat2)
	never(unix.EPERM, archNever...)

	// Sockets: unix, IPv4, IPv6, and route netlink. Everything else (vsock, packet, alg, other netlink) is not there.
	families := []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	for _, nr := range []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		rows = append(rows, check{nr: nr, arg: 0, values: families, not: true, answer: refuse(unix.EAFNOSUPPORT)})
	}
	rows = append(rows, check{nr: unix.SYS_SOCKET, arg: 2, values: []uint32{unix.NETLINK_ROUTE}, not: true, family: unix.AF_NETLINK, answer: refuse(unix.EPROTONOSUPPORT)})

	// Typing into a terminal: into the operator's, were it ever the box's own. And line disciplines, which are kernel modules.
	rows = append(rows, check{nr: unix.SYS_IOCTL, arg: 1, values: []uint32{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD}, answer: refuse(unix.EPERM)})

	// A lease on a file of the repo: whoever opens it on the host would wait for the box.
	rows = append(rows, check{nr: unix.SYS_FCNTL, arg: 1, values: []uint32{unix.F_SETLEASE}, answer: refuse(unix.EPERM)})

	// A setuid or setgid bit on a file that is the operator's, or through an id-map root's, on the host.
	const bits = unix.S_ISUID | unix.S_ISGID
	for _, nr := range slices.Sorted(maps.Keys(chmods)) {
		rows = append(rows, check{nr: nr, arg: chmods[nr], mask: bits, answer: refuse(unix.EPERM)})
	}
	for _, nr := range slices.Sorted(maps.Keys(opens)) {
		args := opens[nr]
		rows = append(rows, check{nr: nr, arg: args[1], mask: bits, otherArg: args[0], otherMask: unix.O_CREAT | (unix.O_TMPFILE &^ unix.O_DIRECTORY), answer: refuse(unix.EPERM)})
	}
	return rows
}

// sysFchmodat2 is fchmodat2(2), Linux 6.6: ENOSYS, so that libraries fall back to fchmodat.
const sysFchmodat2 = 452

// filter assembles the program for this architecture.
func filter(nested bool) []unix.SockFilter {
	var p program
	p.load(dataArch)
	p.unless(auditArch, retKill)
	p.load(dataNr)
	p.arch()
	rows := checks(nested)
	byNr := map[uint32][]check{}
	var order []uint32
	for _, c := range rows {
		if byNr[c.nr] == nil {
			order = append(order, c.nr)
		}
		byNr[c.nr] = append(byNr[c.nr], c)
	}
	// One block a call: skip it unless the number matches; in it, row after row; at its end allow.
	for _, nr := range order {
		var b program
		for _, c := range byNr[nr] {
			b.row(c)
		}
		b.ret(retAllow)
		p = append(p, jump(unix.BPF_JEQ, nr, 0, uint8(len(b))))
		p = append(p, b...)
	}
	p.ret(retAllow)
	return p
}

type program []unix.SockFilter

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(op uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func (p *program) load(offset uint32) {
	*p = append(*p, statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset))
}
func (p *program) loadArg(n int)      { p.load(dataArgs + 8*uint32(n)) }
func (p *program) ret(v uint32)       { *p = append(*p, statement(unix.BPF_RET|unix.BPF_K, v)) }
func (p *program) unless(k, v uint32) { *p = append(*p, jump(unix.BPF_JEQ, k, 1, 0)); p.ret(v) }

// row appends the instructions of one check; it falls through when the check does not match.
func (p *program) row(c check) {
	if c.arg < 0 {
		p.ret(c.answer)
		return
	}
	var b program
	b.loadArg(c.arg)
	switch {
	case c.mask != 0:
		b = append(b, jump(unix.BPF_JSET, c.mask, 0, 1))
		b.ret(c.answer)
	case c.not:
		for i, v := range c.values {
			b = append(b, jump(unix.BPF_JEQ, v, uint8(len(c.values)-i), 0))
		}
		b.ret(c.answer)
	default:
		for i, v := range c.values {
			last := i == len(c.values)-1
			no := uint8(0)
			if last {
				no = 1
			}
			b = append(b, jump(unix.BPF_JEQ, v, uint8(len(c.values)-1-i), no))
		}
		b.ret(c.answer)
	}
	if c.otherMask != 0 {
		p.loadArg(c.otherArg)
		*p = append(*p, jump(unix.BPF_JSET, c.otherMask, 0, uint8(len(b))))
	}
	if c.family != 0 {
		p.loadArg(0)
		*p = append(*p, jump(unix.BPF_JEQ, c.family, 0, uint8(len(b))))
	}
	*p = append(*p, b...)
}
