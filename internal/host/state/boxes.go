package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// boxVersion is the version of boxes/ID.json.
const boxVersion = 1

// Box is the record of one running box: what a supervisor that was restarted
// needs to take it back.
type Box struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Nonce   string    `json:"nonce"`
	Socket  string    `json:"socket"`
	PID     int       `json:"pid"` // of the keeper, on the host
	Created time.Time `json:"created"`
	Oneshot bool      `json:"oneshot,omitempty"`
	Backend string    `json:"backend,omitempty"`
	Digest  string    `json:"digest,omitempty"`    // of its construction
	Home    bool      `json:"home,omitempty"`      // it holds the kept home
	RO      bool      `json:"read_only,omitempty"` // the repo is
	// Names is the synthetic name table in the order of its addresses.
	Names []string `json:"names,omitempty"`
	// Ports are the published ports, as the configuration wrote them.
	Ports []string `json:"ports,omitempty"`
	// Port is where the box's way out listens on the host, for a box in a VM.
	Port uint16 `json:"port,omitempty"`
	// Boot is the boot of the VM that the box belongs to, and Program our own
	// program there.
	Boot    string `json:"boot,omitempty"`
	Program string `json:"program,omitempty"`
}

// isBoxID matches [a-z0-9][a-z0-9-]{0,63}.
func isBoxID(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9') && (i == 0 || c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// WriteBox records b, replacing what was recorded of it. No box outlives the computer's end, so the record need not either.
func WriteBox(p Project, b Box) error {
	if !isBoxID(b.ID) {
		return fmt.Errorf("box id %q: want [a-z0-9-]", b.ID)
	}
	b.Version = boxVersion
	data, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	if err := EnsureDir(p.BoxesDir()); err != nil {
		return err
	}
	return WriteVolatile(p.BoxFile(b.ID), append(data, '\n'), 0o600)
}

// ReadBox reads the record of the box id. A damaged one is a *DamagedError.
func ReadBox(p Project, id string) (Box, error) {
	if !isBoxID(id) {
		return Box{}, fmt.Errorf("box id %q: want [a-z0-9-]", id)
	}
	path := p.BoxFile(id)
	data, err := ReadFile(path, MaxFile)
	if err != nil {
		return Box{}, err
	}
	var b Box
	if err := DecodeStrict(data, &b); err != nil {
		return Box{}, &DamagedError{path, err}
	}
	if b.Version != boxVersion {
		return Box{}, &DamagedError{path, fmt.Errorf("version %d, want %d", b.Version, boxVersion)}
	}
	if b.ID != id {
		return Box{}, &DamagedError{path, fmt.Errorf("it is the record of box %q", b.ID)}
	}
	return b, nil
}

// RemoveBox forgets the box id; forgetting one that is not there is no error.
func RemoveBox(p Project, id string) error {
	if !isBoxID(id) {
		return fmt.Errorf("box id %q: want [a-z0-9-]", id)
	}
	if err := os.Remove(p.BoxFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ListBoxes returns the recorded boxes, oldest first. The readable ones are
// returned also when err, which joins what was wrong with the others, is not
// nil.
func ListBoxes(p Project) ([]Box, error) {
	entries, err := os.ReadDir(p.BoxesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var boxes []Box
	var errs []error
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !isBoxID(id) {
			continue
		}
		b, err := ReadBox(p, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		boxes = append(boxes, b)
	}
	slices.SortStableFunc(boxes, func(a, b Box) int { return a.Created.Compare(b.Created) })
	return boxes, errors.Join(errs...)
}
