package namespace

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"foldyard/internal/box"
)

// systemDirs are what a box sees of the host's programs, read-only.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// etcNames are what a box sees of the host's /etc. Names, not a copy of the directory: what is not here may hold a secret.
var etcNames = []string{
	"alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "environment.d", "ethertypes",
	"fonts", "gai.conf", "inputrc", "issue", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "magic.mime", "maven", "mime.types", "networks", "os-release", "perl", "pki", "profile", "profile.d",
	"protocols", "python", "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "redhat-release", "rpc", "services", "shells", "skel", "ssl", "terminfo", "timezone", "vim",
	"xdg",
}

// devices are bound from the host: a user namespace cannot make them.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// procReadOnly and procHidden are what a box may read but not write, and not read at all, of its own /proc.
var (
	procReadOnly = []string{"sys", "bus", "fs", "irq", "sysrq-trigger", "acpi", "asound", "scsi", "driver", "mtrr", "latency_stats"}
	procHidden   = []string{"kcore", "keys", "key-users", "timer_list", "kallsyms", "kmsg", "slabinfo", "vmallocinfo", "kpagecount", "kpageflags", "kpagecgroup"}
)

// sources are trees of the host that a box will see, all opened before the first of them can hide another.
type sources struct {
	trees map[string]int    // target in the box → cloned tree
	links map[string]string // target in the box → symbolic link
	attrs map[string]uint64
}

func newSources() *sources {
	return &sources{trees: map[string]int{}, links: map[string]string{}, attrs: map[string]uint64{}}
}

func (s *sources) close() {
	for _, fd := range s.trees {
		unix.Close(fd)
	}
}

// add clones a tree of the host, or takes the one that was handed over.
func (s *sources) add(source, target string, attr uint64, handed map[string]*os.File) error {
	if f := handed[source]; f != nil {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fmt.Errorf("take %s: %w", source, err)
		}
		s.trees[target], s.attrs[target] = fd, attr
		return nil
	}
	at, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return &os.PathError{Op: "open", Path: source, Err: err}
	}
	defer unix.Close(at)
	fd, err := cloneTree(at, "")
	if err != nil {
		return fmt.Errorf("clone %s: %w", source, err)
	}
	s.trees[target], s.attrs[target] = fd, attr
	return nil
}

// system adds a path of the host's system, if it exists. A link stays a link; a link out of what the box sees is then a dead one.
func (s *sources) system(p string) error {
	if to, err := os.Readlink(p); err == nil {
		if strings.HasPrefix(p, "/etc/") {
			// What /etc names by a link (localtime, os-release) is a public file: the box gets the file.
			real, err := filepath.EvalSymlinks(p)
			if err != nil {
				return nil
			}
			if under(real, "/usr") {
				s.links[p] = to
				return nil
			}
			if !under(real, "/etc") {
				return nil
			}
			return s.add(real, p, readOnly, nil)
		}
		s.links[p] = to
		return nil
	}
	if _, err := os.Lstat(p); err != nil {
		return nil
	}
	return s.add(p, p, readOnly, nil)
}

// systemSources are what every box sees of the host.
func systemSources() (_ *sources, err error) {
	s := newSources()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, p := range systemDirs {
		if err := s.system(p); err != nil {
			return nil, err
		}
	}
	for _, n := range etcNames {
		if err := s.system("/etc/" + n); err != nil {
			return nil, err
		}
	}
	for _, n := range devices {
		if err := s.add("/dev/"+n, "/dev/"+n, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// ownSources are what this box sees beside them.
func ownSources(spec *Spec, handed map[string]*os.File) (_ *sources, err error) {
	s := newSources()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	attr := uint64(plain)
	if spec.RepoReadOnly {
		attr = readOnly
	}
	if err := s.add(spec.Repo, spec.Repo, attr, handed); err != nil {
		return nil, err
	}
	if spec.Home != "" {
		if err := s.add(spec.Home, spec.User.Home, plain, handed); err != nil {
			return nil, err
		}
	}
	for _, b := range slices.Concat(spec.Caches, spec.Mounts) {
		attr := uint64(readOnly)
		if b.Write {
			attr = plain
		}
		if err := s.add(b.Source, b.Target, attr, handed); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// built is what the construction of the root left to know.
type built struct {
	covered     []string // sockets and FIFOs of the repo
	unprotected []string // entries that a link kept from being made read-only
	markers     []marker
}

// uncover prepares release. It may take a while, and may go on while the box runs.
func (b *built) uncover() {
	for i := range b.markers {
		b.markers[i].uncover()
	}
}

// release takes back what was put into the repo, when nothing of the box runs any more.
func (b *built) release() {
	for i := range b.markers {
		b.markers[i].release()
	}
}

// newRoot is a root that is not entered yet. It hides the host's from nobody: a path that begins with "/" begins below it.
type newRoot struct {
	tree  tree
	built *built // nil until the root is complete
}

// enter moves the calling process into the root. The host's root stays mounted, above it at "." and out of reach of "/": the kernel
// lets a user namespace mount a /proc only where it sees a whole one. finishRoot takes it away.
func (r *newRoot) enter() error {
	defer unix.Close(r.tree.fd)
	if err := unix.Fchdir(r.tree.fd); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return nil
}

// startRoot makes a root in the calling process's mount namespace, with what it has in every box.
func startRoot() (_ *newRoot, err error) {
	s, err := systemSources()
	if err != nil {
		return nil, err
	}
	defer s.close()
	fd, err := newFilesystem("tmpfs", "mode=0755,size=64m,source=foldyard", plain)
	if err != nil {
		return nil, err
	}
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /: %w", err)
	}
	defer unix.Close(at)
	root, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate: %w", err)
	}
	r := &newRoot{tree: tree{fd: root}}
	if err := attach(fd, at); err != nil {
		err = fmt.Errorf("mount the root: %w", err)
	} else {
		err = r.tree.common(s)
	}
	if err != nil {
		unix.Close(root)
		return nil, err
	}
	return r, nil
}

// complete adds what is this box's own. Until then the host's mounts follow the host's: nothing is missing that it has mounted meanwhile.
func (r *newRoot) complete(spec *Spec, handed map[string]*os.File) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	s, err := ownSources(spec, handed)
	if err != nil {
		return err
	}
	defer s.close()
	r.built, err = r.tree.own(spec, s)
	return err
}

func (t *tree) common(s *sources) error {
	for target, to := range s.links {
		if err := t.link(to, target); err != nil {
			return err
		}
	}
	for _, m := range []struct{ at, options string }{{"/tmp", "mode=1777"}, {"/var/tmp", "mode=1777"}, {"/run", "mode=0755"}, {"/dev", "mode=0755,size=1m"}} {
		if err := t.memory(m.at, m.options, plain); err != nil {
			return err
		}
	}
	if err := t.memory("/dev/shm", "mode=1777", plain|unix.MOUNT_ATTR_NOEXEC); err != nil {
		return err
	}
	if err := t.filesystem("devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
		return err
	}
	for p, to := range map[string]string{"/dev/ptmx": "pts/ptmx", "/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2", "/etc/mtab": "/proc/self/mounts"} {
		if err := t.link(to, p); err != nil {
			return err
		}
	}
	if d, err := t.dir("/proc"); err != nil {
		return err
	} else {
		unix.Close(d)
	}
	if err := t.mountAll(s); err != nil {
		return err
	}
	return t.hideAllPrivate()
}

func (t *tree) own(spec *Spec, s *sources) (*built, error) {
	for p, content := range spec.Files {
		if err := t.write(p, content); err != nil {
			return nil, err
		}
	}
	if spec.Home == "" {
		if err := t.memory(spec.User.Home, "mode=0700", plain); err != nil {
			return nil, err
		}
	}
	inEtc := false
	for p := range s.trees {
		inEtc = inEtc || under(p, "/etc")
	}
	if err := t.mountAll(s); err != nil {
		return nil, err
	}
	if inEtc {
		if err := t.hideAllPrivate(); err != nil {
			return nil, err
		}
	}
	if err := t.trust(spec); err != nil {
		return nil, err
	}
	return t.guardRepo(spec)
}

// mountAll mounts the trees of s, shorter targets first: the home before the repo in it.
func (t *tree) mountAll(s *sources) error {
	targets := slices.SortedFunc(maps.Keys(s.trees), func(a, b string) int {
		if c := strings.Count(a, "/") - strings.Count(b, "/"); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	for _, p := range targets {
		fd := s.trees[p]
		delete(s.trees, p)
		if err := t.mount(fd, p, s.attrs[p]); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) hideAllPrivate() error {
	for _, p := range []string{"etc/ssl", "etc/pki"} {
		if err := t.hidePrivate(p, 0); err != nil {
			return err
		}
	}
	return nil
}

// hidePrivate covers what is not for everybody below a directory of the host's /etc: a box keeps the groups of the operator, and one of
// them may read a key there.
func (t *tree) hidePrivate(p string, depth int) error {
	fd, err := openBelow(t.fd, p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look through /%s: %w", p, err)
	}
	d := os.NewFile(uintptr(fd), p)
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return fmt.Errorf("look through /%s: %w", p, err)
	}
	for _, e := range entries {
		if !e.IsDir() && !e.Type().IsRegular() {
			continue
		}
		name := path.Join(p, e.Name())
		var st unix.Stat_t
		if err := unix.Fstatat(t.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("look at /%s: %w", name, err)
		}
		switch {
		case st.Mode&0o004 == 0:
			if err := t.hide(name, e.IsDir()); err != nil {
				return fmt.Errorf("hide /%s: %w", name, err)
			}
		case e.IsDir() && depth < 8:
			if err := t.hidePrivate(name, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// hide covers a directory with an empty one, a file with nothing.
func (t *tree) hide(name string, dir bool) error {
	target, err := openBelow(t.fd, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if !dir {
		return layNull(t.fd, target)
	}
	empty, err := newFilesystem("tmpfs", "mode=0555,size=4k", readOnly|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	return attach(empty, target)
}

// trust lays the box's bundle over the system's own stores, for clients that a configuration in /usr or their habit sends there.
func (t *tree) trust(spec *Spec) error {
	if spec.Files[box.BundlePath] == nil {
		return nil
	}
	for _, p := range box.SystemStores() {
		target, err := openBelow(t.fd, p[1:], unix.O_PATH|unix.O_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // a link leads to another of them
		}
		if err == nil {
			err = t.cover(box.BundlePath, target)
			unix.Close(target)
		}
		if err != nil {
			return fmt.Errorf("cover %s: %w", p, err)
		}
	}
	return nil
}

// cover mounts a file of the tree, read-only, over target.
func (t *tree) cover(p string, target int) error {
	var st unix.Stat_t
	if err := unix.Fstat(target, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	return lay(t.fd, p[1:], target, readOnly)
}

// guardRepo makes read-only what the host's tools would execute, and covers sockets and FIFOs that would reach somebody outside.
func (t *tree) guardRepo(spec *Spec) (*built, error) {
	repo, err := t.dir(spec.Repo)
	if err != nil {
		return nil, err
	}
	defer unix.Close(repo)
	b := &built{}
	if !spec.RepoReadOnly {
		g := &guard{repo: repo, at: spec.Repo, pinned: map[string]bool{}}
		g.protect(spec.Writable)
		b.markers = g.markers
		if g.err != nil {
			b.release()
			return nil, g.err
		}
		b.unprotected = g.links
	}
	for _, rel := range spec.Sockets {
		target, err := openBelow(repo, rel, unix.O_PATH|unix.O_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cover %s: %w", rel, err)
		}
		err = layNull(t.fd, target)
		unix.Close(target)
		if err != nil {
			return nil, fmt.Errorf("cover %s: %w", rel, err)
		}
		b.covered = append(b.covered, rel)
	}
	return b, nil
}

// finishRoot leaves the host's root, masks the /proc that the box's first process has mounted meanwhile, and closes the root for writing.
func finishRoot() error {
	left := make(chan error, 1)
	go func() { left <- unix.Unmount(".", unix.MNT_DETACH) }()
	err := closeRoot()
	return errors.Join(err, awaitLeft(left))
}

// awaitLeft waits until nothing is mounted over the root any more. A mount is out of the tree long before umount2 returns: the kernel
// then lets every processor pass before it frees the mount, which may take longer than all the rest of a box's start.
func awaitLeft(unmounted <-chan error) error {
	tick := time.NewTicker(20 * time.Microsecond)
	defer tick.Stop()
	for returned := false; ; {
		over, err := overmounted()
		if err != nil {
			return fmt.Errorf("leave the host's root: %w", err)
		}
		if !over {
			return nil
		}
		if returned {
			return errors.New("leave the host's root: it is still there")
		}
		select {
		case err := <-unmounted:
			if err != nil {
				return fmt.Errorf("leave the host's root: %w", err)
			}
			returned = true // what the kernel shows has the last word
		case <-tick.C:
		}
	}
}

// overmounted tells whether something is mounted over the root. A path that begins with "/" begins below it, but ".." at the root leads to
// what is uppermost (path_resolution(7)).
func overmounted() (bool, error) {
	var root, top unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_MNT_ID, &root); err != nil {
		return false, err
	}
	if err := unix.Statx(unix.AT_FDCWD, "/..", 0, unix.STATX_MNT_ID, &top); err != nil {
		return false, err
	}
	if root.Mask&top.Mask&unix.STATX_MNT_ID == 0 {
		return false, errors.New("the kernel does not tell mounts apart (Linux 5.8 does)")
	}
	return root.Mnt_id != top.Mnt_id, nil
}

func closeRoot() error {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /proc: %w", err)
	}
	defer unix.Close(proc)
	g := &guard{repo: proc, pinned: map[string]bool{}}
	for _, n := range procReadOnly {
		g.readOnly(n)
	}
	if g.err != nil {
		return g.err
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /: %w", err)
	}
	defer unix.Close(root)
	for _, n := range procHidden {
		target, err := openBelow(proc, n, unix.O_PATH|unix.O_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hide /proc/%s: %w", n, err)
		}
		err = layNull(root, target)
		unix.Close(target)
		if err != nil {
			return fmt.Errorf("hide /proc/%s: %w", n, err)
		}
	}
	// Last, and not what is mounted below: directories of ours are not for writing. /dev keeps its own, or no terminal could be made.
	if err := setAttributes(root, readOnly, false); err != nil {
		return fmt.Errorf("close the root: %w", err)
	}
	dev, err := unix.Open("/dev", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev: %w", err)
	}
	defer unix.Close(dev)
	if err := setAttributes(dev, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, false); err != nil {
		return fmt.Errorf("close /dev: %w", err)
	}
	return nil
}
