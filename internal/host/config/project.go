package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/host/state"
)

// Host is what this package must know of the operator's computer.
type Host struct {
	Layout state.Layout
	Getenv func(string) string
	GOOS   string
}

// RefusedError says why a directory cannot be a project.
type RefusedError struct{ Dir, Why string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s cannot be a project: %s", quotePath(e.Dir), e.Why)
}

// quotePath leaves a plain path as it is and escapes any other.
func quotePath(p string) string {
	if q := strconv.QuoteToASCII(p); q[1:len(q)-1] != p || strings.Contains(p, " ") {
		return q
	}
	return p
}

// Discover returns the project directory of someone who stands in cwd: the
// nearest directory from cwd upwards that holds foldyard.toml or .git and
// belongs to the caller, else cwd. The result is absolute and without symbolic
// links. A directory that may not be a project is a *RefusedError.
func (h Host) Discover(cwd string) (string, error) {
	dir, err := filepath.Abs(cwd)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	if err := h.checkHome(); err != nil {
		return "", err
	}
	project := dir
	for d := dir; ; d = filepath.Dir(d) {
		if marked(d) && h.mine(d) {
			project = d
			break
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	return project, h.refuse(project)
}

// marked reports whether d holds what makes a directory a project.
func marked(d string) bool {
	for _, name := range []string{FileName, ".git"} {
		if _, err := os.Lstat(filepath.Join(d, name)); err == nil {
			return true
		}
	}
	return false
}

// mine reports whether d belongs to the caller; to root's that is also whoever
// called sudo.
func (h Host) mine(d string) bool {
	info, err := os.Stat(d)
	if err != nil {
		return false
	}
	uid, _, ok := state.Owner(info)
	if !ok {
		return false
	}
	euid := os.Geteuid()
	if int64(uid) == int64(euid) {
		return true
	}
	sudo := h.Getenv("SUDO_UID")
	return euid == 0 && sudo != "" && sudo == strconv.FormatUint(uint64(uid), 10)
}

// systemDirs are never a project: what a box writes there, the host runs.
var systemDirs = []string{
	"/tmp", "/var/tmp", "/dev/shm", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/mnt", "/media", "/opt", "/proc", "/root", "/run",
	"/sbin", "/srv", "/sys", "/usr", "/usr/local", "/var", "/Applications", "/Library", "/System", "/Users", "/Volumes", "/private",
}

func (h Host) refuse(dir string) error {
	no := func(format string, args ...any) error { return &RefusedError{dir, fmt.Sprintf(format, args...)} }
	if dir == string(filepath.Separator) {
		return no("it is the root of the file system")
	}
	for _, d := range systemDirs {
		if same(dir, d) {
			return no("it is %s itself: make a directory below it", d)
		}
	}
	for _, home := range h.homes() {
		switch {
		case same(dir, home):
			return no("it is your home directory, and a box would see all of it: make a directory below it")
		case within(home, dir):
			return no("your home directory %s lies in it", quotePath(home))
		}
	}
	for _, own := range h.ownDirs() {
		switch {
		case same(dir, own) || within(dir, own):
			return no("it lies in foldyard's own directory %s", quotePath(own))
		case within(own, dir):
			return no("foldyard's own directory %s lies in it, where a box could write it: move %s elsewhere", quotePath(own), h.homeVariable())
		}
	}
	if strings.ContainsFunc(dir, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return no("its path holds control characters or is not UTF-8")
	}
	if !h.mine(dir) {
		return no("it belongs to someone else")
	}
	return nil
}

func (h Host) homeVariable() string {
	if h.Layout.FromHome {
		return "FOLDYARD_HOME"
	}
	return "it"
}

// checkHome refuses a FOLDYARD_HOME that lies in some project, whichever one
// the caller stands in: a box of that project could write it.
func (h Host) checkHome() error {
	if !h.Layout.FromHome {
		return nil
	}
	own := resolve(h.Layout.StateDir)
	for d := filepath.Dir(own); d != filepath.Dir(d); d = filepath.Dir(d) {
		if marked(d) && h.mine(d) && !h.never(d) {
			return fmt.Errorf("FOLDYARD_HOME %s lies inside the project %s, where a box could write it: put it elsewhere", quotePath(h.Layout.StateDir), quotePath(d))
		}
	}
	return nil
}

// never reports whether d could not be a project for a reason that does not
// depend on FOLDYARD_HOME.
func (h Host) never(d string) bool {
	return slices.ContainsFunc(systemDirs, func(s string) bool { return same(d, s) }) ||
		slices.ContainsFunc(h.homes(), func(home string) bool { return same(d, home) || within(home, d) })
}

// homes returns the caller's home directories: what HOME says and what the
// user database says, without symbolic links.
func (h Host) homes() []string {
	var homes []string
	add := func(d string) {
		if filepath.IsAbs(d) && filepath.Clean(d) != "/" {
			homes = append(homes, resolve(d))
		}
	}
	add(h.Getenv("HOME"))
	if u, err := user.Current(); err == nil {
		add(u.HomeDir)
	}
	slices.Sort(homes)
	return slices.Compact(homes)
}

func (h Host) ownDirs() []string {
	var dirs []string
	for _, d := range h.Layout.Dirs() {
		dirs = append(dirs, resolve(d))
	}
	return dirs
}

// resolve removes symbolic links from as much of path as exists.
func resolve(path string) string {
	path = filepath.Clean(path)
	for rest := ""; ; {
		if found, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Join(found, rest)
		}
		parent := filepath.Dir(path)
		if parent == path {
			return filepath.Join(path, rest)
		}
		path, rest = parent, filepath.Join(filepath.Base(path), rest)
	}
}

// within reports whether path lies below dir. Both are clean.
func within(path, dir string) bool {
	if dir == string(filepath.Separator) {
		return path != dir
	}
	if strings.HasPrefix(path, dir+string(filepath.Separator)) {
		return true
	}
	for d := filepath.Dir(path); d != filepath.Dir(d); d = filepath.Dir(d) { // other spellings of the same directory
		if same(d, dir) {
			return true
		}
	}
	return false
}

// same reports whether two paths are one directory, however they are spelled.
func same(a, b string) bool {
	if a == b {
		return true
	}
	ia, err := os.Stat(a)
	if err != nil {
		return false
	}
	ib, err := os.Stat(b)
	return err == nil && os.SameFile(ia, ib)
}

// Checkout is a project directory and the state that belongs to it.
type Checkout struct {
	Dir     string
	Project state.Project
	// Adopted is true when its foldyard.toml was adopted once.
	Adopted bool
	// Notice, when not empty, is a line for stderr: what the safe defaults are
	// there for.
	Notice string
}

// Resolve finds the state that belongs to the project directory dir. The name
// in a file that a box can write is never asked: it is the name that was
// adopted for this path, else one from the directory plus a hash of its path.
func (h Host) Resolve(dir string) (Checkout, error) {
	p, found, err := h.Layout.FindByPath(dir)
	if err != nil {
		return Checkout{}, err
	}
	if !found {
		if p, err = h.Layout.Project(defaultName(dir)); err != nil {
			return Checkout{}, err
		}
		if err := h.Layout.CheckBind(p.Name, dir); err != nil {
			return Checkout{}, err
		}
	}
	c := Checkout{Dir: dir, Project: p}
	_, c.Adopted, err = readAdopted(p)
	if err != nil {
		return Checkout{}, err
	}
	if !c.Adopted {
		c.Notice = fmt.Sprintf("no adopted %s: safe defaults, project %s", FileName, p.Name)
		if _, err := ReadRepo(dir); err == nil {
			c.Notice = fmt.Sprintf("%s is not adopted (`fy config adopt`): safe defaults, project %s", FileName, p.Name)
		}
	}
	return c, nil
}

// Prepare makes the state directories of c and binds its name to its path, so
// that no other checkout can take it. It is called before anything is started.
func (h Host) Prepare(c Checkout, now time.Time) error {
	_, err := h.Layout.Bind(c.Project.Name, c.Dir, now, false)
	return err
}

// defaultName is the name of a project that adopted none.
func defaultName(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return cleanName(filepath.Base(dir)) + "-" + hex.EncodeToString(sum[:4])
}

// cleanName makes a project name of a directory's name.
func cleanName(base string) string {
	const most = 40
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, base)
	name = strings.TrimLeft(name[:min(len(name), most)], "._-")
	if name == "" {
		return "project"
	}
	return name
}
