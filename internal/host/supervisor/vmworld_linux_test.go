package supervisor

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"foldyard/internal/box/container"
	"foldyard/internal/host/config"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/machine/machinetest"
)

// podmanVM is a machine in memory, with a podman that knows which containers run.
type podmanVM struct {
	*machinetest.Fake
	mu   sync.Mutex // guards what follows
	runs map[string]bool
	ran  []string
	boot string
	fail map[string]error         // by a part of a command line
	hold map[string]chan struct{} // likewise: a command says that it came, and goes on once it is told to
}

func (m *podmanVM) Kind() string { return config.Lima }

// Up ends the containers when it starts the machine anew.
func (m *podmanVM) Up(ctx context.Context, spec machine.Spec, say func(string)) (machine.Report, error) {
	r, err := m.Fake.Up(ctx, spec, say)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && r.BootID != m.boot {
		m.boot, m.runs = r.BootID, map[string]bool{}
	}
	return r, err
}

func (m *podmanVM) Run(_ context.Context, c machine.Command) ([]byte, error) {
	line := strings.Join(c.Argv, " ")
	for part, gate := range m.hold {
		if strings.Contains(line, part) {
			gate <- struct{}{}
			<-gate
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ran = append(m.ran, line)
	for part, err := range m.fail {
		if strings.Contains(line, part) {
			return nil, err
		}
	}
	if c.Stdin != nil {
		_, _ = io.Copy(io.Discard, c.Stdin) // as a command would
	}
	name := func(after string) string {
		_, rest, _ := strings.Cut(line, after)
		word, _, _ := strings.Cut(rest, " ")
		return word
	}
	switch {
	case strings.Contains(line, "podman run --detach"):
		m.runs[name("--name ")] = true
		return []byte("true\n" + mountsOf(c.Argv)), nil
	case strings.Contains(line, "podman rm"):
		for n := range m.runs {
			if slices.Contains(c.Argv, n) {
				delete(m.runs, n)
			}
		}
	case strings.Contains(line, "podman ps"):
		for n := range m.runs {
			if slices.Contains(c.Argv, n) {
				return []byte("id\n"), nil
			}
		}
	}
	return nil, nil
}

// mountsOf is what is mounted in a container that was made by a command line, each below what is above it.
func mountsOf(argv []string) string {
	var b strings.Builder
	ids := map[string]int{}
	for i, arg := range argv {
		v, ok := strings.CutPrefix(arg, "--volume=")
		at, options, _ := strings.Cut(v, ":")
		if !ok {
			continue
		}
		ids[at] = i
		above := filepath.Dir(at)
		for ids[above] == 0 && above != "/" && above != "." {
			above = filepath.Dir(above)
		}
		mode := "rw"
		if strings.HasSuffix(options, ":ro") {
			mode = "ro"
		}
		fmt.Fprintf(&b, "%d %d 0:1 %s %s %s - 9p mount0 rw\n", i, ids[above], at, at, mode)
	}
	return b.String()
}

// Argv runs what is meant for our program in the container on this computer.
func (m *podmanVM) Argv(c machine.Command) []string {
	i := slices.Index(c.Argv, container.Program)
	return append([]string{os.Args[0]}, c.Argv[i+1:]...)
}

func (m *podmanVM) count(part string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.ran {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

const vmConfig = `
[machine]
backend = "lima"
image = "/vm/guest.qcow2"
digest = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
[box]
image = "localhost/box:1"
`

// vmWorld is a supervisor whose machine is one in memory. Ordinary users only: a machine is not root's.
func vmWorld(t *testing.T, adopted string) (*Supervisor, *podmanVM) {
	t.Helper()
	opt := options(t, time.Now, adopted)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	opt.Program = program
	// Real projects, and other tests, may be served beside this one.
	base := state.FirstBand + os.Getpid()%40*state.BandSize
	for !reserveBand(t, base) {
		base = state.FirstBand + (base-state.FirstBand+state.BandSize)%(40*state.BandSize)
	}
	text := fmt.Sprintf(`{"version":1,"bands":{%q:%d}}`, opt.Project.Name, base)
	if err := os.WriteFile(opt.Host.Layout.PortsFile(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, opt)
	t.Cleanup(s.close)
	m := &podmanVM{Fake: &machinetest.Fake{AnyUser: true}, runs: map[string]bool{}}
	s.vm.m = m
	return s, m
}

// reserveBand takes a band for as long as the test goes on, by its last port, which nothing else uses, and reports whether it could.
func reserveBand(t *testing.T, base int) bool {
	last, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", base+state.BandSize-1))
	if err != nil {
		return false
	}
	for _, offset := range []int{state.PortProxy, state.PortDNS, state.PortEngine, state.PortOneshots} {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", base+offset))
		if err != nil {
			_ = last.Close()
			return false
		}
		_ = l.Close()
	}
	t.Cleanup(func() { _ = last.Close() })
	return true
}

// readopt changes the project's configuration as fy config adopt does.
func readopt(t *testing.T, s *Supervisor, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.opt.Dir, config.FileName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := s.opt.Host.Resolve(s.opt.Dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.opt.Host.Propose(c)
	if err == nil {
		c, err = p.Adopt(time.Now(), false)
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := s.opt.Host.Load(c)
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Store(cfg)
}
