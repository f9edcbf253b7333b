package namespace

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// hooks makes the directory read-only that core.hooksPath names, if it lies in the repo: git on the host executes what is in there. It
// is made if it is missing, so that a box cannot make it. Configuration that .git/config includes, and the user's own, are not read.
func (g *guard) hooks(repo string, open func(string) bool) {
	text := g.Config(".git")
	for _, p := range includedPaths(text, repo) {
		if open(p) {
			continue
		}
		// A missing one is made, empty, for as long as the box lives: else the box would make it.
		if g.make(path.Dir(p)) {
			g.mark(path.Dir(p), path.Base(p), "")
		}
		g.readOnly(p)
	}
	for _, p := range hooksPaths(text, repo) {
		if open(p) {
			continue
		}
		if !g.make(p) {
			g.links = append(g.links, p)
			continue
		}
		g.readOnly(p)
	}
}

// make makes the directory p and its parents, following no link, and reports whether something is there now.
func (g *guard) make(p string) bool {
	for i := range len(p) + 1 {
		if i < len(p) && p[i] != '/' {
			continue
		}
		dir, err := openBelow(g.repo, path.Dir(p[:i]), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err != nil {
			return false
		}
		err = unix.Mkdirat(dir, path.Base(p[:i]), 0o755)
		unix.Close(dir)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return false
		}
	}
	return true
}
