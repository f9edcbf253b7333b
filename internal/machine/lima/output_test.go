package lima

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"foldyard/internal/machine"
	"foldyard/internal/testkit"
)

// A machine that prints without end does not fill this computer's memory.
func TestOutputIsBounded(t *testing.T) {
	yes, err := exec.LookPath("yes")
	if err != nil {
		t.Skip(err)
	}
	bin := t.TempDir()
	for script, fails := range map[string]bool{"echo whole": false, "exec " + yes: true} {
		testkit.WriteExecutable(t, filepath.Join(bin, "ssh"), "#!/bin/sh\n"+script+"\n")
		d := &Driver{opt: Options{Home: t.TempDir(), Instance: "fy-x", Getenv: func(string) string { return bin }}}
		out, err := d.ssh(t.Context(), machine.Command{Argv: []string{"true"}})
		if (err != nil) != fails || !fails && string(out) != "whole\n" {
			t.Errorf("%s: %d bytes, %v", script, len(out), err)
		}
		if fails && !strings.Contains(err.Error(), "printed over") {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// What limactl fetches lies where fy uninstall finds it, and it gets nothing of the operator's that it does not need.
func TestEnvironmentOfLimactl(t *testing.T) {
	getenv := func(name string) string {
		return map[string]string{"PATH": "/bin", "HOME": "/home/dev", "XDG_CACHE_HOME": "/home/dev/.cache", "SSH_AUTH_SOCK": "/agent", "HTTPS_PROXY": "http://192.0.2.1"}[name]
	}
	for cache, want := range map[string]string{"/home/dev/.cache/foldyard": "XDG_CACHE_HOME=/home/dev/.cache/foldyard", "": ""} {
		d := newDriver(Options{Home: "/s/lima", Cache: cache, Getenv: getenv})
		got := d.environment()
		if slices.Contains(got, want) != (want != "") || !slices.Contains(got, "LIMA_HOME=/s/lima") || !slices.Contains(got, "PATH=/bin") {
			t.Errorf("cache %q: %q", cache, got)
		}
		for _, v := range got {
			if strings.Contains(v, "/agent") || strings.Contains(v, "192.0.2.1") || v == "XDG_CACHE_HOME=/home/dev/.cache" {
				t.Errorf("cache %q: it gets %s", cache, v)
			}
		}
	}
}
