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
)

// stub is a podman that keeps its one machine's state in a file, and runs what it is told over ssh on this computer.
const stub = `#!/bin/sh
s=$(dirname "$0")/state; b=$(dirname "$0")/boots
shift
case $1 in
info) exit 0 ;;
list) if [ ! -e "$s" ]; then echo '[]'; else echo "[{\"Name\":\"fy-app\",\"Running\":$(cat "$s")},{\"Name\":\"fy-app2\",\"Running\":true}]"; fi ;;
init) echo false >"$s" ;;
start) echo true >"$s"; echo x >>"$b" ;;
stop) echo false >"$s" ;;
rm) rm -f "$s" ;;
ssh) [ "$(cat "$s" 2>/dev/null)" = true ] || exit 125
  case $3 in *boot_id*) wc -l <"$b" ;; *) exec sh -c "$3" ;; esac ;;
esac
`

func newStub(t *testing.T) *Driver {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte(stub), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := New(t.Context(), Options{Name: "fy-app", GOOS: "linux", UID: 1000, Getenv: func(name string) string {
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
	machinetest.Run(t, machinetest.Suite{Machine: d, Spec: spec, Start: time.Minute})
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
