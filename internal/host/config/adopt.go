package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"foldyard/internal/host/state"
)

// recordVersion is the version of adopted.json.
const recordVersion = 1

// Record is adopted.json: when which bytes were adopted for which checkout.
type Record struct {
	Version int       `json:"version"`
	When    time.Time `json:"when"`
	SHA256  string    `json:"sha256"`
	Path    string    `json:"path"`
	// Bundles is what each @name of passthrough expanded to on that day.
	Bundles map[string][]string `json:"bundles,omitempty"`
}

type adopted struct {
	Record
	bytes []byte
}

// readAdopted returns p's adopted copy; ok is false when there is none.
func readAdopted(p state.Project) (a adopted, ok bool, err error) {
	data, err := state.ReadFile(p.AdoptedRecord(), MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return adopted{}, false, nil
	}
	if err != nil {
		return adopted{}, false, err
	}
	if err := state.DecodeStrict(data, &a.Record); err != nil {
		return adopted{}, false, &state.DamagedError{Path: p.AdoptedRecord(), Err: err}
	}
	if a.Version != recordVersion {
		return adopted{}, false, &state.DamagedError{Path: p.AdoptedRecord(), Err: fmt.Errorf("version %d, want %d", a.Version, recordVersion)}
	}
	// The record is written between the two: see storeAdopted.
	for _, path := range []string{p.AdoptedConfig(), nextCopy(p, a.SHA256)} {
		a.bytes, err = state.ReadFile(path, MaxFile)
		if err == nil && digest(a.bytes) == a.SHA256 {
			return a, true, nil
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = errors.New("it is not what was adopted")
	}
	return adopted{}, false, &state.DamagedError{Path: p.AdoptedConfig(), Err: err}
}

func nextCopy(p state.Project, sum string) string {
	return filepath.Join(p.AdoptedDir(), "foldyard-"+sum[:min(len(sum), 16)]+".toml")
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// storeAdopted writes the copy, then the record, then the copy under its usual
// name: whenever a crash comes, the record finds the bytes it speaks of.
func storeAdopted(p state.Project, r Record, data []byte) error {
	r.Version, r.SHA256 = recordVersion, digest(data)
	record, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := state.EnsureDir(p.AdoptedDir()); err != nil {
		return err
	}
	next := nextCopy(p, r.SHA256)
	if err := state.WriteAtomic(next, data, 0o600); err != nil {
		return err
	}
	if err := state.WriteAtomic(p.AdoptedRecord(), append(record, '\n'), 0o600); err != nil {
		return err
	}
	if err := state.WriteAtomic(p.AdoptedConfig(), data, 0o600); err != nil {
		return err
	}
	return os.Remove(next)
}

// Load returns what foldyard obeys in c: what was adopted, never the file in
// the project. Faults of config.toml, or of an adopted file that this foldyard
// no longer takes, are the error.
func (h Host) Load(c Checkout) (*Effective, error) {
	op, err := h.readOperator()
	if err != nil {
		return nil, err
	}
	a, ok, err := readAdopted(c.Project)
	if err != nil {
		return nil, err
	}
	e, err := h.build(sources{
		repo: a.bytes, repoFile: c.Project.AdoptedConfig(), bundles: a.Bundles,
		operator: op, opFile: h.Layout.OperatorConfig(), project: c.Project.Name, directory: c.Dir,
	})
	if err != nil {
		return nil, err
	}
	e.Adopted = ok
	e.Project.Name = c.Project.Name
	return e, nil
}

// Check reads the file in the project as it is now, with config.toml, and
// returns what it would mean. What is wrong with them is a Faults.
func (h Host) Check(c Checkout) (*Effective, error) {
	data, err := ReadRepo(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return h.judge(c, data)
}

func (h Host) judge(c Checkout, data []byte) (*Effective, error) {
	op, err := h.readOperator()
	if err != nil {
		return nil, err
	}
	s := sources{
		repo: data, repoFile: FileName,
		operator: op, opFile: h.Layout.OperatorConfig(), project: proposedName(c.Dir, data), directory: c.Dir,
		bundles: h.presetHosts(),
	}
	e, err := h.build(s)
	if err != nil {
		return nil, err
	}
	bundles := h.bundles(e.Proxy.Passthrough)
	for _, r := range e.Inject {
		if hosts, ok := s.bundles[r.Preset]; ok {
			bundles[r.Preset] = hosts
		}
	}
	e.expand(bundles)
	for i, name := range e.Proxy.Passthrough {
		if hosts, ok := e.bundles[name]; ok && len(hosts) == 0 {
			key := fmt.Sprintf("proxy.passthrough[%d]", i)
			e.Warnings = append(e.Warnings, newFault(e.at[key], key, "%s expands to nothing: its clients are not configured on this computer", name))
		}
	}
	e.Project.Name = s.project
	return e, nil
}

// proposedName is the name that adopting data gives the project.
func proposedName(dir string, data []byte) string {
	var f File
	decode(&report{}, parseTree(&report{}, FileName, false, data), &f)
	if f.Project.Name != "" {
		return f.Project.Name
	}
	return cleanName(filepath.Base(dir))
}

// Proposal is a foldyard.toml that may be adopted: read once, and what is
// shown is what is stored.
type Proposal struct {
	Checkout  Checkout
	Name      string     // of the project once it is adopted
	Effective *Effective // what it would mean
	// Widenings says, a line each and safe for a terminal, what would newly be
	// permitted. To be shown first.
	Widenings []string
	// BoundTo is the path of another checkout that owns Name, or "".
	BoundTo string
	// Same is true when exactly these bytes are adopted already.
	Same bool

	bytes  []byte
	old    []byte
	layout state.Layout
}

// Propose reads the file in the project once and judges it. A missing file is
// an error that wraps fs.ErrNotExist; a bad one is a Faults.
func (h Host) Propose(c Checkout) (*Proposal, error) {
	data, err := ReadRepo(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no %s (`fy init` writes one): %w", quotePath(c.Dir), FileName, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	e, err := h.judge(c, data)
	if err != nil {
		return nil, err
	}
	p := &Proposal{
		Checkout: c, Name: e.Project.Name, Effective: e,
		bytes: data, layout: h.Layout,
	}
	if elsewhere, ok := errors.AsType[*state.BoundElsewhereError](h.Layout.CheckBind(p.Name, c.Dir)); ok {
		p.BoundTo = elsewhere.Path
	}
	before, err := h.build(sources{repoFile: FileName, operator: nil, directory: c.Dir})
	if err != nil {
		return nil, err
	}
	a, ok, err := readAdopted(c.Project)
	if err != nil {
		return nil, err
	}
	if ok {
		p.old = a.bytes
		p.Same = bytes.Equal(a.bytes, data) && p.Name == c.Project.Name
		// An adopted file that no longer reads permits nothing any more.
		if now, err := h.Load(c); err == nil {
			before = now
		}
	}
	p.Widenings = widenings(before, e)
	if ok && p.Name != c.Project.Name {
		p.Widenings = append(p.Widenings, fmt.Sprintf("name: the project becomes %s; grants, secrets and home of %s stay with that name", p.Name, c.Project.Name))
	}
	return p, nil
}

// Bytes returns a copy of what would be adopted.
func (p *Proposal) Bytes() []byte { return bytes.Clone(p.bytes) }

// Text returns exactly those bytes, whole, escaped for a terminal.
func (p *Proposal) Text() string { return Escape(p.bytes) }

// Diff returns a unified diff from the adopted copy, escaped for a terminal.
func (p *Proposal) Diff() string { return diffText(p.old, p.bytes) }

// Adopt stores exactly the bytes of p and binds the project's name to the
// checkout. A name that is bound to another path is a
// *state.BoundElsewhereError unless move is set.
func (p *Proposal) Adopt(now time.Time, move bool) (Checkout, error) {
	project, err := p.layout.Bind(p.Name, p.Checkout.Dir, now, move)
	if err != nil {
		return Checkout{}, err
	}
	r := Record{When: now.UTC(), Path: p.Checkout.Dir, Bundles: p.Effective.bundles}
	if err := storeAdopted(project, r, p.bytes); err != nil {
		return Checkout{}, fmt.Errorf("adopt %s: %w", FileName, err)
	}
	return Checkout{Dir: p.Checkout.Dir, Project: project, Adopted: true}, nil
}

// Drift is how the file in the project differs from what was adopted.
type Drift struct {
	Adopted   bool   `json:"adopted"`
	Exists    bool   `json:"exists"`
	Different bool   `json:"different"`
	Diff      string `json:"diff"` // unified, escaped for a terminal
	Record    Record `json:"record"`
}

// Drift compares the file in the project with the adopted copy. Without a copy
// a file is different from nothing.
func (h Host) Drift(c Checkout) (Drift, error) {
	a, ok, err := readAdopted(c.Project)
	if err != nil {
		return Drift{}, err
	}
	data, err := ReadRepo(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Drift{}, err
	}
	d := Drift{Adopted: ok, Exists: err == nil, Record: a.Record}
	d.Different = d.Exists != d.Adopted || !bytes.Equal(data, a.bytes)
	if d.Different {
		d.Diff = diffText(a.bytes, data)
	}
	return d, nil
}

func diffText(before, now []byte) string {
	return Escape(diff.Diff("adopted/"+FileName, before, FileName, now))
}

// ErrNotAdopted says that there is no adopted copy.
var ErrNotAdopted = errors.New("no " + FileName + " was adopted for this project")

// Revert puts the adopted copy back into the project. What was there is kept
// in the project's state, at the path returned, or "" when there was nothing
// that could be read.
func (h Host) Revert(c Checkout, now time.Time) (kept string, err error) {
	a, ok, err := readAdopted(c.Project)
	if err != nil {
		return "", err
	}
	if !ok {
		return "", ErrNotAdopted
	}
	data, err := ReadRepo(c.Dir)
	switch {
	case err == nil && bytes.Equal(data, a.bytes):
		return "", nil
	case err == nil:
		kept = filepath.Join(c.Project.AdoptedDir(), "reverted-"+now.UTC().Format("20060102T150405.000000000Z")+".toml")
		if err := state.WriteAtomic(kept, data, 0o600); err != nil {
			return "", err
		}
	}
	return kept, writeRepo(c.Dir, a.bytes, true)
}

// Escape makes bytes that a box may have written safe for a terminal, line by
// line: everything but printable ASCII, newline and tab is escaped, so that
// two texts that look alike are alike.
func Escape(data []byte) string {
	var b strings.Builder
	for _, r := range string(data) {
		switch {
		case r == '\n' || r == '\t' || r >= ' ' && r <= '~':
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}
