//go:build linux

package namespace

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// archNever are calls that only this architecture has.
var archNever = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_MODIFY_LDT, unix.SYS_NFSSERVCTL}

// chmods maps calls that set a mode to the argument that holds it.
var chmods = map[uint32]int{
	unix.SYS_CHMOD: 1, unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2,
	unix.SYS_MKNOD: 1, unix.SYS_MKNODAT: 2, unix.SYS_CREAT: 1, unix.SYS_MKDIR: 1, unix.SYS_MKDIRAT: 2,
}

// opens maps calls that may make a file to their arguments for flags and mode.
var opens = map[uint32][2]int{unix.SYS_OPEN: {1, 2}, unix.SYS_OPENAT: {2, 3}}

// arch kills the x32 ABI: its numbers carry a bit, and would pass every check below.
func (p *program) arch() {
	const x32 = 0x40000000
	*p = append(*p, jump(unix.BPF_JGE, x32, 0, 1))
	p.ret(retKill)
}
