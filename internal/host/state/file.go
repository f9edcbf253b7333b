package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DamagedError says that a state file cannot be trusted. Whoever gets it
// refuses, names the file, and leaves it as it is.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s is damaged: %v (it is left as it is: repair it, or move it away)", e.Path, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// MaxFile bounds every state file that is read whole, in bytes.
const MaxFile = 16 << 20

// ReadFile reads a file of the operator's: a regular file, no symlink, at most
// limit bytes, not writable by others, owned by the caller or by root. An
// error that wraps fs.ErrNotExist means that there is none.
func ReadFile(path string, limit int64) ([]byte, error) {
	return readFile(path, limit, 0o022)
}

// ReadSecret is ReadFile for a file that nobody else may even read.
func ReadSecret(path string, limit int64) ([]byte, error) {
	return readFile(path, limit, 0o077)
}

func readFile(path string, limit int64, forbidden fs.FileMode) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkOwned(info, forbidden); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ReadBounded(f, path, limit)
}

// ReadBounded reads the regular file f, called name in errors, whole. More than
// limit bytes are an error.
func ReadBounded(f *os.File, name string, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return data, nil
}

// checkOwned refuses what someone else owns, and permission bits in forbidden.
// A group that is the caller's own primary group may write: a umask of 002
// makes such files.
func checkOwned(info fs.FileInfo, forbidden fs.FileMode) error {
	uid, gid, ok := Owner(info)
	if !ok {
		return errors.New("cannot tell whose file it is")
	}
	if uid != uint32(os.Geteuid()) && uid != 0 {
		return fmt.Errorf("belongs to user %d, not to you", uid)
	}
	if forbidden == 0o022 && gid == uint32(os.Getegid()) {
		forbidden = 0o002
	}
	if bad := info.Mode().Perm() & forbidden; bad != 0 {
		return fmt.Errorf("mode %04o lets others in: chmod %04o it", info.Mode().Perm(), info.Mode().Perm()&^forbidden)
	}
	return nil
}

// Owner returns the user and group that own info's file.
func Owner(info fs.FileInfo) (uid, gid uint32, ok bool) { return owner(info) }

// EnsureDir makes the directory path, and those above it, 0700 where they are
// missing. It refuses a directory that is someone else's or that others may
// write; one of ours that others may read is narrowed to 0700.
func EnsureDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: want a directory", path)
	}
	if uid, _, ok := Owner(info); !ok || uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s belongs to user %d, not to you", path, uid)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o700); err != nil {
			return fmt.Errorf("narrow %s: %w", path, err)
		}
	}
	return nil
}

// WriteAtomic replaces path by data: a temporary file beside it, synced,
// renamed over it, the directory synced. A reader sees the old bytes or the
// new ones, also after a crash.
func WriteAtomic(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, true)
}

// WriteVolatile is WriteAtomic for a file that means nothing after the computer itself went down: it is not synced, so it
// costs no wait for the disk.
func WriteVolatile(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, false)
}

func write(path string, data []byte, perm fs.FileMode, durable bool) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	tmp := f.Name()
	defer func() {
		if err != nil {
			_ = f.Close()      // the first error is the one that counts
			_ = os.Remove(tmp) // best effort: it is a temporary file
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err = f.Chmod(perm); err != nil {
		return err
	}
	if _, err = f.Write(data); err != nil {
		return err
	}
	if durable {
		if err = f.Sync(); err != nil {
			return err
		}
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(tmp, path); err != nil {
		return err
	}
	if !durable {
		return nil
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // some file systems cannot sync a directory
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
