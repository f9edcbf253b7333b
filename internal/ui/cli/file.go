package cli

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// writeNew writes a file that the operator named, beside it first, so that a link planted there is replaced, not followed. Below the
// project, where a box writes, no directory on the way may be a link either: it would lead the file to where the box cannot.
func (a *app) writeNew(project, path string, write func(io.Writer) error) (err error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.dir(), path)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	dir, err := openDir(project, filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // nothing was written through it
	name := ".fy-" + rand.Text() + ".tmp"
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(name) // the first error is the one that counts
		}
	}()
	if err = write(f); err == nil {
		err = f.Chmod(0o644)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = dir.Rename(name, filepath.Base(path))
	}
	return err
}

// openDir opens a directory, from the project on without following links.
func openDir(project, path string) (*os.Root, error) {
	top, rest := above(project, filepath.Clean(path))
	dir, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	for _, name := range rest {
		next, err := enter(dir, name)
		_ = dir.Close() // nothing was written through it
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// above splits path at the outermost directory that is the project; without one, nothing of it is a box's to write.
func above(project, path string) (top string, rest []string) {
	is, err := os.Stat(project)
	if err != nil {
		return path, nil
	}
	top = path
	var names, below []string
	for at := path; ; at = filepath.Dir(at) {
		if st, err := os.Stat(at); err == nil && os.SameFile(st, is) {
			top, below = at, slices.Clone(names)
		}
		if at == filepath.Dir(at) {
			break
		}
		names = append(names, filepath.Base(at))
	}
	slices.Reverse(below)
	return top, below
}

// enter opens a directory of dir that is no link, also when it is exchanged meanwhile.
func enter(dir *os.Root, name string) (*os.Root, error) {
	before, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, fmt.Errorf("%s is no directory: links in the project are not followed", strings.TrimSpace(name))
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	after, err := next.Stat(".")
	if err == nil && !os.SameFile(before, after) {
		err = fmt.Errorf("%s was exchanged while it was opened", name)
	}
	if err != nil {
		_ = next.Close() // nothing was written through it
		return nil, err
	}
	return next, nil
}
