package lima

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reapTimeout bounds the end of a process that was killed.
const reapTimeout = 10 * time.Second

// RemoveAll deletes every machine of foldyard's below LIMA_HOME, with what runs from it. It works without a limactl too.
func RemoveAll(ctx context.Context, opt Options) error {
	configs, _ := filepath.Glob(filepath.Join(opt.Home, "*", "lima.yaml")) // the pattern is ours
	var errs []error
	for _, path := range configs {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(b, []byte(marker)) {
			continue
		}
		opt.Instance = filepath.Base(filepath.Dir(path))
		d := newDriver(opt)
		d.limactl, _ = lookPath("limactl", opt.Getenv("PATH")) // "" leaves it to us
		errs = append(errs, d.Remove(ctx))
	}
	return errors.Join(errs...)
}

// reap kills what still runs from the instance's directory, whatever limactl knows of it. It goes by the files in which limactl wrote
// process ids, and believes one only when that process's command line names the instance's directory: ids are used again.
func (d *Driver) reap(ctx context.Context) error {
	files, _ := filepath.Glob(filepath.Join(d.dir(), "*.pid")) // the pattern is ours
	var errs []error
	for _, file := range files {
		b, err := os.ReadFile(file)
		pid, perr := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil || perr != nil || pid <= 1 || pid == os.Getpid() || !d.ours(ctx, pid) {
			continue
		}
		errs = append(errs, d.end(ctx, pid))
	}
	return errors.Join(errs...)
}

// ours reports whether a process names the instance's directory.
func (d *Driver) ours(ctx context.Context, pid int) bool {
	ps := exec.CommandContext(ctx, "ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid))
	ps.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin:" + d.opt.Getenv("PATH")}
	out, err := ps.Output()
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(d.dir()) // which is what limactl uses
	return strings.Contains(string(out), d.dir()+"/") || err == nil && strings.Contains(string(out), real+"/")
}

// end kills a process and waits until it is gone.
func (d *Driver) end(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for d.ours(ctx, pid) { // a process that ended has no command line, even where nobody waits for it
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return ctx.Err()
}
