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
	if err := a.writeNew("out.har", text("export")); err != nil {
		t.Fatal(err)
	}
	if err := a.writeNew("out.har", func(io.Writer) error { return errors.New("half way") }); err == nil {
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
