package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"foldyard/internal/egress/policy"
	"foldyard/internal/host/state"
)

// pollEvery is how often allow-effective.json is looked at.
const pollEvery = 500 * time.Millisecond

// effective is the policy that the engine obeys: the file itself, not what we believe we wrote. A file that is missing or
// damaged refuses everything, and is never overwritten until the supervisor starts again.
type effective struct {
	path string
	snap atomic.Pointer[policy.Snapshot]

	mu    sync.Mutex
	stamp stamp // of the file that snap came from
	fault error // why snap is unreadable
}

// stamp tells one version of a file from another.
type stamp struct {
	ino   uint64
	size  int64
	mtime time.Time
}

// openEffective takes the file as the last supervisor left it. A damaged one is moved aside; moved is where to.
func openEffective(path string, now time.Time) (e *effective, moved string, err error) {
	e = &effective{path: path}
	e.snap.Store(policy.Unreadable())
	e.poll()
	if e.fault == nil || errors.Is(e.fault, fs.ErrNotExist) {
		return e, "", nil
	}
	if moved, err = state.SetAside(path, now); err != nil {
		return nil, "", fmt.Errorf("move damaged policy aside: %w", err)
	}
	e.fault, e.stamp = fs.ErrNotExist, stamp{}
	return e, moved, nil
}

// Snapshot is what holds now.
func (e *effective) Snapshot() *policy.Snapshot { return e.snap.Load() }

// Fault says why everything is refused, nil when the file is whole.
func (e *effective) Fault() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fault
}

// poll reads the file if it changed, and tells whether the policy did.
func (e *effective) poll() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	st, err := stampOf(e.path)
	if err == nil && e.fault == nil && st == e.stamp {
		return false
	}
	if err == nil && e.fault != nil && st == e.stamp {
		return false // as damaged as before
	}
	if err != nil && e.fault != nil && e.stamp == (stamp{}) {
		return false // as missing as before
	}
	e.stamp = st
	var snap *policy.Snapshot
	if err == nil {
		snap, err = read(e.path)
	}
	if err != nil {
		e.fault = err
		e.snap.Store(policy.Unreadable())
		return true
	}
	e.fault = nil
	e.snap.Store(snap)
	return true
}

func read(path string) (*policy.Snapshot, error) {
	b, err := state.ReadFile(path, state.MaxFile)
	if err != nil {
		return nil, err
	}
	return policy.Decode(b)
}

func stampOf(path string) (stamp, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}, err
	}
	st := stamp{size: info.Size(), mtime: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.ino = sys.Ino
	}
	return st, nil
}

// write renders f, and obeys what then stands in the file. first allows a file that is missing: only the start makes one.
func (e *effective) write(f policy.File, first bool) error {
	b, err := policy.Encode(f)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// Look once more: what was damaged since the last poll must not be painted over.
	if !first {
		if _, err := read(e.path); err != nil {
			return &state.DamagedError{Path: e.path, Err: err}
		}
	}
	old, err := state.ReadFile(e.path, state.MaxFile)
	if err != nil || !bytes.Equal(old, b) { // a restart finds what it would write
		if err := state.WriteAtomic(e.path, b, 0o600); err != nil {
			return err
		}
	}
	snap, err := read(e.path)
	if err != nil {
		e.fault, e.stamp = err, stamp{}
		e.snap.Store(policy.Unreadable())
		return fmt.Errorf("read back %s: %w", filepath.Base(e.path), err)
	}
	e.stamp, _ = stampOf(e.path) // missing again already: the next poll sees it
	e.fault = nil
	e.snap.Store(snap)
	return nil
}
