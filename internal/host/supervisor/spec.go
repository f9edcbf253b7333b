package supervisor

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"foldyard/internal/box"
	"foldyard/internal/box/container"
	"foldyard/internal/egress/dest"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/wall/namespace"
)

// nobody is the uid that a box run by root maps to when nothing else is named.
const nobody = 65534

// who is the unprivileged user of the host that a box runs as.
func (s *Supervisor) who(cfg *config.Effective) (namespace.User, error) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid = cfg.Box.UID
		if sudo, err := strconv.Atoi(s.opt.Getenv("SUDO_UID")); uid == 0 && err == nil && sudo > 0 {
			uid = sudo
		}
		if uid == 0 {
			uid = nobody
		}
		gid = uid
	}
	name := "box"
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil && uid != nobody {
		if plainName().MatchString(u.Username) {
			name = u.Username
		}
		if g, err := strconv.Atoi(u.Gid); err == nil && g > 0 && os.Geteuid() == 0 {
			gid = g
		}
	}
	if uid <= 0 || gid <= 0 {
		return namespace.User{}, &control.Error{Code: control.CodeHost, Detail: fmt.Sprintf("uid %d gid %d: the host's root is never mapped into a box", uid, gid), Hint: "run fy as a user whose group is not root's"}
	}
	shell := "/bin/sh"
	if _, err := os.Stat("/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	return namespace.User{Name: name, UID: uid, GID: gid, Home: "/home/" + name, Shell: shell}, nil
}

var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`) })

// caches are shared by a project's boxes: what tools download, as it came. Nothing built on this computer is among it, such as pip's
// wheels, which pip installs without a question. That is no wall between the boxes of a project: npm checks what it finds here against
// a lock file, pip where hashes are required, Go and cargo take their own notes of the download for it.
func caches(p state.Project, home string) ([]namespace.Bind, error) {
	var out []namespace.Bind
	for name, target := range map[string]string{
		"npm":         ".npm/_cacache",
		"pip/http":    ".cache/pip/http", // until pip 23.2
		"pip/http-v2": ".cache/pip/http-v2",
		"go":          "go/pkg/mod/cache/download",
		"cargo":       ".cargo/registry/cache",
		"cargo-index": ".cargo/registry/index",
	} {
		source := filepath.Join(p.CacheDir(), name)
		if err := state.EnsureDir(source); err != nil {
			return nil, err
		}
		out = append(out, namespace.Bind{Source: source, Target: filepath.Join(home, target), Write: true})
	}
	slices.SortFunc(out, func(a, b namespace.Bind) int { return strings.Compare(a.Target, b.Target) })
	return out, nil
}

// spec says what to build for a box.
func (s *Supervisor) spec(cfg *config.Effective, q control.BoxRequest, id, nonce string) (namespace.Spec, error) {
	u, err := s.who(cfg)
	if err != nil {
		return namespace.Spec{}, err
	}
	if cfg.Box.Root {
		u.Name, u.Home = "root", "/root"
	}
	sp := namespace.Spec{
		ID: id, Nonce: nonce, Project: s.opt.Project.Name,
		Repo: s.opt.Dir, RepoReadOnly: q.RO, Writable: cfg.Box.Writable,
		User: u, Root: cfg.Box.Root, Nested: cfg.Box.Nested,
	}
	if q.Home || !q.Oneshot {
		sp.Home = s.opt.Project.Home()
		if err := state.EnsureDir(sp.Home); err != nil {
			return sp, err
		}
	} else if sp.Caches, err = caches(s.opt.Project, u.Home); err != nil {
		return sp, err
	}
	for _, m := range cfg.Box.Mounts {
		source := m.Source
		if !filepath.IsAbs(source) {
			source = filepath.Join(s.opt.Dir, source)
		}
		target := m.Target
		if target == "" {
			target = source
		}
		sp.Mounts = append(sp.Mounts, namespace.Bind{Source: source, Target: target, Write: m.Write})
	}
	account := box.User{Name: u.Name, UID: u.UID, GID: u.GID, Home: u.Home, Shell: u.Shell}
	if cfg.Box.Root { // uid 0 of its own user namespace, the same unprivileged user outside
		account.UID, account.GID = 0, 0
	}
	sp.Files, err = box.EtcFiles(box.Identity{
		Box: id, Project: s.opt.Project.Name, Backend: config.Namespace, Hostname: "box", User: account, Resolver: resolver(),
	})
	if err != nil {
		return sp, err
	}
	trust, err := s.trust()
	if err != nil {
		return sp, err
	}
	for p, b := range trust {
		sp.Files[p] = b
	}
	return sp, nil
}

// resolver is the address of our DNS in every box.
func resolver() netip.Addr { return dest.OwnV4() }

// environment is what a command in the box gets.
func (s *Supervisor) environment(b *sandbox, env, term []string) ([]string, error) {
	cfg := s.cfg.Load()
	given := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if err := box.CheckVariable(name, value); err != nil {
			return nil, bad("--env: %v", err)
		}
		given[name] = value
	}
	operator := map[string]string{}
	for _, kv := range term {
		name, value, _ := strings.Cut(kv, "=")
		operator[name] = value
	}
	return box.Environment(box.Options{
		ID: b.id, User: b.user.Name, Home: b.user.Home, Shell: b.user.Shell,
		Operator: func(name string) string { return operator[name] },
		Config:   s.boxEnv(cfg, b), Named: given, ProxyVariables: cfg.Box.ProxyEnv || b.outURL != "", Dummies: cfg.Dummies(), Proxy: b.outURL,
		ExtraCA: len(cfg.Upstream.CA) > 0,
	}), nil
}

// boxEnv is what the configuration sets in a box. The machine's engine, where the box was given it, is named as clients look for it.
func (s *Supervisor) boxEnv(cfg *config.Effective, b *sandbox) map[string]string {
	if !b.inVM() || !cfg.Box.Engine {
		return cfg.Box.Env
	}
	env := map[string]string{}
	for _, name := range []string{"CONTAINER_HOST", "DOCKER_HOST"} {
		env[name] = "unix://" + container.EngineSocket
	}
	maps.Copy(env, cfg.Box.Env)
	return env
}
