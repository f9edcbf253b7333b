package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"foldyard/internal/host/config"
)

// A box is made by config.toml as it is then, and none is made by one that is wrong.
func TestOperatorsFileIsFollowed(t *testing.T) {
	s, _ := world(t, "")
	path := s.opt.Host.Layout.OperatorConfig()
	cpus := func(n string) string { return "[projects." + s.opt.Project.Name + ".machine]\ncpus = " + n + "\n" }
	for i, c := range []struct {
		text        string // "": no file
		cpus        int
		fault, note string
	}{
		{cpus("7"), 7, "", ""},
		{cpus("8"), 8, "", ""},
		{"[nosuch]\n", 8, "nosuch", ""},
		{"[nosuch]\n", 8, "nosuch", ""}, // it is still wrong
		{"", 4, "", ""},
		{"[log]\nkeep = 3\n", 4, "", "[log] of config.toml changed"},
	} {
		if c.text == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else {
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			written := time.Unix(int64(i), 0) // two writes may be of one tick of the clock
			if err := os.Chtimes(path, written, written); err != nil {
				t.Fatal(err)
			}
		}
		notes, err := s.follow(t.Context())
		if got := s.cfg.Load().Machine.CPUs; got != c.cpus {
			t.Errorf("%q: %d processors, want %d", c.text, got, c.cpus)
		}
		if (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %v, want %q", c.text, err, c.fault)
		}
		if got := strings.Join(notes, "\n"); (got != "") != (c.note != "") || !strings.Contains(got, c.note) {
			t.Errorf("%q: notes %q, want %q", c.text, got, c.note)
		}
	}
}

// What was adopted is told with the one command that applies it: a machine is changed by fy up, a box made anew.
func TestReloadTellsWhatAppliesAChange(t *testing.T) {
	const vm = "[machine]\nbackend = \"lima\"\n"
	for name, tt := range map[string]struct {
		from, to string
		boxes    []string
		machine  bool
	}{
		"the machine":            {vm, vm + "cpus = 3\n", nil, true},
		"the box":                {vm, vm + "[box]\nimage = \"localhost/b:1\"\n", []string{"[box]"}, false},
		"both":                   {vm, vm + "cpus = 3\n[box]\nimage = \"localhost/b:1\"\n", []string{"[box]", "[machine]"}, false},
		"the backend":            {"[machine]\nbackend = \"podman\"\n", vm, []string{"[machine]"}, false},
		"a machine that is none": {"[machine]\nbackend = \"namespace\"\n", "[machine]\nbackend = \"namespace\"\ncpus = 3\n", nil, false},
		"neither":                {vm, vm + "[proxy]\nenforce = false\n", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, options(t, time.Now, tt.from))
			t.Cleanup(s.close)
			if err := os.WriteFile(filepath.Join(s.opt.Dir, config.FileName), []byte(tt.to), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := s.opt.Host.Resolve(s.opt.Dir)
			if err != nil {
				t.Fatal(err)
			}
			p, err := s.opt.Host.Propose(c)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Adopt(time.Now(), false); err != nil {
				t.Fatal(err)
			}
			got, err := s.Reload(t.Context())
			if err != nil || !got.Changed || !slices.Equal(got.Boxes, tt.boxes) || got.Machine != tt.machine {
				t.Errorf("%+v, %v; want boxes %q, machine %t", got, err, strings.Join(tt.boxes, " "), tt.machine)
			}
		})
	}
}
