// Package state is the operator's side on disk: where each file lives, how it
// is read and replaced, and the stores kept there (grants, running boxes, the
// path that a project's name is bound to).
//
// It may not decide policy, parse configuration, open a socket or read
// anything that a box can write. A damaged file is refused by name
// (*DamagedError) and never overwritten.
//
// Where to look first:
//
//	NewLayout(getenv)             every path of the contract
//	Layout.Project(name)          the paths of one project
//	Project.Ensure                make its directories (0700)
//	WriteAtomic, ReadFile         replace and read one file
//	AcquireLock, TryLock          flock, one holder
//	OpenGrants(project)           the grants store; Update, Add, Revoke, Render …
//	WriteBox, ReadBox, ListBoxes  boxes/ID.json
//	Layout.Bind, FindByPath       which checkout owns a project's name
package state

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// maxSocketPath is the longest path, in bytes, that is bound as a unix socket.
// sun_path takes 104 bytes on darwin and 108 on linux, with the final NUL.
const maxSocketPath = 100

// maxName bounds a project's name so that the paths made from it stay usable.
const maxName = 64

// CheckName reports whether name may name a project. Names become paths.
func CheckName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("project name is %d bytes long, want at most %d", len(name), maxName)
	}
	if !isName(name) {
		return fmt.Errorf("project name %s: want [A-Za-z0-9][A-Za-z0-9._-]*", strconv.QuoteToASCII(name))
	}
	return nil
}

// isName matches [A-Za-z0-9][A-Za-z0-9._-]*. No pattern is compiled for it: fy starts often.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !word && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != ""
}

// Layout is where foldyard keeps its files on this computer.
type Layout struct {
	ConfigDir string // config.toml
	StateDir  string // ca, ports.json, projects
	CacheDir  string // what may be thrown away
	// RuntimeDir holds sockets whose own path is too long. It is made on use.
	RuntimeDir string
	// FromHome is true when FOLDYARD_HOME put everything under one directory.
	FromHome bool
}

// NewLayout works the layout out from FOLDYARD_HOME, the XDG variables and
// HOME, read through getenv. Every path must be absolute.
func NewLayout(getenv func(string) string) (Layout, error) {
	runtime := filepath.Join(os.TempDir(), "foldyard-"+strconv.Itoa(os.Geteuid()))
	if d := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		runtime = filepath.Join(d, "foldyard")
	}
	if d := getenv("FOLDYARD_HOME"); d != "" {
		if !filepath.IsAbs(d) {
			return Layout{}, fmt.Errorf("FOLDYARD_HOME %q: want an absolute path", d)
		}
		d = filepath.Clean(d)
		return Layout{ConfigDir: d, StateDir: d, CacheDir: filepath.Join(d, "cache"), RuntimeDir: runtime, FromHome: true}, nil
	}
	home := getenv("HOME")
	xdg := func(name, fallback string) (string, error) {
		// The XDG specification says to ignore relative values.
		if d := getenv(name); filepath.IsAbs(d) {
			return filepath.Join(d, "foldyard"), nil
		}
		if !filepath.IsAbs(home) {
			return "", fmt.Errorf("neither %s nor HOME is an absolute path: set FOLDYARD_HOME", name)
		}
		return filepath.Join(home, fallback, "foldyard"), nil
	}
	l := Layout{RuntimeDir: runtime}
	var err [3]error
	l.ConfigDir, err[0] = xdg("XDG_CONFIG_HOME", ".config")
	l.StateDir, err[1] = xdg("XDG_STATE_HOME", ".local/state")
	l.CacheDir, err[2] = xdg("XDG_CACHE_HOME", ".cache")
	return l, errors.Join(err[:]...)
}

// Dirs returns the directories that are foldyard's own, each once. None of
// them may be seen by a box.
func (l Layout) Dirs() []string {
	dirs := []string{l.ConfigDir, l.StateDir, l.CacheDir}
	if l.FromHome {
		return dirs[:1]
	}
	return dirs
}

// OperatorConfig is the operator's own config.toml.
func (l Layout) OperatorConfig() string { return filepath.Join(l.ConfigDir, "config.toml") }

// CADir holds ca.pem and ca-key.pem.
func (l Layout) CADir() string { return filepath.Join(l.StateDir, "ca") }

// PortsFile holds the port bands of all projects.
func (l Layout) PortsFile() string { return filepath.Join(l.StateDir, "ports.json") }

// ProjectsDir holds one directory a project.
func (l Layout) ProjectsDir() string { return filepath.Join(l.StateDir, "projects") }

// Project returns the paths of the project called name, which need not exist.
func (l Layout) Project(name string) (Project, error) {
	if err := CheckName(name); err != nil {
		return Project{}, err
	}
	return Project{Name: name, Dir: filepath.Join(l.ProjectsDir(), name), layout: l}, nil
}

// Project is the directory of one project's state.
type Project struct {
	Name   string
	Dir    string
	layout Layout
}

// Layout returns the layout that the project belongs to.
func (p Project) Layout() Layout { return p.layout }

// The files and directories of a project, as CONTRACT.md lists them.

func (p Project) AdoptedDir() string { return filepath.Join(p.Dir, "adopted") }

func (p Project) AdoptedConfig() string   { return filepath.Join(p.Dir, "adopted", "foldyard.toml") }
func (p Project) AdoptedRecord() string   { return filepath.Join(p.Dir, "adopted", "adopted.json") }
func (p Project) Bound() string           { return filepath.Join(p.Dir, "bound.json") }
func (p Project) Grants() string          { return filepath.Join(p.Dir, "grants.json") }
func (p Project) Effective() string       { return filepath.Join(p.Dir, "allow-effective.json") }
func (p Project) Secrets() string         { return filepath.Join(p.Dir, "secrets.env") }
func (p Project) SecretBounds() string    { return filepath.Join(p.Dir, "secrets.json") }
func (p Project) BoxesDir() string        { return filepath.Join(p.Dir, "boxes") }
func (p Project) SupervisorLock() string  { return filepath.Join(p.Dir, "supervisor.lock") }
func (p Project) SupervisorLog() string   { return filepath.Join(p.Dir, "supervisor.log") }
func (p Project) LogDir() string          { return filepath.Join(p.Dir, "log") }
func (p Project) EvidenceDir() string     { return filepath.Join(p.Dir, "evidence") }
func (p Project) Home() string            { return filepath.Join(p.Dir, "home") }
func (p Project) HostFirewallDir() string { return filepath.Join(p.Dir, "host-firewall") }

// CacheDir is the project's part of the cache directory.
func (p Project) CacheDir() string { return filepath.Join(p.layout.CacheDir, "projects", p.Name) }

// ControlSocket is where the supervisor listens: in the project's directory,
// or under the runtime directory where that path would be too long to bind.
func (p Project) ControlSocket() string {
	return p.socket(filepath.Join(p.Dir, "control.sock"), "control.sock")
}

// BoxSocket is where the keeper of the box id listens.
func (p Project) BoxSocket(id string) string {
	return p.socket(filepath.Join(p.BoxesDir(), id+".sock"), id+".sock")
}

// BoxFile is the record of the box id.
func (p Project) BoxFile(id string) string { return filepath.Join(p.BoxesDir(), id+".json") }

func (p Project) socket(path, base string) string {
	if len(path) <= maxSocketPath {
		return path
	}
	sum := sha256.Sum256([]byte(p.Dir))
	return filepath.Join(p.layout.RuntimeDir, hex.EncodeToString(sum[:6])+"-"+base)
}

// Ensure makes the directories that a running project needs, 0700, and refuses
// one that is someone else's or open to others.
func (p Project) Ensure() error {
	dirs := []string{p.layout.StateDir, p.layout.ProjectsDir(), p.Dir, p.AdoptedDir(), p.BoxesDir(), p.LogDir(), p.EvidenceDir()}
	for _, s := range []string{p.ControlSocket(), p.BoxSocket("0123456789abcdef")} {
		if filepath.Dir(s) == p.layout.RuntimeDir {
			dirs = append(dirs, p.layout.RuntimeDir)
			break
		}
	}
	for _, d := range dirs {
		if err := EnsureDir(d); err != nil {
			return err
		}
	}
	return nil
}
