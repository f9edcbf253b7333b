package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// template is what Init writes; NAME stands for the project's name.
const template = `# foldyard: how the box of this project is made, and what it asks for.
# Nothing here is obeyed until you adopt it on the host: fy config adopt

[project]
name = "NAME"

[machine]
# backend = "namespace"            # namespace | lima | podman; default: namespace on Linux, lima on macOS
# firewall = true                  # lima only
# host_firewall = false            # lima on Linux, needs firewall; rendered only
# cpus = 4                         # lima and podman
# memory = "8GiB"
# disk = "60GiB"
# image = "debian"                 # lima: debian, fedora, or a path or URL of your own with its digest

[box]
# image = "registry.example.com/dev:1"   # lima and podman; or rootfs = "box.tar", an archive in the repo
# ports = ["3000", "127.0.0.1:8080:80"]   # published on the host's loopback
# env = { EDITOR = "vi" }
# mounts = ["./data:ro"]           # inside the repo only
# root = false                     # uid 0 of the box's own user namespace
# nested = false                   # may create user namespaces
# proxy_env = false                # also set the proxy variables

[proxy]
enforce = true                     # true | false | "learn"; the first value, then fy enforce decides
# recommend = [ { host = "packages.example.com", why = "npm install" } ]   # asks; grants nothing
# passthrough = ["*.mirror.example.com", "@npm"]   # not decrypted
# ask = "refuse"                   # refuse | hold
# ask_timeout = "30s"

# [[inject]]                       # the box holds a dummy, requests get the credential
# name = "github"
# kind = "static"
# hosts = ["api.github.com"]
# header = "Authorization"
# prefix = "Bearer "
# env = { GITHUB_TOKEN = "dummy-github" }
`

// Init writes a commented foldyard.toml into dir and returns its path. One
// that is there is kept unless force is set.
func Init(dir string, force bool) (string, error) {
	path := filepath.Join(dir, FileName)
	text := strings.ReplaceAll(template, "NAME", cleanName(filepath.Base(dir)))
	err := writeRepo(dir, []byte(text), force)
	if errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%s exists: --force replaces it: %w", quotePath(path), fs.ErrExist)
	}
	return path, err
}
