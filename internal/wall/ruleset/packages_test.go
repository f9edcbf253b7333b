package ruleset

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"foldyard/internal/testkit"
)

// packages is the step of the boot script that fetches what an image lacks, between what comes before every step and a report.
func packages(t *testing.T, table, report string) string {
	t.Helper()
	script, _, err := testBoot().Script()
	if err != nil {
		t.Fatal(err)
	}
	part := func(from, to string) string {
		_, rest, ok := strings.Cut(script, "\n"+from+"\n")
		text, _, ok2 := strings.Cut(rest, "\n"+to+"\n")
		if !ok || !ok2 {
			t.Fatalf("the script has nothing from %q to %q", from, to)
		}
		return from + "\n" + text + "\n"
	}
	text := "set -eu\n" + part("STEP=start", "step user") + part("step packages", "step firewall") + "touch " + report + "\n"
	return strings.NewReplacer(TablePath, table, "/usr/lib/systemd/system/", filepath.Dir(report)+"/units/").Replace(text)
}

// A distribution's image gets what it lacks once, and what has it is left alone. Where it cannot be had there is no report.
func TestPackagesThatAnImageLacks(t *testing.T) {
	const all = "nft podman newuidmap newgidmap sudo slirp4netns"
	installs := func(manager string) string {
		return `case "$*" in *install*) for p in ` + all + `; do [ -e "$FAKES/$p" ] || ln -s true "$FAKES/$p"; done;; esac; echo ` + manager + ` "$@" >>"$FAKES/calls"`
	}
	for _, tt := range []struct {
		name    string
		has     string            // programs of the image
		manager map[string]string // package managers, and what they do
		table   bool              // the firewall was there at an earlier boot
		calls   []string          // what the managers are told, in order: beginnings
		stops   string            // in what it says where it stops
	}{
		{name: "all is there", has: all, manager: map[string]string{"apt-get": installs("apt-get")}},
		{name: "pasta will do", has: strings.Replace(all, "slirp4netns", "pasta", 1), manager: map[string]string{"apt-get": installs("apt-get")}},
		{name: "nothing is there, Debian", manager: map[string]string{"apt-get": installs("apt-get")}, calls: []string{"apt-get -q -y", "apt-get -q -y", "apt-get clean"}},
		{name: "nothing is there, Fedora", manager: map[string]string{"dnf": installs("dnf")}, calls: []string{"dnf -y install"}},
		{name: "one is not there", has: strings.Replace(all, "podman ", "", 1), manager: map[string]string{"apt-get": installs("apt-get")}, calls: []string{"apt-get", "apt-get", "apt-get clean"}},
		{name: "no mirror", manager: map[string]string{"apt-get": `echo apt-get "$@" >>"$FAKES/calls"; exit 100`}, calls: []string{"apt-get"}, stops: "apt-get update failed, and this image has no nft podman"},
		{
			name: "a package that is not there", calls: []string{"apt-get", "apt-get"}, stops: "apt-get install failed",
			manager: map[string]string{"apt-get": `echo apt-get "$@" >>"$FAKES/calls"; case "$*" in *install*) exit 100;; esac`},
		},
		{name: "dnf fails", manager: map[string]string{"dnf": `echo dnf >>"$FAKES/calls"; exit 1`}, calls: []string{"dnf"}, stops: "dnf install failed"},
		{name: "a manager that does nothing", manager: map[string]string{"dnf": `echo dnf >>"$FAKES/calls"`}, calls: []string{"dnf"}, stops: "still has no nft"},
		{name: "no manager", stops: "neither apt-get nor dnf"},
		{name: "behind the firewall", table: true, manager: map[string]string{"apt-get": installs("apt-get")}, stops: "behind its firewall already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fakes, report := filepath.Join(dir, "bin"), filepath.Join(dir, "report")
			if err := os.Mkdir(fakes, 0o755); err != nil {
				t.Fatal(err)
			}
			write := func(path, text string) {
				t.Helper()
				testkit.WriteExecutable(t, path, text)
			}
			write(filepath.Join(fakes, "true"), "#!/bin/sh\n")
			for program := range strings.FieldsSeq(tt.has) {
				write(filepath.Join(fakes, program), "#!/bin/sh\n")
			}
			for name, text := range tt.manager {
				write(filepath.Join(fakes, name), "#!/bin/sh\n"+text+"\n")
			}
			ln, err := exec.LookPath("ln")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(ln, filepath.Join(fakes, "ln")); err != nil {
				t.Fatal(err)
			}
			touch, err := exec.LookPath("touch")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(touch, filepath.Join(fakes, "touch")); err != nil {
				t.Fatal(err)
			}
			table := filepath.Join(dir, "table")
			if tt.table {
				write(table, "")
			}
			run := func() string {
				cmd := exec.Command("/bin/sh", "-c", packages(t, table, report))
				cmd.Env = []string{"PATH=" + fakes, "FAKES=" + fakes}
				out, _ := cmd.CombinedOutput() // what it says tells
				return string(out)
			}
			out := run()
			calls, _ := os.ReadFile(filepath.Join(fakes, "calls"))
			lines := strings.Split(strings.TrimSpace(string(calls)), "\n")
			if len(calls) == 0 {
				lines = nil
			}
			if len(lines) != len(tt.calls) {
				t.Fatalf("the package manager was told %q, want %q; %s", lines, tt.calls, out)
			}
			for i, want := range tt.calls {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("call %d is %q, want %q", i, lines[i], want)
				}
			}
			_, err = os.Stat(report)
			if (err != nil) != (tt.stops != "") {
				t.Errorf("report: %v; want one only where nothing fails; it said\n%s", err, out)
			}
			if tt.stops != "" {
				if !strings.Contains(out, tt.stops) || !strings.HasSuffix(out, "stopped at: packages (exit 1)\n") {
					t.Errorf("it said\n%s\nwant %q and where it stopped", out, tt.stops)
				}
				return
			}
			if again := run(); strings.Contains(again, "fetches") {
				t.Errorf("the next boot fetches again:\n%s", again)
			}
		})
	}
}
