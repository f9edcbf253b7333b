package namespace

import (
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
)

// MaxGitConfig bounds what is read of a repo's .git/config, in bytes.
const MaxGitConfig = 1 << 20

// LeftOpen tells whether p, a path in the repo, is one that [box] writable of config.toml leaves open to the box, or lies below one.
func LeftOpen(writable []string, p string) bool {
	return slices.ContainsFunc(writable, func(w string) bool { return under(p, path.Clean(w)) })
}

// LedBy says where the text of a repository's .git/config leads git in repo: to files that it includes, and to directories whose
// programs it executes. Both are paths in repo.
func LedBy(text, repo string) (files, dirs []string) {
	return includedPaths(text, repo), hooksPaths(text, repo)
}

// hooksPaths finds every core.hooksPath in the text of a git configuration (git-config(1)) that lies in repo, as a path in it. A relative
// one is relative to the work tree.
func hooksPaths(text, repo string) []string {
	var out []string
	for s := range settings(text) {
		if s.section != "core" || !strings.EqualFold(s.key, "hooksPath") {
			continue
		}
		if p, ok := inRepo(s.value, ".", repo); ok && p != "." && !under(p, ".git/hooks") {
			out = append(out, p)
		}
	}
	return out
}

// includedPaths finds the files that a git configuration includes (include.path, includeIf.*.path) and that lie in repo. A relative one
// is relative to the configuration.
func includedPaths(text, repo string) []string {
	var out []string
	for s := range settings(text) {
		if s.section != "include" && !strings.HasPrefix(s.section, "includeif") || !strings.EqualFold(s.key, "path") {
			continue
		}
		if p, ok := inRepo(s.value, ".git", repo); ok && p != "." {
			out = append(out, p)
		}
	}
	return out
}

// Submodules are the names of the submodules that the text of a git configuration tells of (git-config(1)). Each is a path below modules in
// the git directory.
func Submodules(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		const section = "submodule"
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "[")
		if !ok || len(line) < len(section) || !strings.EqualFold(line[:len(section)], section) {
			continue
		}
		name, ok := quotedName(strings.TrimSpace(line[len(section):]))
		if ok && name != "." && fs.ValidPath(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// quotedName reads the name in quotes that s begins with. A backslash stands for what follows it.
func quotedName(s string) (string, bool) {
	var b strings.Builder
	for i := 1; i < len(s) && s[0] == '"'; i++ {
		switch {
		case s[i] == '"':
			return b.String(), true
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", false
}

// inRepo returns p, which is relative to dir of the repo or absolute, as a path in the repo.
func inRepo(p, dir, repo string) (string, bool) {
	if strings.HasPrefix(p, "~") || p == "" {
		return "", false
	}
	if path.IsAbs(p) {
		if p = path.Clean(p); !under(p, repo) {
			return "", false
		}
		p = strings.TrimPrefix(strings.TrimPrefix(p, repo), "/")
	} else {
		p = path.Join(dir, p)
	}
	p = path.Clean(p)
	return p, p != ".." && !strings.HasPrefix(p, "../")
}

// setting is one line of a git configuration. The section is in lower case.
type setting struct{ section, key, value string }

func settings(text string) iter.Seq[setting] {
	return func(yield func(setting) bool) {
		section := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "[") {
				head, rest, ok := strings.Cut(line[1:], "]")
				if !ok {
					continue
				}
				section, line = strings.ToLower(strings.TrimSpace(head)), strings.TrimSpace(rest)
			}
			if key, value, ok := strings.Cut(line, "="); ok && !yield(setting{section, strings.TrimSpace(key), gitValue(value)}) {
				return
			}
		}
	}
}

// gitValue reads a value: quotes and backslashes are undone, and a comment ends it.
func gitValue(s string) string {
	var b strings.Builder
	quoted := false
	s = strings.TrimSpace(s)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case c == '"':
			quoted = !quoted
		case (c == '#' || c == ';') && !quoted:
			return strings.TrimSpace(b.String())
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
