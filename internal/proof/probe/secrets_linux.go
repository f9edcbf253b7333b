package probe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostFiles looks for the operator's files of a row: at their own path, and
// wherever the walk met the same file.
func (p *prober) hostFiles(_ context.Context, id string) Finding {
	var t tally
	p.sameFiles(&t, id)
	f := t.finding("the host has none")
	if _, err := os.ReadFile("/etc/foldyard/ca.pem"); err != nil {
		f.Uncontrolled = "the box's own files cannot be read either: " + err.Error()
	}
	if cut := p.walked().cut; cut != "" && f.Uncontrolled == "" && f.Outcome != Skipped {
		f.Uncontrolled = "the walk was cut off: " + cut
	}
	return f
}

// sameFiles adds the operator's files of a row that the box sees.
func (p *prober) sameFiles(t *tally, id string) {
	w := p.walked()
	for i, s := range p.plan.Secrets {
		if s.ID != id || s.Ino == 0 {
			continue
		}
		var st unix.Stat_t
		switch err := unix.Stat(s.Path, &st); {
		case err != nil:
			t.add(Absent, s.Path, "not there")
		case fileID{uint64(st.Dev), st.Ino} == fileID{s.Dev, s.Ino}:
			t.add(Reached, s.Path, "the box sees it")
		default:
			t.add(Absent, s.Path, "another file of the box's own")
		}
		for _, seen := range w.secrets[i] {
			t.add(Reached, s.Path, fmt.Sprintf("the box sees it as %q", seen))
		}
	}
}

// environment looks for the operator's variables in our own environment, and
// in that of every process whose environment the box may read.
func (p *prober) environment(context.Context, string) Finding {
	secret := map[string]bool{}
	for _, h := range p.plan.Environment {
		secret[h] = true
	}
	var t tally
	look := func(who string, vars []string) {
		for _, v := range vars {
			sum := sha256.Sum256([]byte(v))
			name, _, _ := strings.Cut(v, "=")
			if secret[hex.EncodeToString(sum[:])] {
				t.add(Reached, fmt.Sprintf("%.60q", name), "in the environment of "+who)
			}
		}
		t.add(Absent, who, "nothing of the operator's")
	}
	look("the probe, started as a command is", os.Environ())
	pids := boxPIDs()
	for _, pid := range pids {
		data, err := readSome(fmt.Sprintf("/proc/%d/environ", pid), 1<<20)
		if err == nil {
			look("a process of the box", strings.Split(string(data), "\x00"))
		}
	}
	f := t.finding("")
	if len(pids) == 0 {
		f.Uncontrolled = "the box's /proc lists no process"
	}
	return f
}

// boxPIDs lists the processes in the box's /proc.
func boxPIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && len(pids) < 4096 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// readSome reads at most n bytes of a regular file without following a link or
// waiting for a FIFO.
func readSome(path string, n int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	var out bytes.Buffer
	buf := make([]byte, 32<<10)
	for int64(out.Len()) < n {
		got, err := unix.Read(fd, buf)
		if got > 0 {
			out.Write(buf[:got])
		}
		if err != nil || got <= 0 {
			return out.Bytes(), err
		}
	}
	return out.Bytes(), nil
}

// openDescriptors looks at what this process was given: standard streams that
// are pipes or /dev/null, and what Go's runtime and we opened.
func (p *prober) openDescriptors() Finding {
	var t tally
	listed := 0
	for fd := range 4096 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		listed++
		what := fmt.Sprintf("descriptor %d", fd)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFIFO, 0: // a pipe, or an anonymous one such as epoll
			t.add(Clean, what, "a pipe or anonymous")
		case unix.S_IFCHR:
			if st.Rdev == unix.Mkdev(1, 3) {
				t.add(Clean, what, "/dev/null")
			} else {
				t.add(Reached, what, fmt.Sprintf("a device %d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))))
			}
		case unix.S_IFREG:
			if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil && seals&unix.F_SEAL_WRITE != 0 {
				t.add(Clean, what, "a sealed file")
			} else {
				t.add(Reached, what, "a file that is not sealed")
			}
		case unix.S_IFSOCK:
			if fd <= 2 {
				t.add(Clean, what, "a socket pair")
			} else {
				t.add(Reached, what, "a socket")
			}
		default:
			t.add(Reached, what, "a directory or device")
		}
	}
	f := t.finding("")
	if f.Outcome == Clean {
		f.Outcome = Absent
	}
	if listed == 0 {
		f.Uncontrolled = "no descriptor at all"
	}
	return f
}

// launcherExe looks for a process whose executable is a file of the host that
// the box could overwrite, and tries to get at process 1.
func (p *prober) launcherExe(context.Context, string) Finding {
	var t tally
	pids := boxPIDs()
	for _, pid := range pids {
		exe := fmt.Sprintf("/proc/%d/exe", pid)
		var st unix.Stat_t
		if unix.Stat(exe, &st) != nil {
			continue
		}
		if l := p.plan.Launcher; l.Ino != 0 && (fileID{uint64(st.Dev), st.Ino}) == (fileID{l.Dev, l.Ino}) && unix.Access(exe, unix.W_OK) == nil {
			t.add(Reached, fmt.Sprintf("process %d", pid), "runs the launcher's own file")
		}
	}
	tryOpen(&t, "/proc/1/exe", unix.O_WRONLY)
	tryOpen(&t, "/proc/1/exe", unix.O_RDWR)
	if !p.plan.AsRoot {
		for _, name := range []string{"/proc/1/exe", "/proc/1/mem", "/proc/1/environ", "/proc/1/maps"} {
			tryRead(&t, name)
		}
		tryDescriptors(&t, "/proc/1/fd", os.Geteuid() == 0)
	}
	for _, path := range p.walked().fy {
		t.add(Noted, fmt.Sprintf("%q", path), "the fy you started lies where the box can change it: move it out of the repo")
	}
	f := t.finding("")
	if len(pids) == 0 {
		f.Uncontrolled = "the box's /proc lists no process"
	}
	return f
}

// tryDescriptors adds the descriptors of a process, none of which may be got
// at. Their numbers are shown to owner, the user to whom the kernel gives a
// process that keeps all else to itself: uid 0 of its user namespace.
func tryDescriptors(t *tally, dir string, owner bool) {
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil:
		t.add(Absent, dir, "not readable")
	case !owner:
		t.add(Reached, dir, fmt.Sprintf("lists %d descriptors", len(entries)))
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		tryOpen(t, name, unix.O_RDONLY)
		if to, err := os.Readlink(name); err == nil {
			t.add(Reached, name, "leads to "+to)
		}
	}
}

// tryOpen adds an open that must not succeed.
func tryOpen(t *tally, path string, flags int) {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		closeFD(fd)
		t.add(Reached, path, "opened")
		return
	}
	o, how := fromError(err)
	t.add(o, path, how)
}

// tryRead adds a file of which not one byte may be read.
func tryRead(t *tally, path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		o, how := fromError(err)
		t.add(o, path, how)
		return
	}
	defer closeFD(fd)
	n, err := unix.Read(fd, make([]byte, 16))
	switch {
	case err != nil:
		t.add(Refused, path, err.Error())
	case n == 0:
		t.add(Refused, path, "empty")
	default:
		t.add(Reached, path, "readable")
	}
}

// repoSecrets looks for credentials that lie in the repo itself. It tells
// where, never what.
func (p *prober) repoSecrets(ctx context.Context, _ string) Finding {
	if p.plan.Repo == "" {
		return Finding{Outcome: Skipped, Detail: "no repo is mounted"}
	}
	found := scanRepo(ctx, p.plan.Repo)
	if len(found) == 0 {
		return Finding{Outcome: Clean, Detail: "none found in the usual places"}
	}
	shown := make([]string, 0, len(found))
	for _, s := range found[:min(len(found), 12)] {
		rel, err := filepath.Rel(p.plan.Repo, s.path)
		if err != nil {
			rel = s.path
		}
		shown = append(shown, fmt.Sprintf("%q: %s", rel, s.what))
	}
	if len(found) > len(shown) {
		shown = append(shown, fmt.Sprintf("and %d more", len(found)-len(shown)))
	}
	return Finding{Outcome: Noted, Detail: "the box can read and send them: " + strings.Join(shown, "; ")}
}
