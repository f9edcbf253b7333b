package supervisor

import (
	"path/filepath"
	"strings"
	"testing"

	"foldyard/internal/host/state"
)

// A box leaves a wheel for pip, which the next box of the project would install unread: what was built is no part of the caches.
func TestCachesHoldNothingBuilt(t *testing.T) {
	layout, err := state.NewLayout(func(k string) string { return map[string]string{"FOLDYARD_HOME": t.TempDir()}[k] })
	if err != nil {
		t.Fatal(err)
	}
	project, err := layout.Project("p")
	if err != nil {
		t.Fatal(err)
	}
	const home = "/home/box"
	list, err := caches(project, home)
	if err != nil {
		t.Fatal(err)
	}
	covered := func(path string) bool {
		for _, b := range list {
			if rest, ok := strings.CutPrefix(filepath.Join(home, path), b.Target); ok && (rest == "" || rest[0] == '/') {
				return true
			}
		}
		return false
	}
	for _, path := range []string{".cache/pip/wheels", ".cache/pip/selfcheck", ".npm/_npx", "go/pkg/mod/a.test@v1.0.0", ".cargo/registry/src", ".cargo/bin", ".cache/go-build"} {
		if covered(path) {
			t.Errorf("%s is shared", path)
		}
	}
	for _, path := range []string{".cache/pip/http-v2/a", ".cache/pip/http/a", ".npm/_cacache/content-v2", "go/pkg/mod/cache/download/a.test", ".cargo/registry/cache/a"} { // control
		if !covered(path) {
			t.Errorf("%s is not shared", path)
		}
	}
}
