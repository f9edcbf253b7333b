package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A file that the operator names may lie where a box writes: a link that waits there is replaced, not followed, and a write that
// fails leaves what was there.
func TestNamedFileIsMadeNew(t *testing.T) {
	dir := t.TempDir()
	precious, out := filepath.Join(dir, "precious"), filepath.Join(dir, "out.har")
	if err := errors.Join(os.WriteFile(precious, []byte("mine"), 0o600), os.Symlink(precious, out)); err != nil {
		t.Fatal(err)
	}
	a := &app{Env: Env{Dir: dir}}
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	if err := a.writeNew(dir, "out.har", text("export")); err != nil {
		t.Fatal(err)
	}
	if err := a.writeNew(dir, "out.har", func(io.Writer) error { return errors.New("half way") }); err == nil {
		t.Error("a failed write is no error")
	}
	for path, want := range map[string]string{precious: "mine", out: "export"} {
		if b, err := os.ReadFile(path); string(b) != want {
			t.Errorf("%s holds %q %v, want %q", filepath.Base(path), b, err, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".fy-*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A box makes a directory of the repo a link to one of the operator's, where the file then would be written under the name they chose.
func TestNamedFileIsNotLedOutOfTheProject(t *testing.T) {
	top := t.TempDir()
	project, outside := filepath.Join(top, "repo"), filepath.Join(top, "outside")
	if err := errors.Join(os.MkdirAll(filepath.Join(project, "real", "deep"), 0o755), os.Mkdir(outside, 0o755),
		os.Symlink(outside, filepath.Join(project, "out")), os.Symlink("../../outside", filepath.Join(project, "real", "up")),
		os.Symlink("real", filepath.Join(project, "within")), os.Symlink(project, filepath.Join(top, "alias"))); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		dir, path string
		ok        bool
	}{
		{project, "out/x.har", false},
		{project, "real/up/x.har", false},
		{project, "within/x.har", false},
		{filepath.Join(project, "out"), "x.har", false},
		{filepath.Join(top, "alias", "out"), "x.har", false},
		{project, filepath.Join(top, "alias", "out", "x.har"), false},
		{project, "none/x.har", false},
		{project, "real/deep/x.har", true},
		{project, "x.har", true},
		{filepath.Join(project, "real"), "../y.har", true},
		{filepath.Join(top, "alias", "real"), "x.har", true},
		{project, filepath.Join(outside, "z.har"), true}, // the operator says so
	} {
		a := &app{Env: Env{Dir: row.dir}}
		err := a.writeNew(project, row.path, func(w io.Writer) error { _, err := io.WriteString(w, "export"); return err })
		if (err == nil) != row.ok {
			t.Errorf("%s from %s: %v", row.path, row.dir, err)
		}
	}
	if names, _ := os.ReadDir(outside); len(names) != 1 || names[0].Name() != "z.har" {
		t.Errorf("led there: %v", names)
	}
}
