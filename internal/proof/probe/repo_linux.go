package probe

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

type repoSecret struct{ path, what string }

// Bounds of a scan: it looks where credentials usually lie, and warns; it is
// no secret scanner.
const (
	scanDirs  = 4000
	scanDepth = 6
	scanBytes = 256 << 10
)

// pattern is compiled when it is first needed: this package is linked into programs that start often and scan nothing.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// Patterns match a line that holds a credential's value, not a reference to one.
var (
	extraHeader = pattern(`(?im)^\s*extraheader\s*=\s*"?authorization:`)
	userInfo    = pattern(`(?im)^\s*(?:url|pushurl|proxy)\s*=\s*"?[a-z+]+://[^/\s@]*:[^/\s@]+@|^\s*(?:url|pushurl)\s*=\s*"?https?://[^/\s@:]{16,}@`)
	npmToken    = pattern(`(?m)(?:_authToken|_auth|_password)\s*=\s*"?[^\s"$]{8,}`)
	netrc       = pattern(`(?m)\bpassword\s+\S{4,}`)
	pypirc      = pattern(`(?im)^\s*password\s*[=:]\s*\S{4,}`)
	credentials = pattern(`(?m)^[a-z+]+://[^/\s@]+@`)
	envLine     = pattern(`(?m)^\s*(?:export\s+)?[A-Za-z0-9_]*(?i:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)[A-Za-z0-9_]*\s*=\s*["']?([^\s"'#]{8,})`)
	placeholder = pattern(`(?i)dummy|example|change.?me|your[-_ ]|xxx|<|\$\{|\$\(|placeholder|todo|fixme|test`)
	privateKey  = pattern(`-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----`)
)

// scanRepo returns the files of a repo that hold a credential.
func scanRepo(ctx context.Context, repo string) []repoSecret {
	s := &scan{ctx: ctx}
	s.dir(repo, 0)
	return s.found
}

type scan struct {
	ctx   context.Context //nolint:containedctx // for the one call that makes it
	dirs  int
	found []repoSecret
}

func (s *scan) dir(path string, depth int) {
	if s.dirs++; s.dirs > scanDirs || depth > scanDepth || len(s.found) > 200 || s.ctx.Err() != nil {
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return
	}
	inGit := filepath.Base(path) == ".git"
	for _, e := range entries {
		full := filepath.Join(path, e.Name())
		switch {
		case e.IsDir():
			if e.Name() == "node_modules" || inGit && e.Name() != "modules" && e.Name() != "worktrees" {
				continue
			}
			s.dir(full, depth+1)
		case e.Type().IsRegular():
			s.file(full, e.Name())
		}
	}
}

func (s *scan) file(path, name string) {
	look := lookFor(name)
	if look == nil {
		return
	}
	data, err := readSome(path, scanBytes)
	if err != nil {
		return
	}
	if what := look(data); what != "" {
		s.found = append(s.found, repoSecret{path, what})
	}
}

// lookFor returns what to look for in a file of that name; nil is nothing.
func lookFor(name string) func([]byte) string {
	match := func(re *regexp.Regexp, what string) func([]byte) string {
		return func(b []byte) string {
			if re.Match(b) {
				return what
			}
			return ""
		}
	}
	lower := strings.ToLower(name)
	ext := filepath.Ext(lower)
	switch {
	case lower == "config", lower == "config.worktree", lower == ".gitmodules", lower == ".gitconfig":
		return func(b []byte) string {
			switch {
			case extraHeader().Match(b):
				return "an Authorization header"
			case userInfo().Match(b):
				return "a password in a URL"
			}
			return ""
		}
	case lower == ".npmrc", lower == ".yarnrc":
		return match(npmToken(), "a registry token")
	case lower == ".netrc", lower == "_netrc":
		return match(netrc(), "a password")
	case lower == ".pypirc":
		return match(pypirc(), "a password")
	case lower == ".git-credentials":
		return match(credentials(), "a password in a URL")
	case lower == ".env" || strings.HasPrefix(lower, ".env.") && ext != ".example" && ext != ".sample" && ext != ".template" && ext != ".dist":
		return envSecret
	case strings.HasPrefix(lower, "id_") && ext == "", ext == ".pem", ext == ".key", ext == ".p8":
		return match(privateKey(), "a private key")
	}
	return nil
}

func envSecret(b []byte) string {
	for _, m := range envLine().FindAllSubmatch(b, 64) {
		if !placeholder().Match(m[1]) && !bytes.HasPrefix(m[1], []byte("$")) {
			return "a secret-looking value"
		}
	}
	return ""
}
