package container

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// mounted is a line of a process's mountinfo (proc_pid_mountinfo(5)).
type mounted struct {
	id, parent string
	root       string // what of its file system is mounted
	at         string
	readOnly   bool
}

func parseMounts(text string) (out []mounted) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		out = append(out, mounted{
			id: f[0], parent: f[1], root: unescape(f[3]), at: unescape(f[4]),
			readOnly: slices.Contains(strings.Split(f[5], ","), "ro"),
		})
	}
	return out
}

// unescape undoes the kernel's \040.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// repoAt is where the container has the repo: at its own path, but for links of the image on the way there, such as /home to /var/home.
func (s Spec) repoAt(all []mounted) string {
	if slices.ContainsFunc(all, func(m mounted) bool { return m.at == s.Repo }) {
		return s.Repo
	}
	var named []string
	for _, m := range all {
		if path.Base(m.at) == path.Base(s.Repo) {
			named = append(named, m.at)
		}
	}
	if len(named) == 1 {
		return named[0]
	}
	return s.Repo
}

// held compares what the container has mounted of the repo with what it was to have, before anything runs in it. Podman mounts by name:
// whoever writes the repo meanwhile, such as another box, could have put a link in between, or something else in that place.
func (s Spec) held(mountinfo string) error {
	want := s.places()
	got := map[string]mounted{}
	all := parseMounts(mountinfo)
	at := s.repoAt(all)
	for _, m := range all {
		rel, ok := strings.CutPrefix(m.at, at)
		if !ok || rel != "" && rel[0] != '/' {
			continue
		}
		if rel = path.Clean("./" + rel); got[rel].id != "" {
			return fmt.Errorf("%s of the repo is mounted twice", rel)
		}
		got[rel] = m
	}
	repo, ok := got["."]
	if !ok {
		return errors.New("the repo is not mounted")
	}
	for p, readOnly := range want {
		m := got[p]
		above := path.Dir(p)
		for above != "." {
			if _, ok := want[above]; ok {
				break
			}
			above = path.Dir(above)
		}
		switch {
		case m.id == "":
			return fmt.Errorf("%s of the repo is not mounted in its place", p)
		case m.root != path.Join(repo.root, p) || p != "." && m.parent != got[above].id:
			return fmt.Errorf("%s of the repo is not what is mounted in its place", p)
		case readOnly && !m.readOnly:
			return fmt.Errorf("%s of the repo is not mounted read-only", p)
		}
	}
	return nil
}
