package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// arrows says which of our packages each package may import. A package that
// is not here may not exist, and one that is here must.
const arrows = `
# One request's way out, read top to bottom.
egress/dest:
egress/http1:
egress/capture:
egress/policy:            egress/dest
egress/ca:                egress/dest
egress/gather:
egress/dialer:            egress/dest egress/gather
egress/intake/dns:        egress/dest egress/capture
egress/intake/connect:    egress/dest egress/http1
egress/intake/redirect:
egress/inject:            egress/dest egress/policy egress/http1 egress/dialer
egress/proxy:             egress/inject egress/dest egress/http1 egress/capture egress/policy egress/ca egress/dialer egress/gather egress/intake/connect egress/intake/redirect

# What runs inside. The agent and the keeper share only the wire.
box:
box/wire:
box/agent:                box/wire
box/container:            box/wire

# What makes the way out the only one.
wall/namespace:           box box/wire egress/dest proof
wall/ruleset:

# The VM: the backend interface, its conformance suite, the backends.
machine:
machine/machinetest:      machine
machine/lima:             machine wall/ruleset
machine/podman:           machine

# The honesty rule. Probes start from fy's own binary, inside: keep them lean.
docs:
proof:                    docs
proof/probe:              proof
proof/doctor:             proof
proof/vmprobe:
proof/battery:            proof proof/probe proof/vmprobe

# The operator's side.
host/state:               egress/policy
host/config:              host/state box egress/policy egress/inject
host/control:             host/state box/wire wall/namespace
host/supervisor:          host/state host/config host/control box box/wire wall/namespace proof proof/battery proof/probe proof/vmprobe proof/doctor \
                          egress/dest egress/policy egress/ca egress/dialer egress/capture egress/intake/dns egress/proxy egress/inject \
                          box/container machine machine/lima machine/podman wall/ruleset

# What the operator sees.
ui/term:
ui/cli:                   ui/term host/state host/config host/control box wall/namespace proof proof/doctor egress/dest egress/policy egress/capture egress/ca

# Tests of the whole. Only tests may import the kit.
arch:
testkit:
cmd/fy-box:               wall/namespace box/agent
cmd/fy-guest:             box/container proof/vmprobe
cmd/fy:                   ui/cli ui/term host/supervisor host/control host/config host/state wall/namespace box box/agent box/container proof proof/probe proof/vmprobe
`

// walls are rules that no arrow may break, however the text above is changed:
// what is on the left never reaches what is on the right, not even by way of
// others.
const walls = `
egress  -x->  box wall machine proof host ui arch
box     -x->  egress wall machine host ui arch
proof/probe -x-> egress host ui wall box
wall    -x->  host ui
machine -x->  egress host ui
ui      -x->  host/supervisor
host    -x->  ui
`

// testArrows says what the tests of a package may import besides.
const testArrows = `
host/state:       egress/dest
wall/namespace:   box/agent box/wire
egress/policy:    egress/dest
machine/lima:     machine/machinetest
machine/podman:   machine/machinetest
host/supervisor:  machine/machinetest
`

// libraries says who may import each module that is not ours. One importing
// package each is the aim: replacing a library is then one place.
const libraries = `
github.com/gofrs/flock:              host/state
github.com/google/go-cmp:            test
github.com/google/nftables:          wall/namespace proof/probe
github.com/hashicorp/golang-lru:     egress/ca egress/dialer
github.com/pelletier/go-toml:        host/config
github.com/rogpeppe/go-internal:     host/config test
github.com/spf13/cobra:              ui/cli
github.com/vishvananda/netlink:      wall/namespace proof testkit
go.uber.org/goleak:                  test
golang.org/x/net:                    egress/dest egress/policy egress/dialer egress/intake/dns egress/proxy proof testkit
golang.org/x/sync:                   egress/ca egress/dialer egress/proxy host/supervisor
golang.org/x/sys:                    host box wall machine proof ui testkit egress/dialer egress/intake/redirect egress/proxy egress/capture cmd/fy testkit
golang.org/x/term:                   ui
golang.org/x/time:                   egress/ca egress/proxy host/supervisor
pgregory.net/rapid:                  test
`

func TestImports(t *testing.T) {
	tree := load(t)
	may, tests, libs := rules(t, arrows), rules(t, testArrows), rules(t, libraries)
	for _, p := range tree.packages() {
		if _, ok := may[p]; !ok {
			t.Errorf("package %s is not in the text of arrows", p)
		}
	}
	for p := range may {
		if !slices.Contains(tree.packages(), p) {
			t.Errorf("the text of arrows has %s, which does not exist", p)
		}
	}
	for _, f := range tree.files {
		for _, path := range f.imports() {
			ours, internal := strings.CutPrefix(path, "foldyard/")
			ours = strings.TrimPrefix(ours, "internal/")
			switch {
			case internal && ours == f.pkg:
			case internal && !f.test && !slices.Contains(may[f.pkg], ours):
				t.Errorf("%s: %s may not import %s", f.path, f.pkg, ours)
			case internal && f.test && ours == "testkit":
			case internal && f.test && !slices.Contains(may[f.pkg], ours) && !slices.Contains(tests[f.pkg], ours):
				t.Errorf("%s: tests of %s may not import %s", f.path, f.pkg, ours)
			case !internal && strings.Contains(strings.SplitN(path, "/", 2)[0], "."):
				if users, ok := lookup(libs, path); !ok || !allowed(users, f) {
					t.Errorf("%s: %s may not import %s", f.path, f.pkg, path)
				}
			}
		}
	}
}

func lookup(libs map[string][]string, path string) ([]string, bool) {
	for lib, users := range libs {
		if path == lib || strings.HasPrefix(path, lib+"/") {
			return users, true
		}
	}
	return nil, false
}

// allowed reports whether f's package is one of users, or below one; test
// stands for every test.
func allowed(users []string, f *file) bool {
	return slices.ContainsFunc(users, func(u string) bool {
		return u == "test" && f.test || under(f.pkg, u)
	})
}

func under(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

func TestWalls(t *testing.T) {
	may := rules(t, arrows)
	for line := range strings.Lines(strings.TrimSpace(walls)) {
		from, to, _ := strings.Cut(line, "-x->")
		for p := range may {
			if !under(p, strings.TrimSpace(from)) {
				continue
			}
			for _, reached := range reach(may, p) {
				for room := range strings.FieldsSeq(to) {
					if under(reached, room) && !under(p, room) {
						t.Errorf("%s reaches %s: %s", p, reached, strings.TrimSpace(line))
					}
				}
			}
		}
	}
	for p := range may {
		if slices.Contains(reach(may, p), p) {
			t.Errorf("%s reaches itself", p)
		}
	}
}

// reach returns every package that p imports, or that those import.
func reach(may map[string][]string, p string) []string {
	var out []string
	var visit func(string)
	visit = func(q string) {
		for _, r := range may[q] {
			if !slices.Contains(out, r) {
				out = append(out, r)
				visit(r)
			}
		}
	}
	visit(p)
	return out
}

// rules reads "name: word word" lines; a backslash at the end goes on.
func rules(t *testing.T, text string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, ":")
		if !ok || out[name] != nil {
			t.Fatal(fmt.Errorf("the text has a bad or repeated line %q", line))
		}
		out[name] = append([]string{}, strings.Fields(rest)...)
	}
	return out
}
