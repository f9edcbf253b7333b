package namespace

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Mounts are made by descriptor: a tree is cloned, gets its attributes while nobody can see it, and is moved onto an opened target.
// No path below a directory that a box can write is ever followed through a symbolic link.

// never lists what a path of the box may not do while it is resolved on the host.
const never = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

const (
	readOnly = unix.MOUNT_ATTR_RDONLY | plain
	plain    = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
)

// cloneTree clones the mount at path (below dirfd, or the descriptor itself when path is "") with everything mounted below it. The clone
// of a shared mount is its peer (mount_namespaces(7)): what a box mounts in it would be mounted on the host, so every clone is made
// private before anything can be.
func cloneTree(dirfd int, path string) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE | unix.AT_NO_AUTOMOUNT | unix.AT_SYMLINK_NOFOLLOW)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dirfd, path, flags)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "mount_setattr", Path: path, Err: err}
	}
	return fd, nil
}

func setAttributes(fd int, attr uint64, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(fd, "", flags, &unix.MountAttr{Attr_set: attr}); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// attach moves a cloned tree onto the directory or file that target is open on, and closes the tree.
func attach(tree, target int) error {
	err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	unix.Close(tree)
	if err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// lay clones the tree at path below dirfd, or the one that dirfd is open on, and attaches it, with these attributes, onto target. The
// attributes are those of the tree where attr is 0.
func lay(dirfd int, path string, target int, attr uint64) error {
	clone, err := cloneTree(dirfd, path)
	if err != nil {
		return err
	}
	if attr != 0 {
		if err := setAttributes(clone, attr, true); err != nil {
			unix.Close(clone)
			return err
		}
	}
	return attach(clone, target)
}

// layNull covers a file with nothing: reads end at once, writes are lost. root is where the box's /dev is.
func layNull(root, target int) error { return lay(root, "dev/null", target, 0) }

// openBelow opens a name below dirfd without following any link.
func openBelow(dirfd int, name string, flags uint64) (int, error) {
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: never})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// tree is a directory tree under construction: the box's root.
type tree struct {
	fd int
}

// dir makes the directory and its parents, and opens it.
func (t *tree) dir(p string) (int, error) {
	cur, err := unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, fmt.Errorf("duplicate: %w", err)
	}
	for _, name := range strings.Split(strings.Trim(path.Clean(p), "/"), "/") {
		if name == "" || name == "." {
			continue
		}
		next, err := openBelow(cur, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			if err := unix.Mkdirat(cur, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EROFS) {
				unix.Close(cur)
				return -1, &os.PathError{Op: "mkdir", Path: p, Err: err}
			}
			next, err = openBelow(cur, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		}
		unix.Close(cur)
		if err != nil {
			return -1, fmt.Errorf("mount point %s: %w", p, err)
		}
		cur = next
	}
	return cur, nil
}

// file makes an empty file to mount on, and opens it.
func (t *tree) file(p string) (int, error) {
	d, err := t.dir(path.Dir(p))
	if err != nil {
		return -1, err
	}
	defer unix.Close(d)
	if fd, err := unix.Openat(d, path.Base(p), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o444); err == nil {
		unix.Close(fd)
	} else if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EROFS) {
		return -1, &os.PathError{Op: "create", Path: p, Err: err}
	}
	fd, err := openBelow(d, path.Base(p), unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("mount point %s: %w", p, err)
	}
	return fd, nil
}

// write makes a read-only file of ours.
func (t *tree) write(p string, content []byte) error {
	d, err := t.dir(path.Dir(p))
	if err != nil {
		return err
	}
	defer unix.Close(d)
	fd, err := unix.Openat(d, path.Base(p), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return &os.PathError{Op: "create", Path: p, Err: err}
	}
	f := os.NewFile(uintptr(fd), p)
	if _, err := f.Write(content); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", p, err)
	}
	return f.Close()
}

func (t *tree) link(to, p string) error {
	d, err := t.dir(path.Dir(p))
	if err != nil {
		return err
	}
	defer unix.Close(d)
	if err := unix.Symlinkat(to, d, path.Base(p)); err != nil {
		return &os.LinkError{Op: "symlink", Old: to, New: p, Err: err}
	}
	return nil
}

// mount attaches a cloned tree at p, a directory or a file like its source, with these attributes on it and all below it.
func (t *tree) mount(source int, p string, attr uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		unix.Close(source)
		return fmt.Errorf("mount %s: %w", p, err)
	}
	if err := setAttributes(source, attr, true); err != nil {
		unix.Close(source)
		return fmt.Errorf("mount %s: %w", p, err)
	}
	open := t.file
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		open = t.dir
	}
	target, err := open(p)
	if err != nil {
		unix.Close(source)
		return err
	}
	defer unix.Close(target)
	if err := attach(source, target); err != nil {
		return fmt.Errorf("mount %s: %w", p, err)
	}
	return nil
}

// memory mounts a new tmpfs at p. Its bound is half of the computer's memory, the kernel's default (tmpfs(5)).
func (t *tree) memory(p, options string, attr uint64) error {
	return t.filesystem("tmpfs", p, options, attr)
}

// filesystem mounts a new filesystem at p; options are comma-separated key=value or key.
func (t *tree) filesystem(kind, p, options string, attr uint64) error {
	target, err := t.dir(p)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	m, err := newFilesystem(kind, options, attr)
	if err != nil {
		return fmt.Errorf("mount %s: %w", p, err)
	}
	if err := attach(m, target); err != nil {
		return fmt.Errorf("mount %s: %w", p, err)
	}
	return nil
}

func newFilesystem(kind, options string, attr uint64) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for _, o := range strings.FieldsFunc(options, func(r rune) bool { return r == ',' }) {
		if k, v, ok := strings.Cut(o, "="); ok {
			err = unix.FsconfigSetString(fs, k, v)
		} else {
			err = unix.FsconfigSetFlag(fs, k)
		}
		if err != nil {
			return -1, fmt.Errorf("%s option %s: %w", kind, o, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make %s: %w", kind, err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(attr))
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return m, nil
}
