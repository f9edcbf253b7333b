package config

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"foldyard/internal/host/state"
)

// ReadRepo reads foldyard.toml of the project directory dir. A box can write
// there, so it is opened beneath dir and must be a regular file, reached
// through no symbolic link, of at most MaxFile bytes. An error that wraps
// fs.ErrNotExist means that there is none.
func ReadRepo(dir string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := openRegular(root, FileName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return state.ReadBounded(f, FileName, MaxFile)
}

// openRegular opens name, a direct child of root, without following a symbolic
// link and without waiting for whoever opens the other end of a FIFO.
func openRegular(root *os.Root, name string) (*os.File, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file (%s): foldyard does not follow what a box could have put there", name, before.Mode().Type())
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = fmt.Errorf("%s: changed while it was opened", name)
	}
	if err != nil {
		_ = f.Close() // only read from
		return nil, err
	}
	return f, nil
}

// writeRepo puts data where foldyard.toml of dir is: a new file, beneath dir,
// renamed over what was there, so that nothing a box planted is written
// through. Without replace an existing name, whatever it is, is an error that
// wraps fs.ErrExist.
func writeRepo(dir string, data []byte, replace bool) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Lstat(FileName); err == nil && !replace {
		return fmt.Errorf("%s: %w", FileName, fs.ErrExist)
	}
	tmp := "." + FileName + "." + rand.Text() + ".tmp"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the first error counts
			err = errors.Join(fmt.Errorf("write %s: %w", FileName, err), ignoreNotExist(root.Remove(tmp)))
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = giveToOwner(root, f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if replace {
		return root.Rename(tmp, FileName)
	}
	// A link, unlike a rename, fails when someone was faster.
	if err = root.Link(tmp, FileName); err != nil {
		return err
	}
	return root.Remove(tmp)
}

// giveToOwner gives a file that root made in someone's project, under sudo, to
// that someone.
func giveToOwner(root *os.Root, f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if uid, gid, ok := state.Owner(info); ok && uid != 0 {
		return f.Chown(int(uid), int(gid))
	}
	return nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
