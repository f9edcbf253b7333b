package podman

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/machine"
	"foldyard/internal/machine/machinetest"
	"foldyard/internal/testkit"
)

// stub is a podman that keeps its one machine's state in a file, and runs what it is told over ssh on this computer.
const stub = `#!/bin/sh
d=$(dirname "$0"); s=$d/state; b=$d/boots
shift
flags() { # those of init and set, kept in files of their name
  while [ $# -gt 1 ]; do case $1 in --cpus|--memory|--disk-size) echo "$2" >"$d/${1#--}"; shift ;; esac; shift; done
}
case $1 in
info) exit 0 ;;
list) if [ ! -e "$s" ]; then echo '[]'; else echo "[{\"Name\":\"fy-app*\",\"Running\":$(cat "$s"),\"CPUs\":$(cat "$d/cpus"),\"Memory\":\"$(($(cat "$d/memory") << 20))\",\"DiskSize\":\"$(($(cat "$d/disk-size") << 30))\"},{\"Name\":\"fy-app2\",\"Running\":true}]"; fi ;;
init) shift; flags "$@"; echo false >"$s" ;;
set) [ "$(cat "$s")" = false ] || { echo "is running" >&2; exit 125; }; shift; flags "$@" ;;
start) rm -f "$d/hangs"; echo true >"$s"; echo x >>"$b" ;;
stop) echo false >"$s" ;;
rm) rm -f "$s" ;;
ssh) [ "$(cat "$s" 2>/dev/null)" = true ] && [ ! -e "$d/hangs" ] || exit 125
  case $3 in *boot_id*) wc -l <"$b" ;; *) exec sh -c "$3" ;; esac ;;
esac
`

func newStub(t *testing.T) *Driver {
	t.Helper()
	dir := t.TempDir()
	testkit.WriteExecutable(t, filepath.Join(dir, "podman"), stub)
	d, err := New(t.Context(), Options{Name: "fy-app", Record: filepath.Join(dir, "record"), GOOS: "linux", UID: 1000, Getenv: func(name string) string {
		if name == "PATH" {
			return dir + ":/usr/bin:/bin"
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testSpec() machine.Spec {
	return machine.Spec{CPUs: 1, Memory: 1 << 30, Disk: 4 << 30, Repo: "/repo", UID: 1000, Band: 41000, Services: 100, DNS: 41001, SSH: 41190}
}

func TestSuite(t *testing.T) {
	d := newStub(t)
	spec := testSpec()
	changed := spec
	changed.CPUs, changed.Memory, changed.Disk = 2, 2<<30, 8<<30
	machinetest.Run(t, machinetest.Suite{Machine: d, Spec: spec, Changed: changed, Start: time.Minute, Crash: func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(d.podman), "hangs"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}})
}

// A disk cannot shrink: that is said before anything is stopped.
func TestSmallerDiskIsRefused(t *testing.T) {
	d := newStub(t)
	spec := testSpec()
	first, err := d.Up(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	smaller := spec
	smaller.Disk = 3 << 30
	var e *machine.Error
	if _, err := d.Up(t.Context(), smaller, nil); !errors.As(err, &e) || !strings.Contains(e.Fix, "4GiB") {
		t.Errorf("got %v", err)
	}
	if again, err := d.Up(t.Context(), spec, nil); err != nil || again != first {
		t.Errorf("control: %+v, %v; want the same boot", again, err)
	}
}

// It cannot be provisioned by us, so it has no firewall: asking for one is an error, not a machine without it.
func TestFirewallIsRefused(t *testing.T) {
	d := newStub(t)
	spec := testSpec()
	spec.Firewall = true
	_, err := d.Up(t.Context(), spec, nil)
	var e *machine.Error
	if !errors.As(err, &e) || !strings.Contains(e.Detail, "firewall") || e.Fix == "" {
		t.Errorf("up: %v", err)
	}
	if st, err := d.State(t.Context()); err != nil || st.State != machine.Absent {
		t.Errorf("it left %+v, %v", st, err)
	}
}

func TestComputerWithoutPodmanIsTold(t *testing.T) {
	for name, o := range map[string]Options{
		"none": {Name: "x", UID: 1000, Getenv: func(string) string { return "" }},
		"root": {Name: "x", UID: 0, Getenv: func(string) string { return "/usr/bin" }},
	} {
		if _, err := New(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A machine of the same name that somebody else made is left alone.
func TestForeignMachineIsLeftAlone(t *testing.T) {
	d := newStub(t)
	if _, err := d.Up(t.Context(), testSpec(), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.opt.Record, d.opt.Record+".away"); err != nil {
		t.Fatal(err)
	}
	if st, err := d.State(t.Context()); err != nil || st.State != machine.Foreign {
		t.Errorf("state %+v, %v; want foreign", st, err)
	}
	_, up := d.Up(t.Context(), testSpec(), nil)
	for what, err := range map[string]error{"up": up, "stop": d.Stop(t.Context()), "rm": d.Remove(t.Context())} {
		var e *machine.Error
		if !errors.As(err, &e) || !strings.Contains(e.Detail, "not made by foldyard") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if command, err := Uninstall(t.Context(), d.opt); command != "" || err != nil {
		t.Errorf("uninstall: %q, %v", command, err)
	}
	if m, err := d.list(t.Context()); err != nil || m == nil || !m.Running {
		t.Errorf("it is %+v, %v; want it as it was", m, err)
	}
	if err := os.Rename(d.opt.Record+".away", d.opt.Record); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Errorf("control, our own: %v", err)
	}
}
