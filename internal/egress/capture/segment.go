package capture

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	stampLayout = "20060102T150405.000Z"
	plainSuffix = ".jsonl"
	gzipSuffix  = ".jsonl.gz"
)

// segments is one log on disk: DIR/NAME.jsonl, which grows, and DIR/NAME.<UTC>.jsonl[.gz], which were rotated. It is not for
// concurrent use.
type segments struct {
	dir, name string
	max       int64
	keep      int
	rotated   func(path string) // told of each segment that was rotated; may be nil

	f    *os.File
	size int64 // of whole lines; what a failed write left behind it is cut off
}

func (s *segments) path() string { return filepath.Join(s.dir, s.name+plainSuffix) }

// open opens the growing segment. A last line that a crash cut short is removed; one that lacks only its newline gets it.
func (s *segments) open() error {
	f, err := os.OpenFile(s.path(), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	if s.size, err = mend(f); err != nil {
		return errors.Join(fmt.Errorf("mend log %s: %w", s.path(), err), f.Close())
	}
	s.f = f
	return nil
}

func mend(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, errors.New("not a regular file")
	}
	size := info.Size()
	tail := make([]byte, min(size, maxLine))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF { //nolint:errorlint // ReadAt returns it bare
		return 0, err
	}
	last := tail[bytes.LastIndexByte(tail, '\n')+1:]
	switch {
	case len(last) == 0:
		return size, nil
	case wholeLine(last):
		_, err = f.Write([]byte{'\n'})
		return size + 1, err
	}
	size -= int64(len(last))
	return size, f.Truncate(size)
}

// write appends whole lines and rotates between them. After a failure nothing of the failed piece is left in the file.
func (s *segments) write(lines []byte, now time.Time) error {
	for len(lines) > 0 {
		if s.f == nil {
			if err := s.open(); err != nil {
				return err
			}
		}
		n := fit(lines, s.max-s.size)
		if n == 0 {
			if s.size > 0 {
				if err := s.rotate(now); err != nil {
					return err
				}
				continue
			}
			n = bytes.IndexByte(lines, '\n') + 1
		}
		if _, err := s.f.Write(lines[:n]); err != nil {
			return errors.Join(fmt.Errorf("write log: %w", err), s.f.Truncate(s.size))
		}
		s.size += int64(n)
		lines = lines[n:]
	}
	return nil
}

// fit returns how many bytes of whole lines take no more than room.
func fit(lines []byte, room int64) int {
	if int64(len(lines)) <= room {
		return len(lines)
	}
	if room <= 0 {
		return 0
	}
	return bytes.LastIndexByte(lines[:room], '\n') + 1
}

// reopen looks whether the file at the path is still the one that is open, and lets go of it if not.
func (s *segments) reopen() error {
	if s.f == nil {
		return nil
	}
	have, err := s.f.Stat()
	if err != nil {
		return fmt.Errorf("stat log: %w", err)
	}
	if at, err := os.Lstat(s.path()); err == nil && os.SameFile(have, at) {
		return nil
	}
	return s.close()
}

func (s *segments) rotate(now time.Time) error {
	if err := s.close(); err != nil {
		return err
	}
	for now = now.UTC(); ; now = now.Add(time.Millisecond) { // a name is used once, so that they sort as they were written
		to := filepath.Join(s.dir, s.name+"."+now.Format(stampLayout)+plainSuffix)
		if exists(to) || exists(to+".gz") {
			continue
		}
		if err := os.Rename(s.path(), to); err != nil {
			return fmt.Errorf("rotate log: %w", err)
		}
		if s.rotated != nil {
			s.rotated(to)
		}
		return s.prune()
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// prune removes the oldest rotated segments beyond keep.
func (s *segments) prune() error {
	old, err := rotated(s.dir, s.name)
	if err != nil {
		return err
	}
	for len(old) > s.keep {
		if err := os.Remove(old[0].path); err != nil {
			return fmt.Errorf("remove old log: %w", err)
		}
		old = old[1:]
	}
	return nil
}

func (s *segments) close() error {
	if s.f == nil {
		return nil
	}
	err := s.f.Close()
	s.f, s.size = nil, 0
	if err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}

// segment is a rotated one.
type segment struct {
	path string
	end  time.Time // when it was rotated
}

// rotated lists the rotated segments of a log, oldest first.
func rotated(dir, name string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	var out []segment
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), name+".")
		if !ok || !e.Type().IsRegular() {
			continue
		}
		stamp, ok = strings.CutSuffix(strings.TrimSuffix(stamp, ".gz"), plainSuffix)
		if !ok {
			continue
		}
		end, err := time.Parse(stampLayout, stamp)
		if err != nil {
			continue // not one of ours
		}
		out = append(out, segment{filepath.Join(dir, e.Name()), end})
	}
	slices.SortStableFunc(out, func(a, b segment) int { return a.end.Compare(b.end) })
	// A crash may leave a segment beside its gzip; ReadDir lists the plain one first.
	return slices.CompactFunc(out, func(a, b segment) bool { return a.end.Equal(b.end) }), nil
}

// compress replaces a rotated segment by its gzip. It gives up between reads once stop is closed, leaving the segment as it was.
func compress(path string, stop <-chan struct{}) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	defer func() {
		if err != nil {
			_ = out.Close() // the first error tells more
			_ = os.Remove(out.Name())
		}
	}()
	z := gzip.NewWriter(out)
	for buf := make([]byte, 64<<10); ; {
		select {
		case <-stop:
			return fs.ErrClosed
		default:
		}
		n, err := in.Read(buf)
		if _, werr := z.Write(buf[:n]); werr != nil {
			return fmt.Errorf("compress log %s: %w", path, werr)
		}
		if err == io.EOF { //nolint:errorlint // a file returns it bare
			break
		}
		if err != nil {
			return fmt.Errorf("compress log %s: %w", path, err)
		}
	}
	if err := errors.Join(z.Close(), out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("compress log %s: %w", path, err)
	}
	if err := os.Rename(out.Name(), path+".gz"); err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	return os.Remove(path)
}
