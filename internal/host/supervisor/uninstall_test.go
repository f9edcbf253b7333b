package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/testkit"
)

// fy uninstall takes the Podman machines of projects away, and names those that it cannot. Somebody else's stay.
func TestUninstallRemovesPodmanMachines(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("podman machine is not run by root")
	}
	for _, there := range []bool{true, false} {
		opt := options(t, time.Now, "")
		h := opt.Host
		bin := t.TempDir()
		calls := filepath.Join(bin, "calls")
		stub := "#!/bin/sh\necho \"$*\" >>" + calls + "\ncase $2 in list) echo '[{\"Name\":\"fy-mine\"},{\"Name\":\"fy-theirs\"}]';; esac\n"
		if there {
			testkit.WriteExecutable(t, filepath.Join(bin, "podman"), stub)
		}
		h.Getenv = func(name string) string {
			if name == "PATH" {
				return bin
			}
			return opt.Getenv(name)
		}
		for _, p := range []string{"mine", "theirs"} {
			if err := os.MkdirAll(filepath.Join(h.Layout.ProjectsDir(), p), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(podmanOptions(h, "mine").Record, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var said []string
		if err := RemoveMachines(t.Context(), h, func(line string) { said = append(said, line) }); err != nil {
			t.Error(err)
		}
		b, _ := os.ReadFile(calls)
		if got := strings.Contains(string(b), "machine rm --force fy-mine\n"); got != there {
			t.Errorf("podman is there: %t; it was told %q", there, b)
		}
		if strings.Contains(string(b), "fy-theirs") {
			t.Errorf("it was told %q", b)
		}
		if all := strings.Join(said, "\n"); strings.Contains(all, "podman machine rm --force fy-mine") == there || strings.Contains(all, "theirs") {
			t.Errorf("podman is there: %t; said %q", there, all)
		}
	}
}
