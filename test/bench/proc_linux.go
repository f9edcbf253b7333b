package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf is the processor time that a process has used, its threads that have ended too, to the nanosecond (clock_getcpuclockid(3)).
func cpuOf(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("cpu time of %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// childrenCPU is the processor time of the children that a process has waited for, in ticks of 10 ms (proc_pid_stat(5)).
func childrenCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 15 {
		return 0, fmt.Errorf("cpu time of %d's children: %q", pid, b)
	}
	user, err := strconv.ParseInt(string(f[13]), 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(string(f[14]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// memory is a row of /proc/PID/status in KiB: VmRSS now, VmHWM at most so far.
func memory(pid int, row string) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, row+":"); ok {
			return strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
		}
	}
	return 0, fmt.Errorf("no %s of %d", row, pid)
}

// forgetPeak makes the present memory of a process its VmHWM (proc_pid_clear_refs(5)).
func forgetPeak(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/clear_refs", []byte("5"), 0)
}

// count is how many entries a directory of a process has: fd, task.
func count(pid int, dir string) (int, error) {
	es, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/" + dir)
	return len(es), err
}

// endWithUs has the command end when the thread that starts it does: main locks its own.
func endWithUs(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }

// adoptOrphans makes this process the parent of what its children leave behind, so that their processor time is counted.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// spent is the processor time of a child that ended and of all it waited for.
func spent(s *os.ProcessState) time.Duration { return s.UserTime() + s.SystemTime() }

// reapOrphans waits for what was adopted and has ended, and returns its processor time.
func reapOrphans() time.Duration {
	var sum time.Duration
	for {
		var ru syscall.Rusage
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, &ru)
		if err != nil || pid <= 0 {
			return sum
		}
		sum += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
}
