package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// ErrLocked is returned by TryLock when someone else holds the lock.
var ErrLocked = errors.New("held by another process")

// lockPoll is how often a waiting AcquireLock tries again.
const lockPoll = 10 * time.Millisecond

// Lock is an advisory lock on a file, held by one descriptor until Unlock or
// the end of the process. The file stays: removing it would let two hold it.
type Lock struct{ f *flock.Flock }

// TryLock takes the lock at path now, or returns an error that wraps ErrLocked.
func TryLock(path string) (*Lock, error) {
	f, err := newFlock(path)
	if err != nil {
		return nil, err
	}
	ok, err := f.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !ok {
		return nil, fmt.Errorf("lock %s: %w", path, ErrLocked)
	}
	return &Lock{f}, nil
}

// AcquireLock waits for the lock at path until ctx ends.
func AcquireLock(ctx context.Context, path string) (*Lock, error) {
	f, err := newFlock(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f}, nil
}

// Unlock gives the lock up.
func (l *Lock) Unlock() error { return l.f.Unlock() }

func newFlock(path string) (*flock.Flock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return flock.New(path, flock.SetPermissions(0o600)), nil
}
