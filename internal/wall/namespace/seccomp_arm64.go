//go:build linux

package namespace

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var archNever = []uint32{unix.SYS_NFSSERVCTL}

// chmods maps calls that set a mode to the argument that holds it.
var chmods = map[uint32]int{unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_MKNODAT: 2, unix.SYS_MKDIRAT: 2}

// opens maps calls that may make a file to their arguments for flags and mode.
var opens = map[uint32][2]int{unix.SYS_OPENAT: {2, 3}}

func (p *program) arch() {}
