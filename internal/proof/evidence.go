package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Store keeps reports as evidence/*.json of a project, one per box and power:
// a new report replaces the old one, so that evidence never outlives a verify
// that shows less.
type Store struct {
	// Dir is the project's evidence directory, made when first needed.
	Dir string
}

// maxEvidence bounds a file read back, in bytes.
const maxEvidence = 4 << 20

var boxID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

// Put stores a report in place of the last one of its box and power.
func (s Store) Put(r Report) error {
	if !boxID().MatchString(r.Box) || r.As != AsUser && r.As != AsRoot {
		return fmt.Errorf("store evidence: box %q as %q is no box", r.Box, r.As)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("store evidence: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("store evidence of box %s: %w", r.Box, err)
	}
	if err := writeAtomic(s.path(r.Box, r.As), append(text, '\n')); err != nil {
		return fmt.Errorf("store evidence of box %s: %w", r.Box, err)
	}
	return nil
}

// Drop removes what is stored for a box and power. A verify calls it before it
// starts, so that one that is cut off leaves nothing standing.
func (s Store) Drop(box string, as As) error {
	if !boxID().MatchString(box) {
		return fmt.Errorf("drop evidence: %q is no box", box)
	}
	if err := os.Remove(s.path(box, as)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop evidence of box %s: %w", box, err)
	}
	return nil
}

// DropBox removes all that is stored for a box: its end is the end of its
// evidence.
func (s Store) DropBox(box string) error {
	return errors.Join(s.Drop(box, AsUser), s.Drop(box, AsRoot))
}

// All returns every report that can be read, and the faults of those that
// cannot: a damaged file is no evidence.
func (s Store) All() ([]Report, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read evidence: %w", err)
	}
	var reports []Report
	var faults []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		r, err := readReport(filepath.Join(s.Dir, e.Name()))
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if e.Name() != filepath.Base(s.path(r.Box, r.As)) {
			faults = append(faults, fmt.Errorf("evidence %s speaks of box %q", e.Name(), r.Box))
			continue
		}
		reports = append(reports, r)
	}
	return reports, errors.Join(faults...)
}

func (s Store) path(box string, as As) string {
	return filepath.Join(s.Dir, box+"-"+string(as)+".json")
}

func readReport(path string) (Report, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Report{}, fmt.Errorf("read evidence: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxEvidence {
		return Report{}, fmt.Errorf("evidence %s: want a regular file of at most %d bytes", path, maxEvidence)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Report{}, fmt.Errorf("read evidence: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return Report{}, fmt.Errorf("evidence %s: %w", path, err)
	}
	return r, nil
}

// writeAtomic replaces a file as a whole, or not at all.
func writeAtomic(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
