package lima

import (
	"os/exec"
	"path/filepath"
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
