package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"foldyard/internal/box/container"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/machine/machinetest"
	"foldyard/internal/testkit"
)

// The machine's engine is in the box only where [box] engine says so, and clients are told where.
func TestEngineIsInTheBoxOnlyWhenAskedFor(t *testing.T) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			s, m := vmWorld(t, strings.Replace(vmConfig, "[box]", fmt.Sprintf("[box]\nengine = %t", on), 1))
			out, err := s.CreateBox(t.Context(), control.BoxRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := m.count(":"+container.EngineSocket) > 0; got != on {
				t.Errorf("engine = %t: the socket is mounted: %t", on, got)
			}
			if got := slices.Contains(out.Env, "DOCKER_HOST=unix://"+container.EngineSocket); got != on {
				t.Errorf("engine = %t: DOCKER_HOST is set: %t", on, got)
			}
			if got := m.count(" true "+container.Program+" "+container.PauseVerb+" podman run") > 0; got != on {
				t.Errorf("engine = %t: the engine's socket is started: %t", on, got)
			}
			if _, err := s.StopBox(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// The step of a build is given the plan and our program, its outcomes come back whole, and nothing stays of it.
func TestProbesRunInAStepOfABuild(t *testing.T) {
	dir := t.TempDir()
	// A podman that shows what it was told to build, as the outcome.
	stub := `#!/bin/sh
echo "$1" >>"` + dir + `/verbs"
[ "$1" = build ] || exit 0
for a in "$@"; do
	case "$last" in --file) file=$a ;; esac
	case "$a" in *:/fy) fy=${a%:/fy} ;; esac
	last=$a
done
{ cat "$file"; echo "plan: $(cat "$fy/plan")"; } >"$fy/out"
echo "$fy" >"` + dir + `/where"
echo sha256:1234
`
	testkit.WriteExecutable(t, filepath.Join(dir, "podman"), stub)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", buildStep, "sh", "/opt/foldyard/fy-1", "localhost/box:1")
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	cmd.Stdin = strings.NewReader(`[{"id":"x"}]`)
	out, err := cmd.CombinedOutput()
	want := "FROM localhost/box:1\nRUN [\"/opt/foldyard/fy-1\", \"__vmprobe\", \"/fy/plan\", \"/fy/out\"]\nplan: [{\"id\":\"x\"}]\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, got %q, want %q", err, out, want)
	}
	if verbs, _ := os.ReadFile(filepath.Join(dir, "verbs")); string(verbs) != "build\nrmi\n" {
		t.Errorf("podman was told %q", verbs)
	}
	where, _ := os.ReadFile(filepath.Join(dir, "where"))
	if _, err := os.Stat(strings.TrimSpace(string(where))); !os.IsNotExist(err) || len(where) < 2 {
		t.Errorf("%s stays: %v", where, err)
	}
}

// A machine is given the program that fy carries for it, where there is one, and by another name when that changes.
func TestMachineIsGivenItsOwnProgram(t *testing.T) {
	s, _ := vmWorld(t, vmConfig)
	read := func() (name, text string) {
		dir, name, err := s.share()
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		return name, string(b)
	}
	s.opt.Programs.Guest = []byte("for the guest")
	first, text := read()
	if text != "for the guest" {
		t.Errorf("got %.40q", text)
	}
	s.opt.Programs.Guest = []byte("for the guest, a later one")
	if second, _ := read(); second == first {
		t.Error("another program has the same name")
	}
	s.opt.Programs.Guest = nil
	self, err := os.ReadFile(s.opt.Program)
	if err != nil {
		t.Fatal(err)
	}
	if _, text := read(); text != string(self) {
		t.Error("without one it is fy itself")
	}
}

// What cannot become a box is told before a machine is started for it.
func TestBadBoxIsToldBeforeTheMachineStarts(t *testing.T) {
	for name, tt := range map[string]struct{ config, says string }{
		"no image":               {strings.Replace(vmConfig, `image = "localhost/box:1"`, "", 1), "no image"},
		"an archive not there":   {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "box.tar"`, 1), "box.tar"},
		"an archive outside":     {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "../box.tar"`, 1), "rootfs"},
		"a mount not there":      {strings.Replace(vmConfig, "[box]", "[box]\nmounts = [\"./nowhere:ro\"]", 1), "nowhere"},
		"a mount of a link":      {strings.Replace(vmConfig, "[box]", "[box]\nmounts = [\"./link\"]", 1), "no directory"},
		"a FIFO":                 {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "fifo"`, 1), "no regular file"},
		"an archive that is one": {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "good.tar"`, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := vmWorld(t, tt.config)
			if err := os.WriteFile(filepath.Join(s.opt.Dir, "good.tar"), []byte("an archive"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc", filepath.Join(s.opt.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(filepath.Join(s.opt.Dir, "fifo"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := s.CreateBox(t.Context(), control.BoxRequest{})
			if tt.says == "" {
				if err != nil || m.Boots() != 1 {
					t.Errorf("control: %v, %d boots", err, m.Boots())
				}
				if _, err := s.StopBox(t.Context(), ""); err != nil {
					t.Error(err)
				}
				return
			}
			if code(err) != control.CodeBad || !strings.Contains(err.Error(), tt.says) || m.Boots() != 0 {
				t.Errorf("got %v after %d boots", err, m.Boots())
			}
		})
	}
}

// [box] mounts hold in a machine's box too, and what a machine does not have is refused.
func TestMountsOfABoxInAMachine(t *testing.T) {
	s, m := vmWorld(t, strings.Replace(vmConfig, "[box]", "[box]\nmounts = [\"./data:ro\"]", 1))
	if err := os.Mkdir(filepath.Join(s.opt.Dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(s.opt.Dir, "data")
	if m.count("--volume="+data+":"+data+":ro") != 1 {
		t.Errorf("not mounted: %q", m.ran)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
	outside := &config.Effective{}
	outside.Box.Mounts = []config.Mount{{Source: "/usr/share"}}
	if _, err := s.vmMounts(outside); code(err) != control.CodeBad {
		t.Errorf("a path of this computer's: %v", err)
	}
	outside.Box.Mounts = []config.Mount{{Source: data, Target: "/elsewhere"}}
	if _, err := s.vmMounts(outside); code(err) != control.CodeBad {
		t.Errorf("another place: %v", err)
	}
}

// TestRealPodman starts our program where verify does, with the podman of this computer: see test/e2e/podman.sh.
func TestRealPodman(t *testing.T) {
	parts := os.Getenv("FY_PODMAN_TEST")
	if parts == "" {
		t.Skip("no FY_PODMAN_TEST")
	}
	run := func(in string, argv ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdin = strings.NewReader(in)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, errs.String())
		}
		return string(out), err
	}
	const image = "localhost/places:1"
	if _, err := run("", "podman", "import", "--quiet", filepath.Join(parts, "box.tar"), image); err != nil {
		t.Fatal(err)
	}
	before, err := run("", "podman", "images", "--all", "--quiet")
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{}
	s.vm.program = filepath.Join(parts, "fy-guest")
	b := &sandbox{id: "x"}
	const plan = `[{"id":"a","kind":"run","argv":["true"]},{"id":"b","kind":"tcp","target":"127.0.0.1:1"}]`
	for _, p := range s.vmPlaces(b, image) {
		if p.Name == "box" { // the box's own container, which is package container's to test
			continue
		}
		s.vm.m = &hostVM{run: func(c machine.Command) ([]byte, error) {
			in, err := io.ReadAll(c.Stdin)
			if err != nil {
				return nil, err
			}
			out, err := run(string(in), c.Argv...)
			return []byte(out), err
		}}
		out, err := p.Run(t.Context(), []byte(plan))
		if err != nil || !strings.Contains(string(out), `"id":"a","outcome":"reached"`) || !strings.Contains(string(out), `"id":"b","outcome":"refused"`) {
			t.Errorf("%s: %v, %s", p.Name, err, out)
		}
	}
	if left, err := run("", "podman", "ps", "--all", "--quiet"); err != nil || left != "" {
		t.Errorf("containers are left: %q, %v", left, err)
	}
	if after, err := run("", "podman", "images", "--all", "--quiet"); err != nil || after != before {
		t.Errorf("images were %q, and are %q, %v", before, after, err)
	}
}

// hostVM is a machine that is this computer.
type hostVM struct {
	machinetest.Fake
	run func(machine.Command) ([]byte, error)
}

func (h *hostVM) Run(_ context.Context, c machine.Command) ([]byte, error) { return h.run(c) }

// What the machine's engine cannot do is told with what mends it, and leaves no box.
func TestEngineThatFailsIsExplained(t *testing.T) {
	for part, tt := range map[string]struct{ says, hint string }{
		"podman run --detach": {"no space left on device", "larger [machine] disk"},
		"podman pull":         {"403 Forbidden", "fy allow"},
	} {
		t.Run(part, func(t *testing.T) {
			s, m := vmWorld(t, vmConfig)
			m.fail = map[string]error{part: &machine.ExitError{Code: 125, Stderr: "Error: " + tt.says}}
			if part == "podman pull" {
				m.fail["podman image exists"] = &machine.ExitError{Code: 1}
			}
			_, err := s.CreateBox(t.Context(), control.BoxRequest{})
			var e *control.Error
			if !errors.As(err, &e) || !strings.Contains(e.Detail, tt.says) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("got %v, hint %q", err, e.Hint)
			}
			if all := s.running(); len(all) > 0 {
				t.Errorf("%d boxes are left", len(all))
			}
			if recs, err := state.ListBoxes(s.opt.Project); err != nil || len(recs) > 0 {
				t.Errorf("records %v, %v", recs, err)
			}
			m.fail = nil
			if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
				t.Errorf("control, once it is mended: %v", err)
			}
			if _, err := s.StopBox(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}
