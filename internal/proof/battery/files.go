package battery

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"foldyard/internal/proof/probe"
)

// Files are the host's that a box must not see. Paths are absolute.
type Files struct {
	State         []string // foldyard's own directories: config, state, cache, and config.toml
	ControlSocket string
	CAKey         string
	Secrets       []string // secrets.env of the project, and others
	OperatorHome  string
	Mounted       []string // what config.toml mounts on purpose: nothing at or below it counts
	Launcher      string   // the fy that the operator started
}

func (f Files) secrets() []probe.HostFile {
	var files []probe.HostFile
	add := func(id string, paths ...string) {
		for _, path := range paths {
			if path == "" || f.mounted(path) {
				continue
			}
			if h := hostFile(id, path); h.Ino != 0 {
				files = append(files, h)
			}
		}
	}
	add("state-dir", f.State...)
	add("ca-key", f.CAKey)
	add("control-socket", f.ControlSocket)
	add("secrets", f.Secrets...)
	add("secrets", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/wireguard", "/root", "/var", "/run")
	if f.OperatorHome != "" {
		add("dotfiles", f.OperatorHome)
		for _, name := range dotfiles() {
			add("dotfiles", filepath.Join(f.OperatorHome, name))
		}
	}
	return files
}

func dotfiles() []string {
	return []string{
		".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".gitconfig", ".pgpass",
		".bash_history", ".zsh_history", ".bashrc", ".zshrc", ".profile", ".config/gh", ".config/gcloud", ".config/git", ".config/foldyard",
		".local/share/keyrings", ".password-store", ".mozilla", ".config/google-chrome", ".vault-token", ".terraform.d", ".claude", ".codex",
	}
}

// mounted reports whether config.toml shows a path to the box on purpose.
func (f Files) mounted(path string) bool {
	return slices.ContainsFunc(f.Mounted, func(m string) bool { return path == m || strings.HasPrefix(path, strings.TrimSuffix(m, "/")+"/") })
}

func (f Files) launcher() probe.HostFile {
	if f.Launcher == "" {
		return probe.HostFile{}
	}
	return hostFile("launcher-exe", f.Launcher)
}

// sockets returns where unix sockets of the host usually are, and where the
// operator's environment says that they are.
func (f Files) sockets(getenv func(string) string) []probe.HostFile {
	var out []probe.HostFile
	add := func(id string, paths ...string) {
		for _, path := range paths {
			if filepath.IsAbs(path) && !f.mounted(path) {
				out = append(out, probe.HostFile{ID: id, Path: path})
			}
		}
	}
	runtimeDir := getenv("XDG_RUNTIME_DIR")
	inRuntime := func(name string) string {
		if runtimeDir == "" {
			return ""
		}
		return filepath.Join(runtimeDir, name)
	}
	inHome := func(name string) string {
		if f.OperatorHome == "" {
			return ""
		}
		return filepath.Join(f.OperatorHome, name)
	}
	add("unix-docker", "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
		strings.TrimPrefix(getenv("DOCKER_HOST"), "unix://"), inRuntime("docker.sock"), inHome(".docker/run/docker.sock"), inHome(".docker/desktop/docker.sock"))
	add("unix-podman", "/run/podman/podman.sock", "/var/run/podman/podman.sock", strings.TrimPrefix(getenv("CONTAINER_HOST"), "unix://"), inRuntime("podman/podman.sock"))
	add("unix-dbus", "/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify",
		busPath(getenv("DBUS_SESSION_BUS_ADDRESS")), inRuntime("bus"), inRuntime("systemd/private"))
	add("unix-ssh-agent", getenv("SSH_AUTH_SOCK"), inHome(".gnupg/S.gpg-agent"), inHome(".gnupg/S.gpg-agent.ssh"),
		inRuntime("gnupg/S.gpg-agent"), inRuntime("gnupg/S.gpg-agent.ssh"), inRuntime("keyring/ssh"), inRuntime("openssh_agent"))
	add("unix-x11", "/tmp/.X11-unix/X0", "/tmp/.X11-unix/X1", "/tmp/.ICE-unix/1")
	add("unix-wayland", inRuntime("wayland-0"), inRuntime("wayland-1"), inRuntime("pipewire-0"), inRuntime("pulse/native"), "/run/user/1000/wayland-0")
	add("control-socket", f.ControlSocket)
	return out
}

// busPath returns the path in a D-Bus address, if it has one.
func busPath(address string) string {
	_, rest, ok := strings.Cut(address, "path=")
	if !ok {
		return ""
	}
	path, _, _ := strings.Cut(rest, ",")
	path, _, _ = strings.Cut(path, ";")
	return path
}

// secretName matches variables whose value is worth looking for in a box.
var secretName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)KEY|TOKEN|SECRET|PASS|CRED|AUTH|COOKIE|SESSION|SOCK|BUS_ADDRESS|RUNTIME_DIR|^AWS_|^SSH_|^SUDO_|^FOLDYARD_|^GPG|^KUBE|^VAULT|DATABASE_URL|DSN$`)
})

// secretEnvironment returns hashes of the operator's variables that must not be
// found in a box: the plan itself tells nothing.
func (o Options) secretEnvironment() []string {
	var sums []string
	for _, v := range o.Environ {
		name, value, _ := strings.Cut(v, "=")
		if !secretName().MatchString(name) || len(value) < 4 || slices.Contains(o.BoxEnv, v) {
			continue
		}
		sum := sha256.Sum256([]byte(v))
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	return sums
}
