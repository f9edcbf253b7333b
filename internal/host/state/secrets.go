package state

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	boundsVersion = 1
	// MaxSecret bounds one secret, in bytes.
	MaxSecret = 64 << 10
	maxBounds = 1000
)

// Bound is what the operator confirmed about one secret: where it may go.
type Bound struct {
	Name  string   `json:"name"`  // of the rule
	Hosts []string `json:"hosts"` // canonical rules, sorted
	// Facts are what else was confirmed: kind, place, and whatever decides what
	// the credential can do.
	Facts []string  `json:"facts"`
	Since time.Time `json:"since"`
	// Stamp changes whenever the secret is set or confirmed again.
	Stamp string `json:"stamp"`
	// Off says why the rule was switched off, "" if it was not.
	Off string `json:"off,omitempty"`
}

// Covers returns, a line each, what want asks for beyond what was confirmed:
// none means that it may have the secret.
func (b Bound) Covers(want Bound) []string {
	var missing []string
	for _, h := range want.Hosts {
		if !slices.Contains(b.Hosts, h) {
			missing = append(missing, want.Name+" -> "+h)
		}
	}
	for _, f := range want.Facts {
		if !slices.Contains(b.Facts, f) {
			missing = append(missing, want.Name+": "+f)
		}
	}
	for _, f := range b.Facts { // what narrowed it must not go
		if !slices.Contains(want.Facts, f) && len(missing) == 0 {
			missing = append(missing, want.Name+": no longer "+f)
		}
	}
	return missing
}

type boundsFile struct {
	Version int     `json:"version"`
	Bound   []Bound `json:"bound"`
}

// Secrets is the store of a project's secrets and of what each is bound to.
// Several processes may use it: each change reads the files again, under a
// lock. Values are kept in memory no longer than a call takes.
type Secrets struct{ values, bounds string }

// OpenSecrets returns p's store, which need not exist.
func OpenSecrets(p Project) *Secrets { return &Secrets{p.Secrets(), p.SecretBounds()} }

// Get returns the value of a variable; ok is false if there is none. The
// caller owns the bytes and overwrites them.
func (s *Secrets) Get(variable string) (value []byte, ok bool, err error) {
	data, err := s.read()
	if err != nil {
		return nil, false, err
	}
	defer clear(data)
	err = eachSecret(data, func(name string, v []byte) bool {
		if name == variable {
			value, ok = bytes.Clone(v), true
		}
		return !ok
	})
	if err != nil {
		return nil, false, &DamagedError{s.values, err}
	}
	return value, ok, nil
}

// Variables returns the names of all variables, sorted.
func (s *Secrets) Variables() ([]string, error) {
	data, err := s.read()
	if err != nil {
		return nil, err
	}
	defer clear(data)
	var names []string
	err = eachSecret(data, func(name string, _ []byte) bool {
		names = append(names, name)
		return true
	})
	if err != nil {
		return nil, &DamagedError{s.values, err}
	}
	slices.Sort(names)
	return names, nil
}

func (s *Secrets) read() ([]byte, error) {
	data, err := ReadSecret(s.values, MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// eachSecret reads KEY=VALUE lines; a value in double quotes is a Go string.
// Its errors hold no value.
func eachSecret(data []byte, f func(name string, value []byte) bool) error {
	seen := map[string]bool{}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		name, value, ok := bytes.Cut(line, []byte("="))
		if !ok || !isVariable(string(name)) {
			return fmt.Errorf("line %d is not KEY=VALUE", n)
		}
		if seen[string(name)] {
			return fmt.Errorf("line %d: %s comes twice", n, name)
		}
		seen[string(name)] = true
		if bytes.HasPrefix(value, []byte(`"`)) {
			plain, err := strconv.Unquote(string(value))
			if err != nil {
				return fmt.Errorf("line %d: the value of %s is not quoted properly", n, name)
			}
			value = []byte(plain)
		}
		if !f(string(name), value) {
			return nil
		}
	}
	return nil
}

func isVariable(s string) bool {
	return s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" && (s[0] < '0' || s[0] > '9')
}

func appendSecret(b []byte, name string, value []byte) []byte {
	b = append(append(b, name...), '=')
	plain := len(value) > 0 && value[0] != '"' && bytes.IndexFunc(value, func(r rune) bool { return r < '!' || r > '~' }) < 0
	if plain {
		b = append(b, value...)
	} else {
		b = strconv.AppendQuote(b, string(value))
	}
	return append(b, '\n')
}

// Set stores a value. With bind it also binds it to what is confirmed now; nil
// leaves the binding as it is.
func (s *Secrets) Set(ctx context.Context, variable string, value []byte, bind *Bound) error {
	switch {
	case !isVariable(variable):
		return fmt.Errorf("variable %q: want capitals, digits and _", variable)
	case len(value) == 0:
		return errors.New("the value is empty")
	case len(value) > MaxSecret:
		return fmt.Errorf("the value is over %d KiB", MaxSecret>>10)
	case bytes.IndexByte(value, 0) >= 0:
		return errors.New("the value holds a NUL byte")
	}
	return s.update(ctx, func() error {
		if err := s.rewrite(variable, value); err != nil {
			return err
		}
		if bind == nil {
			return nil
		}
		return s.rebind(func(f *boundsFile) { f.put(*bind) })
	})
}

// Remove takes a value, and what it was bound to, away. ok is false when there
// was neither.
func (s *Secrets) Remove(ctx context.Context, variable, name string) (ok bool, err error) {
	err = s.update(ctx, func() error {
		_, had, err := s.Get(variable)
		if err != nil {
			return err
		}
		if ok = had; had {
			if err := s.rewrite(variable, nil); err != nil {
				return err
			}
		}
		bounds, err := s.Bounds()
		if _, bound := bounds[name]; err != nil || !bound {
			return err
		}
		ok = true
		return s.rebind(func(f *boundsFile) {
			f.Bound = slices.DeleteFunc(f.Bound, func(b Bound) bool { return b.Name == name })
		})
	})
	return ok, err
}

// Bounds returns what each secret is bound to, by the rule's name.
func (s *Secrets) Bounds() (map[string]Bound, error) {
	f, err := s.readBounds()
	if err != nil {
		return nil, err
	}
	out := map[string]Bound{}
	for _, b := range f.Bound {
		out[b.Name] = b
	}
	return out, nil
}

// Bind confirms where a secret may go, and switches its rule on again.
func (s *Secrets) Bind(ctx context.Context, b Bound) error {
	return s.update(ctx, func() error { return s.rebind(func(f *boundsFile) { f.put(b) }) })
}

// SwitchOff keeps a rule from its secret until Bind or Set.
func (s *Secrets) SwitchOff(ctx context.Context, name, why string) error {
	return s.update(ctx, func() error {
		return s.rebind(func(f *boundsFile) {
			for i := range f.Bound {
				if f.Bound[i].Name == name {
					f.Bound[i].Off = why
					return
				}
			}
			f.Bound = append(f.Bound, Bound{Name: name, Hosts: []string{}, Facts: []string{}, Off: why})
		})
	})
}

func (f *boundsFile) put(b Bound) {
	b.Hosts, b.Facts = append([]string{}, b.Hosts...), append([]string{}, b.Facts...)
	slices.Sort(b.Hosts)
	slices.Sort(b.Facts)
	b.Stamp, b.Off = rand.Text(), ""
	f.Bound = append(slices.DeleteFunc(f.Bound, func(o Bound) bool { return o.Name == b.Name }), b)
}

func (s *Secrets) readBounds() (boundsFile, error) {
	f := boundsFile{Version: boundsVersion}
	data, err := ReadSecret(s.bounds, MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := DecodeStrict(data, &f); err != nil {
		return f, &DamagedError{s.bounds, err}
	}
	if f.Version != boundsVersion {
		return f, &DamagedError{s.bounds, fmt.Errorf("version %d, want %d", f.Version, boundsVersion)}
	}
	seen := map[string]bool{}
	for _, b := range f.Bound {
		if CheckName(b.Name) != nil || seen[b.Name] {
			return f, &DamagedError{s.bounds, fmt.Errorf("the name %q is bad, or comes twice", b.Name)}
		}
		seen[b.Name] = true
	}
	return f, nil
}

// update runs change under the lock.
func (s *Secrets) update(ctx context.Context, change func() error) error {
	if err := EnsureDir(filepath.Dir(s.values)); err != nil {
		return err
	}
	lock, err := AcquireLock(ctx, s.values+".lock")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	s.sweep()
	return change()
}

// sweep removes what a crash left half-written.
func (s *Secrets) sweep() {
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(s.values), "."+filepath.Base(s.values)+".*.tmp")) // the pattern is ours
	for _, path := range left {
		_ = os.Remove(path) // the next one tries again
	}
}

// rewrite replaces the value of variable, or removes it if value is nil.
func (s *Secrets) rewrite(variable string, value []byte) error {
	data, err := s.read()
	if err != nil {
		return err
	}
	defer clear(data)
	out := make([]byte, 0, len(data)+4*len(value)+len(variable)+16)
	defer func() { clear(out) }()
	if err := eachSecret(data, func(name string, v []byte) bool {
		if name != variable {
			out = appendSecret(out, name, v)
		}
		return true
	}); err != nil {
		return &DamagedError{s.values, err}
	}
	if value != nil {
		out = appendSecret(out, variable, value)
	}
	return WriteAtomic(s.values, out, 0o600)
}

func (s *Secrets) rebind(change func(*boundsFile)) error {
	f, err := s.readBounds()
	if err != nil {
		return err
	}
	change(&f)
	if len(f.Bound) > maxBounds {
		return fmt.Errorf("%d secrets, at most %d", len(f.Bound), maxBounds)
	}
	slices.SortFunc(f.Bound, func(a, b Bound) int { return cmp.Compare(a.Name, b.Name) })
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return WriteAtomic(s.bounds, append(data, '\n'), 0o600)
}
