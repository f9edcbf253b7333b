package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"foldyard/internal/host/state"
)

func (w *world) mkdir(path string) string {
	w.t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(w.dir), path)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func TestDiscover(t *testing.T) {
	w := newWorld(t)
	root := filepath.Dir(w.dir)
	w.mkdir("repo/a/b")
	w.mkdir("gitted/.git")
	w.mkdir("gitted/sub/x")
	w.mkdir("plain/x")
	w.repo("")
	if err := os.Symlink(w.dir, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for cwd, want := range map[string]string{
		"repo": "repo", "repo/a/b": "repo", "gitted/sub/x": "gitted", "plain/x": "plain/x", "link/a": "repo",
		"home/proj": "home/proj",
	} {
		w.mkdir("home/proj")
		got, err := w.Discover(filepath.Join(root, cwd))
		if err != nil || got != filepath.Join(root, want) {
			t.Errorf("from %s: %s, %v; want %s", cwd, got, err, want)
		}
	}
}

func TestDiscoverRefuses(t *testing.T) {
	w := newWorld(t)
	w.mkdir("home/.git") // dotfiles under version control
	for cwd, why := range map[string]string{
		"/":                                  "root of the file system",
		"/tmp":                               "/tmp itself",
		"/usr":                               "/usr itself",
		w.env["HOME"]:                        "it is your home directory",
		w.mkdir("home/below"):                "it is your home directory",
		filepath.Dir(w.env["HOME"]):          "home directory",
		w.Layout.StateDir:                    "foldyard's own directory",
		w.mkdir("state/projects/acc/home/x"): "foldyard's own directory",
	} {
		_, err := w.Discover(cwd)
		if r, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(r.Why, why) {
			t.Errorf("%s: err = %v, want a refusal with %q", cwd, err, why)
		}
	}
	if _, err := w.Discover(w.dir); err != nil {
		t.Errorf("control: %v", err)
	}
}

func TestDiscoverRefusesWhatIsSomeoneElses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	w := newWorld(t)
	if err := os.Chmod(filepath.Dir(w.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(w.dir, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Discover(w.dir); err == nil || !strings.Contains(err.Error(), "someone else") {
		t.Errorf("err = %v", err)
	}
	w.env["SUDO_UID"] = "12345" // they called sudo themselves
	if _, err := w.Discover(w.dir); err != nil {
		t.Errorf("under sudo: %v", err)
	}
	// A marker in someone else's directory makes no project of it.
	delete(w.env, "SUDO_UID")
	w.mkdir("repo/.git")
	mine := w.mkdir("repo/mine")
	if got, err := w.Discover(mine); err != nil || got != mine {
		t.Errorf("below: %s, %v", got, err)
	}
}

func TestHomeInsideProjectIsRefused(t *testing.T) {
	w := newWorld(t)
	w.repo("")
	w.env["FOLDYARD_HOME"] = filepath.Join(w.dir, ".fy") // need not exist
	w.Host = w.host("linux")
	for _, cwd := range []string{w.dir, w.mkdir("elsewhere")} {
		if _, err := w.Discover(cwd); err == nil || !strings.Contains(err.Error(), "FOLDYARD_HOME") {
			t.Errorf("from %s: err = %v", cwd, err)
		}
	}
	// By way of a symbolic link too.
	link := filepath.Join(filepath.Dir(w.dir), "fyhome")
	if err := os.Symlink(filepath.Join(w.dir, ".fy2"), link); err != nil {
		t.Fatal(err)
	}
	w.mkdir("repo/.fy2")
	w.env["FOLDYARD_HOME"] = link
	w.Host = w.host("linux")
	if _, err := w.Discover(w.dir); err == nil {
		t.Error("a symbolic link hid it")
	}
	// Dotfiles in the home directory make no project of it.
	w.mkdir("home/.git")
	w.env["FOLDYARD_HOME"] = filepath.Join(w.env["HOME"], ".foldyard")
	w.Host = w.host("linux")
	if _, err := w.Discover(w.dir); err != nil {
		t.Errorf("control: %v", err)
	}
}

func TestUnadoptedNeverSelectsAnothersState(t *testing.T) {
	w := newWorld(t)
	w.repo("[project]\nname = \"victim\"\n")
	c := w.resolve()
	if c.Adopted || c.Project.Name == "victim" || !strings.HasPrefix(c.Project.Name, "repo-") || c.Notice == "" {
		t.Errorf("checkout = %+v", c)
	}
	e, err := w.Load(c)
	if err != nil || e.Project.Name != c.Project.Name {
		t.Errorf("%+v, %v", e.Project, err)
	}
}

func TestNameBoundElsewhere(t *testing.T) {
	w := newWorld(t)
	const text = "[project]\nname = \"acc\"\n"
	w.repo(text)
	first := w.adopt()
	if first.Project.Name != "acc" || w.resolve().Project.Name != "acc" {
		t.Fatalf("adopted as %+v", first)
	}
	other := w.mkdir("other")
	w.write(filepath.Join(other, FileName), text)
	c, err := w.Resolve(other)
	if err != nil || c.Project.Name == "acc" {
		t.Fatalf("%+v, %v", c, err)
	}
	p, err := w.Propose(c)
	if err != nil || p.BoundTo != w.dir {
		t.Fatalf("bound to %q, %v", p.BoundTo, err)
	}
	if _, err := p.Adopt(noon, false); err == nil || !strings.Contains(err.Error(), w.dir) {
		t.Errorf("err = %v, want one that names %s", err, w.dir)
	}
	if got := w.resolve(); got.Project.Name != "acc" || !got.Adopted {
		t.Errorf("the first lost it: %+v", got)
	}
	if _, err := p.Adopt(noon, true); err != nil {
		t.Fatalf("move: %v", err)
	}
	if c, err = w.Resolve(other); err != nil || c.Project.Name != "acc" {
		t.Errorf("after the move: %+v, %v", c, err)
	}
	if got := w.resolve(); got.Project.Name == "acc" || got.Adopted {
		t.Errorf("the first still has it: %+v", got)
	}
}

// The default name of an unadopted checkout is bound too, so that a name in
// another's file cannot aim at its state.
func TestDefaultNameIsBound(t *testing.T) {
	w := newWorld(t)
	c := w.resolve()
	if err := w.Prepare(c, noon); err != nil {
		t.Fatal(err)
	}
	other := w.mkdir("other")
	w.write(filepath.Join(other, FileName), "[project]\nname = \""+c.Project.Name+"\"\n")
	oc, err := w.Resolve(other)
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.Propose(oc)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*state.BoundElsewhereError](func() error { _, err := p.Adopt(noon, false); return err }()); !ok {
		t.Error("adopted another's default name")
	}
}

func TestAdoptStoresExactlyWhatWasRead(t *testing.T) {
	w := newWorld(t)
	w.repo("[proxy]\nenforce = true\n")
	p, err := w.Propose(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	w.repo("[proxy]\npassthrough = [\"evil.test\"]\n") // between showing and yes
	c, err := p.Adopt(noon, false)
	if err != nil {
		t.Fatal(err)
	}
	e, err := w.Load(c)
	if err != nil || len(e.Tunnels) != 0 || !e.Adopted {
		t.Errorf("tunnels %v, adopted %v, %v", e.Tunnels, e.Adopted, err)
	}
	d, err := w.Drift(c)
	if err != nil || !d.Different || !strings.Contains(d.Diff, "+passthrough") {
		t.Errorf("drift = %+v, %v", d, err)
	}
}

func TestAdoptNeverTakesABadFile(t *testing.T) {
	w := newWorld(t)
	w.repo("[proxy]\nenforce = true\n")
	c := w.adopt()
	w.repo("[proxy]\nenforce = maybe\n")
	if _, err := w.Propose(c); err == nil {
		t.Error("a bad file was proposed")
	}
	if e, err := w.Load(c); err != nil || !e.Adopted {
		t.Errorf("control: %v", err)
	}
}

func TestDriftAndRevert(t *testing.T) {
	w := newWorld(t)
	if d, err := w.Drift(w.resolve()); err != nil || d.Different {
		t.Errorf("nothing at all: %+v, %v", d, err)
	}
	w.repo("a = 1\n")
	if d, err := w.Drift(w.resolve()); err != nil || !d.Different {
		t.Errorf("never adopted: %+v, %v", d, err)
	}
	if _, err := w.Revert(w.resolve(), noon); !errors.Is(err, ErrNotAdopted) {
		t.Errorf("revert without a copy: %v", err)
	}
	w.repo("[box]\n")
	c := w.adopt()
	if d, err := w.Drift(c); err != nil || d.Different || !d.Adopted || !d.Exists {
		t.Errorf("just adopted: %+v, %v", d, err)
	}
	w.repo("[box]\nroot = true\n")
	kept, err := w.Revert(c, noon)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(kept); err != nil || string(got) != "[box]\nroot = true\n" {
		t.Errorf("kept %q, %v", got, err)
	}
	if got, err := ReadRepo(w.dir); err != nil || string(got) != "[box]\n" {
		t.Errorf("reverted to %q, %v", got, err)
	}
	if err := os.Remove(filepath.Join(w.dir, FileName)); err != nil {
		t.Fatal(err)
	}
	if d, err := w.Drift(c); err != nil || !d.Different || d.Exists {
		t.Errorf("removed: %+v, %v", d, err)
	}
	if _, err := w.Revert(c, noon); err != nil {
		t.Fatal(err)
	}
	if d, err := w.Drift(c); err != nil || d.Different {
		t.Errorf("put back: %+v, %v", d, err)
	}
}

func TestDamagedAdoptionRefuses(t *testing.T) {
	w := newWorld(t)
	w.repo("[box]\n")
	c := w.adopt()
	if _, err := w.Load(c); err != nil {
		t.Fatalf("control: %v", err)
	}
	for path, text := range map[string]string{
		c.Project.AdoptedConfig(): "[proxy]\nenforce = false\n",
		c.Project.AdoptedRecord(): `{"version":1`,
	} {
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w.write(path, text)
		_, err = w.Load(c)
		if d, ok := errors.AsType[*state.DamagedError](err); !ok || d.Path != path {
			t.Errorf("err = %v, want one that names %s", err, path)
		}
		if got, _ := os.ReadFile(path); string(got) != text {
			t.Errorf("%s was overwritten", path)
		}
		w.write(path, string(old))
	}
}

// A crash between the writes of an adoption leaves one of the two whole.
func TestAdoptionSurvivesACrash(t *testing.T) {
	w := newWorld(t)
	w.repo("[box]\n")
	c := w.adopt()
	data := []byte("[box]\nroot = true\n")
	r := Record{Version: recordVersion, When: noon, Path: w.dir, SHA256: digest(data)}
	// Only the next copy is written: the old adoption holds.
	if err := state.WriteAtomic(nextCopy(c.Project, r.SHA256), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := w.Load(c); err != nil || e.Box.Root {
		t.Errorf("root = %v, %v", e.Box.Root, err)
	}
	// The record too, but not yet the copy under its usual name.
	if err := storeAdopted(c.Project, r, data); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.Project.AdoptedConfig(), nextCopy(c.Project, r.SHA256)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Project.AdoptedConfig(), []byte("[box]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := w.Load(c); err != nil || !e.Box.Root {
		t.Errorf("after the record: %v", err)
	}
}

// CASES A40: what a box planted is neither followed nor written through.
func TestPlantedFiles(t *testing.T) {
	w := newWorld(t)
	secret := filepath.Join(filepath.Dir(w.dir), "secret")
	w.write(secret, "[box]\n")
	path := filepath.Join(w.dir, FileName)
	plant := map[string]func() error{
		"symlink":           func() error { return os.Symlink(secret, path) },
		"symlink, relative": func() error { return os.Symlink("../secret", path) },
		"dangling":          func() error { return os.Symlink("nowhere", path) },
		"fifo":              func() error { return syscall.Mkfifo(path, 0o600) },
		"directory":         func() error { return os.Mkdir(path, 0o755) },
		"too big":           func() error { return os.WriteFile(path, make([]byte, MaxFile+1), 0o600) },
	}
	for name, f := range plant {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRepo(w.dir); err == nil {
			t.Errorf("%s: read", name)
		}
		if _, err := w.Propose(w.resolve()); err == nil {
			t.Errorf("%s: proposed", name)
		}
		if _, err := Init(w.dir, false); err == nil {
			t.Errorf("%s: init wrote over it", name)
		}
		if name != "directory" {
			if _, err := Init(w.dir, true); err != nil {
				t.Errorf("%s: init --force: %v", name, err)
			}
			if got, err := os.ReadFile(secret); err != nil || string(got) != "[box]\n" {
				t.Errorf("%s: written through: %q", name, got)
			}
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	w.repo("[box]\n")
	if _, err := ReadRepo(w.dir); err != nil {
		t.Errorf("control: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(w.dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInitIsValid(t *testing.T) {
	w := newWorld(t)
	path, err := Init(w.dir, false)
	if err != nil {
		t.Fatal(err)
	}
	e, err := w.Check(w.resolve())
	if err != nil || e.Project.Name != "repo" || len(e.Warnings) > 0 {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := Init(w.dir, false); !errors.Is(err, os.ErrExist) {
		t.Errorf("again: %v", err)
	}
	// Each setting that is only shown must be right when it is switched on.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var on strings.Builder
	for line := range strings.Lines(string(data)) {
		if s, ok := strings.CutPrefix(line, "# "); ok && (strings.Contains(s, " = ") || strings.HasPrefix(s, "[[")) {
			line = s
		}
		on.WriteString(line)
	}
	w.repo(strings.NewReplacer(`"namespace"`, `"lima"`, "@npm", "b.test").Replace(on.String()))
	if _, err := w.Check(w.resolve()); err != nil {
		t.Errorf("everything on: %v\n%s", err, on.String())
	}
}

func TestWidenings(t *testing.T) {
	w := newWorld(t)
	w.repo("[box]\nports = [\"3000\"]\n")
	w.adopt()
	w.repo(`
[box]
ports = ["3000", "4000"]
nested = true
[proxy]
enforce = false
recommend = [{ host = "r.test", why = "\u001b[2Jx" }]
passthrough = ["t.test"]
[[inject]]
name = "github"
hosts = ["evil.test"]
`)
	p, err := w.Propose(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(p.Widenings, "\n")
	for _, want := range []string{"127.0.0.1:4000:4000", "nested", "allowlist off", "r.test", "t.test", "github → evil.test"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not told in\n%s", want, got)
		}
	}
	if strings.Contains(got, "3000") || strings.Contains(got, "\x1b") {
		t.Errorf("told:\n%s", got)
	}
	c, err := p.Adopt(noon, false)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = w.Propose(c); err != nil || len(p.Widenings) > 0 || !p.Same {
		t.Errorf("again: %v, %v", p.Widenings, err)
	}
}

// What is shown before a yes must not be able to hide anything.
func TestTextIsEscaped(t *testing.T) {
	w := newWorld(t)
	w.repo("# a\x1b[2Jb\rc\u202ed\u0430\n")
	if p, err := w.Propose(w.resolve()); err == nil {
		t.Errorf("control bytes are no TOML, but: %q", p.Text())
	}
	w.repo("# c\u202ed\u0430\u009b\n[box]\n")
	p, err := w.Propose(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Text(), "# c\\u202ed\\u0430\\x9b\n[box]\n"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

func TestOperatorFileModes(t *testing.T) {
	w := newWorld(t)
	w.operator("[log]\nkeep = 3\n")
	if e, err := w.Load(w.resolve()); err != nil || e.Log.Keep != 3 {
		t.Fatalf("control: %v", err)
	}
	if err := os.Chmod(w.Layout.OperatorConfig(), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Load(w.resolve()); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a config.toml that anybody may write: %v", err)
	}
}
