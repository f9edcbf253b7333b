package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// boundVersion is the version of bound.json.
const boundVersion = 1

// Binding says which checkout a project's state belongs to.
type Binding struct {
	Version int       `json:"version"`
	Path    string    `json:"path"`
	Since   time.Time `json:"since"`
	// ReplacedBy names the project that the same checkout uses now.
	ReplacedBy string `json:"replaced_by,omitempty"`
}

// BoundElsewhereError says that a name belongs to another checkout.
type BoundElsewhereError struct{ Name, Path string }

func (e *BoundElsewhereError) Error() string {
	return fmt.Sprintf("the name %q belongs to the checkout at %s: choose another [project] name, or move it here with `fy config adopt --move`", e.Name, e.Path)
}

// ReadBinding returns what p is bound to; ok is false when it is not bound.
func ReadBinding(p Project) (b Binding, ok bool, err error) {
	data, err := ReadFile(p.Bound(), MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Binding{}, false, nil
	}
	if err != nil {
		return Binding{}, false, err
	}
	if err := DecodeStrict(data, &b); err != nil {
		return Binding{}, false, &DamagedError{p.Bound(), err}
	}
	if b.Version != boundVersion || !filepath.IsAbs(b.Path) {
		return Binding{}, false, &DamagedError{p.Bound(), fmt.Errorf("version %d and path %q", b.Version, b.Path)}
	}
	return b, true, nil
}

// FindByPath returns the project that the checkout at path uses, if any.
func (l Layout) FindByPath(path string) (Project, bool, error) {
	entries, err := os.ReadDir(l.ProjectsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return Project{}, false, nil
	}
	if err != nil {
		return Project{}, false, err
	}
	var damaged error // matters only when no other binding is the path's
	for _, e := range entries {
		p, err := l.Project(e.Name())
		if err != nil || !e.IsDir() {
			continue // nothing of ours
		}
		b, ok, err := ReadBinding(p)
		if err != nil {
			damaged = errors.Join(damaged, err)
		}
		if ok && b.Path == path && b.ReplacedBy == "" {
			return p, true, nil
		}
	}
	return Project{}, false, damaged
}

// Bind binds the project called name to the checkout at path, which must be
// absolute and clean. A name that is bound to another path is a
// *BoundElsewhereError unless move is set. State that exists without a binding
// is another's too. What the checkout used before keeps its state and is
// marked as replaced.
func (l Layout) Bind(name, path string, now time.Time, move bool) (Project, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return Project{}, fmt.Errorf("bind project %s: path %q is not absolute and clean", name, path)
	}
	p, err := l.Project(name)
	if err != nil {
		return Project{}, err
	}
	if err := l.CheckBind(name, path); err != nil {
		if _, elsewhere := errors.AsType[*BoundElsewhereError](err); !elsewhere || !move {
			return Project{}, err
		}
	}
	if err := p.Ensure(); err != nil {
		return Project{}, err
	}
	old, had, err := l.FindByPath(path)
	if err != nil {
		return Project{}, err
	}
	if had && old.Name == name {
		return p, nil
	}
	// The new binding first: a crash between the two leaves the old name in
	// use or both, and FindByPath then takes either, both being this path's.
	if err := writeBinding(p, Binding{Path: path, Since: now.UTC()}); err != nil {
		return Project{}, err
	}
	if had {
		if err := writeBinding(old, Binding{Path: path, Since: now.UTC(), ReplacedBy: name}); err != nil {
			return Project{}, err
		}
	}
	return p, nil
}

// CheckBind reports, as a *BoundElsewhereError, whether name is bound to a
// checkout other than the one at path.
func (l Layout) CheckBind(name, path string) error {
	p, err := l.Project(name)
	if err != nil {
		return err
	}
	b, ok, err := ReadBinding(p)
	if err != nil {
		return err
	}
	if ok && b.Path != path {
		return &BoundElsewhereError{name, b.Path}
	}
	return nil
}

func writeBinding(p Project, b Binding) error {
	b.Version = boundVersion
	data, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return WriteAtomic(p.Bound(), append(data, '\n'), 0o600)
}
