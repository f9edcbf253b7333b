package supervisor

import (
	"os"
	"strings"
	"testing"
	"time"
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
