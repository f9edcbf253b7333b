package probe

// forkSyscall forks a child that makes one system call and exits with 0, or
// with the number of the error. The child never returns to Go: it has one
// thread and none of the runtime. The result is its number, or a negative
// error.
//
//go:noescape
func forkSyscall(trap, a1, a2, a3, a4, a5, a6 uintptr) (pid uintptr)

// forkInt80 forks a child that makes a 32-bit system call (getpid) and exits
// likewise. Where there is none it exits with ENOSYS.
//
//go:noescape
func forkInt80() (pid uintptr)
