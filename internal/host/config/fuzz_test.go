package config

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"foldyard/internal/host/state"
)

func fuzzHost(t *testing.T) Host {
	t.Helper()
	l, err := state.NewLayout(func(k string) string { return map[string]string{"FOLDYARD_HOME": "/nonexistent/fy"}[k] })
	if err != nil {
		t.Fatal(err)
	}
	return Host{Layout: l, Getenv: func(string) string { return "" }, GOOS: "linux"}
}

// Whatever the file is: no panic; what is taken is TOML with every key known
// and once, so that no decoder that is laxer than ours sees another meaning.
func FuzzFile(f *testing.F) {
	f.Add([]byte(template))
	f.Add([]byte("[proxy]\nenforce = true\nEnforce = false\n"))
	f.Add([]byte("a.b.c = { d = [[1], {e = 2}] }\n[[a.x]]\n[a.x.y]\n"))
	f.Add([]byte("[[inject]]\nname = \"x\"\nhosts = [\"h.test\"]\nenv = { A = \"b\" }\n"))
	f.Add([]byte("box.ports = [\"[::1]:1:2\", \"3\"]\nbox.mounts = [\"a:ro\"]\nmachine.memory = \"8GiB\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := fuzzHost(t)
		e, err := h.build(sources{repo: data, repoFile: FileName, directory: "/nonexistent/repo"})
		if err != nil {
			faults, ok := err.(Faults) //nolint:errorlint // it is never wrapped here
			if !ok || len(faults) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			for _, fault := range faults {
				if s := fault.String(); s != Escape([]byte(s)) || strings.Contains(s, "\n") {
					t.Errorf("a fault is no safe line: %q", s)
				}
			}
			return
		}
		var strict struct {
			File
			Proxy struct {
				Proxy
				Enforce   any   `toml:"enforce"`
				Recommend []any `toml:"recommend"`
			} `toml:"proxy"`
		}
		old := bytes.Contains(data, []byte("wall")) || bytes.Contains(data, []byte("default_deny"))
		dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
		if err := dec.Decode(&strict); err != nil && !old {
			t.Errorf("taken, but a strict decoder says %v:\n%q", err, data)
		}
		for _, v := range e.Values() {
			if v.Origin == "" {
				t.Errorf("%s has no origin", v.Key)
			}
		}
		widenings(&Effective{}, e)
	})
}

// The two files together: an override never makes the whole panic or lets a
// key in that may not be set.
func FuzzOverride(f *testing.F) {
	f.Add([]byte("[box]\nports = [\"1\"]\n"), []byte("[projects.p.box]\nports = [\"0.0.0.0:2:3\"]\nuid = 1\n"))
	f.Add([]byte("[[inject]]\nname=\"a\"\nhosts=[\"a.test\"]\n"), []byte("[[projects.p.inject]]\nname=\"a\"\nkind=\"command\"\ncommand=[\"x\"]\nhosts=[\"b.test\"]\n"))
	f.Fuzz(func(t *testing.T, repo, operator []byte) {
		h := fuzzHost(t)
		e, err := h.build(sources{repo: repo, repoFile: FileName, operator: operator, opFile: "config.toml", project: "p", directory: "/nonexistent/repo"})
		if err != nil {
			return
		}
		for key, p := range e.at {
			if !p.operator && (strings.HasSuffix(key, ".command") || key == "box.uid" || strings.HasPrefix(key, "box.writable")) {
				t.Errorf("%s comes from %s", key, p)
			}
		}
		for i, port := range e.Box.Ports {
			if !port.Addr.IsLoopback() && !e.at["box.ports["+string(rune('0'+i%10))+"]"].operator && i < 10 {
				t.Errorf("port %s from the repo", port)
			}
		}
	})
}

func FuzzEscape(f *testing.F) {
	f.Add([]byte("a\x1b[2J\u202e\x9b\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, c := range []byte(Escape(data)) {
			if c != '\n' && c != '\t' && (c < ' ' || c > '~') {
				t.Fatalf("%q got through", c)
			}
		}
	})
}
