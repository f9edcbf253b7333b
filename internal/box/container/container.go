// Package container makes a box of a rootless Podman container in a virtual
// machine, and serves it over the socket that a keeper would: Start makes it,
// Keeper is that socket, Enter and Pause are what runs inside. It may not start
// a machine, resolve or decide anything, or obey what the container says: the
// machine and all that is in it are strangers.
package container

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Verbs of our own program in the container.
const (
	EnterVerb = "__enter"
	PauseVerb = "__pause"
	DialVerb  = "__dial"
)

// EngineSocket is the machine's rootless engine in the container, where the box was given it.
const EngineSocket = "/run/podman/podman.sock"

// Program is our own binary in the container, read-only.
const Program = "/opt/foldyard/fy"

// Host runs commands in the machine as its user.
type Host struct {
	// Argv is a command line of this computer that runs argv in the machine.
	Argv func(argv []string) []string
	// Run runs argv in the machine. An exit status that is not 0 is an error.
	Run func(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error)
}

// Spec says what to make.
type Spec struct {
	ID       string
	Image    string   // name of an image that is in the machine's store, see Pull and Import
	Repo     string   // at its own path
	ReadOnly bool     // the repo
	Guarded  []string // paths in it that stay read-only
	Mounts   []Mount  // more of them, as the configuration says
	User     string   // name and home of the box's user
	Home     string
	KeepHome bool // a volume that stays, or one in memory
	Root     bool // uid 0 of the container
	Nested   bool
	Engine   bool              // the machine's rootless engine socket
	UID      int               // of the machine's user
	Program  string            // our own binary in the machine
	Files    map[string][]byte // below /etc/foldyard
}

// Mount is a path below the repo that is mounted once more, at its own place.
type Mount struct {
	Path  string // relative to the repo
	Write bool   // where the repo is writable
}

var idRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`) })

// Name is the container of the box id.
func Name(id string) string { return "fy-" + id }

// homeVolume is where a kept home lies in the machine.
const homeVolume = "fy-home"

func (s Spec) dir() string { return "/home/fy/.foldyard/boxes/" + s.ID }

// Check says why s cannot be made.
func (s Spec) Check() error {
	switch {
	case !idRE().MatchString(s.ID):
		return fmt.Errorf("box id %q: want [a-z0-9-]", s.ID)
	case s.Image == "" || s.Image[0] == '-':
		return fmt.Errorf("image %q of the box: want a name", s.Image)
	case !path.IsAbs(s.Repo) || strings.ContainsAny(s.Repo, ":,"):
		return fmt.Errorf("repo %q: a container cannot mount a path with a colon or comma", s.Repo)
	case !path.IsAbs(s.Program) || strings.ContainsAny(s.Program, ":,"):
		return fmt.Errorf("our own program %q: want an absolute path", s.Program)
	case slices.ContainsFunc(s.Mounts, func(m Mount) bool { return strings.ContainsAny(m.Path, ":,") || !filepath.IsLocal(m.Path) }):
		return fmt.Errorf("mounts %v: want paths below the repo, without a colon or comma", s.Mounts)
	case slices.ContainsFunc(s.Guarded, func(p string) bool { return strings.ContainsAny(p, ":,") || !filepath.IsLocal(p) }):
		return fmt.Errorf("read-only paths %q: want paths below the repo, without a colon or comma; take that away, or run with --ro", s.Guarded)
	case !path.IsAbs(s.Home) || strings.ContainsAny(s.Home, ":,"):
		return fmt.Errorf("home %q: want an absolute path", s.Home)
	}
	return nil
}

// args is the command line that makes the container. It holds no secret: those travel with each command.
func (s Spec) args() []string {
	a := []string{
		"podman", "run", "--detach", "--name", Name(s.ID), "--label", "foldyard.box=" + s.ID, "--hostname", "box",
		"--pidfile", s.dir() + ".pid", "--pull=never", "--log-driver=none", "--pids-limit=4096", "--security-opt=label=disable",
		"--entrypoint", Program, "--workdir", s.Repo,
	}
	if s.Root {
		a = append(a, "--user=0:0")
	} else {
		a = append(a, "--userns=keep-id", "--cap-drop=all", "--security-opt=no-new-privileges")
	}
	if s.Nested {
		a = append(a, "--security-opt=seccomp=unconfined", "--device=/dev/fuse")
	}
	places := s.places()
	for _, p := range slices.Sorted(maps.Keys(places)) {
		at := path.Join(s.Repo, p)
		v := "--volume=" + at + ":" + at
		if places[p] {
			v += ":ro"
		}
		a = append(a, v)
	}
	a = append(a, "--volume="+s.Program+":"+Program+":ro", "--volume="+s.dir()+":/etc/foldyard:ro", "--tmpfs=/tmp:rw,exec,mode=1777")
	if s.KeepHome {
		a = append(a, "--volume="+homeVolume+":"+s.Home+":U")
	} else {
		a = append(a, "--tmpfs="+s.Home+":rw,exec,mode=0777")
	}
	if s.Engine {
		socket := "/run/user/" + strconv.Itoa(s.UID) + "/podman/podman.sock"
		a = append(a, "--volume="+socket+":"+EngineSocket)
	}
	return append(a, s.Image, PauseVerb)
}

// places are what is mounted of the repo, as paths in it, and whether read-only. Podman mounts a place once: what is guarded is before what
// the configuration says.
func (s Spec) places() map[string]bool {
	out := map[string]bool{".": s.ReadOnly}
	// A directory that only holds mounts can be renamed away, and them with it; one that is a mount cannot.
	for _, dir := range parents(s.Guarded) {
		out[dir] = s.ReadOnly
	}
	for _, m := range s.Mounts {
		p := path.Clean(m.Path)
		below := func(g string) bool { return strings.HasPrefix(p, path.Clean(g)+"/") }
		out[p] = !m.Write || s.ReadOnly || slices.ContainsFunc(s.Guarded, below)
	}
	for _, g := range s.Guarded {
		out[path.Clean(g)] = true
	}
	return out
}

// parents are the directories that relative paths lie in, each once and after its own.
func parents(paths []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, p := range paths {
		for d := path.Dir(path.Clean(p)); d != "."; d = path.Dir(d) {
			if !seen[d] && !slices.Contains(paths, d) {
				seen[d] = true
				out = append(out, d)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Digest is of how the box is made, whatever its id: a twin has the same.
func (s Spec) Digest(parts ...string) string {
	sum := sha256.New()
	twin := s
	twin.ID = "twin"
	for _, p := range slices.Concat(twin.args(), parts) {
		fmt.Fprintf(sum, "%d\n%s", len(p), p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// startScript makes a container over one connection, and waits until its first process has begun or ended: $0 is where its files go, $1
// whether it gets the engine's socket, $2 that process, the rest its command line. It prints that it runs, and what is mounted in it.
const startScript = `set -e
umask 022
mkdir -p "$0"
tar -x -C "$0"
if [ "$1" = true ]; then systemctl --user start podman.socket; fi
first=$2
shift 2
"$@" >/dev/null
pid=$(cat "$0.pid")
tries=0
while [ "$pid" -gt 1 ] && [ "$tries" -lt 300 ] && now=$(tr '\0' ' ' <"/proc/$pid/cmdline"); do
	if [ "$now" = "$first " ]; then echo true; cat "/proc/$pid/mountinfo"; break; fi
	# A process that has ended shows no command line; in the middle of an exec it shows none either.
	[ -n "$now" ] || grep -q '^State:.[^ZX]' "/proc/$pid/status" || break
	tries=$((tries + 1))
	sleep 0.1
done 2>/dev/null`

// firstProcess is the container's, as its command line tells it.
const firstProcess = Program + " " + PauseVerb

// Start makes the container. Nothing is left of it on an error.
func Start(ctx context.Context, h Host, s Spec) (err error) {
	if err := s.Check(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, Stop(context.WithoutCancel(ctx), h, s.ID))
		}
	}()
	files, err := archive(s.Files)
	if err != nil {
		return err
	}
	out, err := h.Run(ctx, bytes.NewReader(files), append([]string{"sh", "-c", startScript, s.dir(), strconv.FormatBool(s.Engine), firstProcess}, s.args()...)...)
	if err != nil {
		return fmt.Errorf("start the container: %w", err)
	}
	runs, mounts, _ := strings.Cut(string(out), "\n")
	if runs != "true" {
		return errors.New("the container ended at once: its image may not let this user run a program")
	}
	if err := s.held(mounts); err != nil {
		return fmt.Errorf("the repo changed while the container was made, or is mounted otherwise than it should be: %w", err)
	}
	return nil
}

// archive is files as a tar stream, readable by all: they hold nothing secret.
func archive(files map[string][]byte) ([]byte, error) {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		base, ok := strings.CutPrefix(name, "/etc/foldyard/")
		if !ok || strings.Contains(base, "/") {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: base, Mode: 0o644, Size: int64(len(files[name])), Format: tar.FormatUSTAR, ModTime: time.Unix(0, 0)}); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// Stop ends the box id with everything in it. Stopping what is not there is no error.
func Stop(ctx context.Context, h Host, id string) error {
	if !idRE().MatchString(id) {
		return fmt.Errorf("box id %q: want [a-z0-9-]", id)
	}
	_, err := h.Run(ctx, nil, "sh", "-c", `podman rm --force --time 0 --ignore "$1" >/dev/null && rm -rf "$2" "$2.pid"`, "sh", Name(id), Spec{ID: id}.dir())
	if err != nil {
		return fmt.Errorf("end the container: %w", err)
	}
	return nil
}

// ResetHome removes the kept home. It must be in no container's hands.
func ResetHome(ctx context.Context, h Host) error {
	if _, err := h.Run(ctx, nil, "sh", "-c", `! podman volume exists "$1" || podman volume rm "$1" >/dev/null`, "sh", homeVolume); err != nil {
		return fmt.Errorf("empty home: %w", err)
	}
	return nil
}

// runsScript tells whether a container runs: by its first process, for podman takes a second on an emulated machine to say the same.
const runsScript = `pid=$(cat "$1" 2>/dev/null) && [ "$pid" -gt 1 ] 2>/dev/null && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qx "$2 " && echo "$pid" && exit
exec podman ps --quiet --filter "name=^$0\$"`

// Runs reports whether the container of the box id runs.
func Runs(ctx context.Context, h Host, id string) (bool, error) {
	out, err := h.Run(ctx, nil, "sh", "-c", runsScript, Name(id), Spec{ID: id}.dir()+".pid", firstProcess)
	return len(bytes.TrimSpace(out)) > 0, err
}

// hasScript looks where podman keeps the names of its images, since podman itself takes seconds to say so on an emulated machine, and asks
// it where that tells nothing.
const hasScript = `grep -qsF "\"$0\"" "$HOME"/.local/share/containers/storage/*-images/images.json || exec podman image exists "$0"`

// has reports whether the machine's store has an image of this name.
func has(ctx context.Context, h Host, name string) bool {
	_, err := h.Run(ctx, nil, "sh", "-c", hasScript, name)
	return err == nil
}

// Pull fetches an image by name, if the machine has none of it.
func Pull(ctx context.Context, h Host, name string) error {
	if name == "" || name[0] == '-' {
		return fmt.Errorf("image %q: want a name", name)
	}
	if has(ctx, h, name) {
		return nil
	}
	if _, err := h.Run(ctx, nil, "podman", "pull", "--quiet", name); err != nil {
		return fmt.Errorf("pull %s: %w", name, err)
	}
	return nil
}

// Import makes an image of a root file system, an archive that tar reads, and
// returns its name. digest is of the archive: the same is imported once.
func Import(ctx context.Context, h Host, archive io.Reader, digest string) (string, error) {
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(digest) {
		return "", fmt.Errorf("digest %q of the root file system", digest)
	}
	name := "localhost/fy-rootfs:" + digest[:16]
	if has(ctx, h, name) {
		return name, nil
	}
	if _, err := h.Run(ctx, archive, "podman", "import", "--quiet", "-", name); err != nil {
		return "", fmt.Errorf("import the root file system: %w", err)
	}
	return name, nil
}

// Proxy writes the engine's way out into its configuration: what pulls and builds use. The file is the VM user's own.
func Proxy(ctx context.Context, h Host, url string) error {
	if strings.ContainsAny(url, "\"\\\n") {
		return errors.New("the proxy's URL cannot be written")
	}
	var b strings.Builder
	b.WriteString("# written by fy at each start\n[engine]\nenv = [")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		fmt.Fprintf(&b, "\"%s=%s\", ", name, url)
	}
	b.WriteString("\"NO_PROXY=localhost,127.0.0.1\", \"no_proxy=localhost,127.0.0.1\"]\n")
	_, err := h.Run(ctx, strings.NewReader(b.String()), "sh", "-c", `umask 077; mkdir -p "$HOME/.config/containers/containers.conf.d" && cat >"$HOME/.config/containers/containers.conf.d/90-foldyard-proxy.conf"`)
	if err != nil {
		return fmt.Errorf("tell the VM's engine its proxy: %w", err)
	}
	return nil
}
