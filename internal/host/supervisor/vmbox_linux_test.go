package supervisor

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
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
	for !unused(base) {
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

// unused reports whether a band's ports can be had.
func unused(base int) bool {
	for _, offset := range []int{state.PortProxy, state.PortDNS, state.PortEngine, state.PortOneshots} {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", base+offset))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
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

// fy up on a box that runs makes its machine what is configured by now; where nothing changed it changes nothing.
func TestUpAppliesWhatChangedToARunningMachine(t *testing.T) {
	s, m := vmWorld(t, vmConfig)
	first, err := s.CreateBox(t.Context(), control.BoxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.CreateBox(t.Context(), control.BoxRequest{})
	if err != nil || !again.Existed || again.ID != first.ID {
		t.Fatalf("nothing changed: %+v, %v; want the box that runs", again, err)
	}
	readopt(t, s, strings.Replace(vmConfig, "[box]", "firewall = false\n[box]", 1))
	second, err := s.CreateBox(t.Context(), control.BoxRequest{})
	if err != nil || second.Existed || second.ID == first.ID {
		t.Errorf("the firewall was switched off: %+v, %v; want another box", second, err)
	}
	if m.Boots() != 2 {
		t.Errorf("%d boots, want 2", m.Boots())
	}
	if all := s.running(); len(all) != 1 || all[0].id != second.ID {
		t.Errorf("%d boxes run, want the new one", len(all))
	}
	readopt(t, s, "[machine]\nbackend = \"namespace\"\n")
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); code(err) != control.CodeConflict {
		t.Errorf("another backend: %v, want a conflict", err)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// A box of another backend's machine does not take the machine away under one that runs.
func TestOneMachineAtATime(t *testing.T) {
	s, m := vmWorld(t, vmConfig)
	first, err := s.CreateBox(t.Context(), control.BoxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{Oneshot: true, Backend: config.Podman}); code(err) != control.CodeConflict {
		t.Errorf("another backend's box: %v, want a conflict", err)
	}
	if all := s.running(); len(all) != 1 || all[0].id != first.ID || s.vm.m != machine.Machine(m) {
		t.Errorf("%d boxes run, and the machine is %v; want both as they were", len(all), s.vm.m)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// A start that fails gives up the boxes of a machine that does not run any more.
func TestMachineThatDoesNotComeBackLosesItsBoxes(t *testing.T) {
	s, m := vmWorld(t, vmConfig)
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Fatal(err)
	}
	m.Fail = &machine.Error{Detail: "the VM did not come up", Fix: "fy machine rm"}
	m.Crash()
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); code(err) != control.CodeHost || !strings.Contains(err.Error(), "did not come up") {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); len(s.running()) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("its box still counts as running")
		}
		time.Sleep(time.Millisecond)
	}
	m.Fail = nil
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Errorf("control: %v", err)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// [box] ports of a box in a machine are published as those of any box.
func TestPortOfABoxInAMachineIsPublished(t *testing.T) {
	inside, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := inside.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			_, _ = c.Write(append([]byte("box: "), b...))
			_ = c.Close()
		}
	}()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	_ = free.Close()
	s, _ := vmWorld(t, strings.Replace(vmConfig, "[box]", fmt.Sprintf("[box]\nports = [\"%s:%d\"]", at, inside.Addr().(*net.TCPAddr).Port), 1))
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Fatal(err)
	}
	ask := func() (string, error) {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_, _ = io.WriteString(c, "hello") // the answer tells
		_ = c.(*net.TCPConn).CloseWrite()
		b, err := io.ReadAll(c)
		return string(b), err
	}
	if got, err := ask(); err != nil || got != "box: hello" {
		t.Errorf("came back %q, %v", got, err)
	}
	_ = inside.Close()
	if got, err := ask(); err == nil {
		t.Errorf("nothing listens in the box: %q, want a reset", got)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", at); err == nil {
		t.Error("the port is published after the box's end")
	}
}

// The machine's engine is in the box only where [box] engine says so, and clients are told where.
func TestEngineIsInTheBoxOnlyWhenAskedFor(t *testing.T) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			s, m := vmWorld(t, strings.Replace(vmConfig, "[box]", fmt.Sprintf("[box]\nengine = %t", on), 1))
			out, err := s.CreateBox(t.Context(), control.BoxRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := m.count(":"+container.EngineSocket) > 0; got != on {
				t.Errorf("engine = %t: the socket is mounted: %t", on, got)
			}
			if got := slices.Contains(out.Env, "DOCKER_HOST=unix://"+container.EngineSocket); got != on {
				t.Errorf("engine = %t: DOCKER_HOST is set: %t", on, got)
			}
			if got := m.count(" true "+container.Program+" "+container.PauseVerb+" podman run") > 0; got != on {
				t.Errorf("engine = %t: the engine's socket is started: %t", on, got)
			}
			if _, err := s.StopBox(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// The step of a build is given the plan and our program, its outcomes come back whole, and nothing stays of it.
func TestProbesRunInAStepOfABuild(t *testing.T) {
	dir := t.TempDir()
	// A podman that shows what it was told to build, as the outcome.
	stub := `#!/bin/sh
echo "$1" >>"` + dir + `/verbs"
[ "$1" = build ] || exit 0
for a in "$@"; do
	case "$last" in --file) file=$a ;; esac
	case "$a" in *:/fy) fy=${a%:/fy} ;; esac
	last=$a
done
{ cat "$file"; echo "plan: $(cat "$fy/plan")"; } >"$fy/out"
echo "$fy" >"` + dir + `/where"
echo sha256:1234
`
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte(stub), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", buildStep, "sh", "/opt/foldyard/fy-1", "localhost/box:1")
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	cmd.Stdin = strings.NewReader(`[{"id":"x"}]`)
	out, err := cmd.CombinedOutput()
	want := "FROM localhost/box:1\nRUN [\"/opt/foldyard/fy-1\", \"__vmprobe\", \"/fy/plan\", \"/fy/out\"]\nplan: [{\"id\":\"x\"}]\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, got %q, want %q", err, out, want)
	}
	if verbs, _ := os.ReadFile(filepath.Join(dir, "verbs")); string(verbs) != "build\nrmi\n" {
		t.Errorf("podman was told %q", verbs)
	}
	where, _ := os.ReadFile(filepath.Join(dir, "where"))
	if _, err := os.Stat(strings.TrimSpace(string(where))); !os.IsNotExist(err) || len(where) < 2 {
		t.Errorf("%s stays: %v", where, err)
	}
}

// A machine is given the program that fy carries for it, where there is one, and by another name when that changes.
func TestMachineIsGivenItsOwnProgram(t *testing.T) {
	s, _ := vmWorld(t, vmConfig)
	read := func() (name, text string) {
		dir, name, err := s.share()
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		return name, string(b)
	}
	s.opt.Programs.Guest = []byte("for the guest")
	first, text := read()
	if text != "for the guest" {
		t.Errorf("got %.40q", text)
	}
	s.opt.Programs.Guest = []byte("for the guest, a later one")
	if second, _ := read(); second == first {
		t.Error("another program has the same name")
	}
	s.opt.Programs.Guest = nil
	self, err := os.ReadFile(s.opt.Program)
	if err != nil {
		t.Fatal(err)
	}
	if _, text := read(); text != string(self) {
		t.Error("without one it is fy itself")
	}
}

// The port of a box in a machine is for who shows its token; the token is for that port alone, and no other request may carry it.
func TestWayOutOfABoxInAMachine(t *testing.T) {
	s, _ := vmWorld(t, vmConfig)
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Fatal(err)
	}
	b := s.longLived()
	out, err := url.Parse(b.outURL)
	if err != nil {
		t.Fatal(err)
	}
	engine := loopback(s.vm.band + state.PortEngine).String()
	show := func(u *url.Userinfo) string {
		return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.String())) + "\r\n"
	}
	ask := func(at, method, target, fields string) string {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // the read shows it
		host := strings.TrimSuffix(strings.TrimPrefix(target, "http://"), "/")
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", method, target, host, fields)
		answer := make([]byte, 4096)
		n, _ := io.ReadFull(c, answer)
		return string(answer[:n])
	}
	own := show(out.User)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "origin ", r.Header) }))
	defer origin.Close()
	if _, err := s.Allow(t.Context(), control.RuleRequest{Rules: []string{strings.TrimPrefix(origin.URL, "http://")}, Internal: true}); err != nil {
		t.Fatal(err)
	}
	known, other := "http://"+dest.ControlName+"/", "http://other.test/"
	for _, tt := range []struct{ name, at, method, target, fields, want string }{
		{"the token", out.Host, "GET", known, own, " 200 "},
		{"no token", out.Host, "GET", known, "", " 407 "},
		{"the box's token on the engine's port", engine, "GET", known, own, " 407 "},
		{"the engine's on its own", engine, "GET", known, show(url.UserPassword(proxy.TokenUser, s.vm.engineToken())), " 200 "},
		{"the engine's on the box's port", out.Host, "GET", known, show(url.UserPassword(proxy.TokenUser, s.vm.engineToken())), " 407 "},
		{"a host that is not granted", out.Host, "GET", other, own, "Foldyard-Reason: not_granted"},
		{"CONNECT to one", out.Host, "CONNECT", "other.test:443", own, "Foldyard-Reason: not_granted"},
		{"a host that is granted", out.Host, "GET", origin.URL + "/", own, "origin "},
		{"the box's token in another field", out.Host, "GET", origin.URL + "/", own + "X: " + b.token + "\r\n", "Foldyard-Reason: dummy_elsewhere"},
		{"the engine's token in another field", out.Host, "GET", origin.URL + "/", own + "X: " + s.vm.engineToken() + "\r\n", "Foldyard-Reason: dummy_elsewhere"},
	} {
		got := ask(tt.at, tt.method, tt.target, tt.fields)
		if strings.Contains(got, "Proxy-Authorization:") || strings.Contains(got, b.token) {
			t.Errorf("%s: the token went upstream: %q", tt.name, got)
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %.300q, want %q", tt.name, got, tt.want)
		}
	}
	token := b.token
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if s.vm.engineToken() != "" {
		t.Error("a token is left after the machine's end")
	}
	again, err := s.CreateBox(t.Context(), control.BoxRequest{})
	if err != nil || again.ID == b.id || s.longLived().token == token {
		t.Errorf("another box has the same token: %v", err)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// The kept home of a machine's boxes lies in the machine: it is started for it, and is stopped again.
func TestHomeInAMachineIsReset(t *testing.T) {
	s, m := vmWorld(t, vmConfig)
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := s.ResetHome(t.Context()); code(err) != control.CodeConflict {
		t.Errorf("while a box uses it: %v", err)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := s.ResetHome(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.count("podman volume rm") != 1 || m.Boots() != 2 {
		t.Errorf("%d removals, %d boots", m.count("podman volume rm"), m.Boots())
	}
	if st, err := m.State(t.Context()); err != nil || st.State != machine.Stopped {
		t.Errorf("the machine is %+v, %v", st, err)
	}
}

// What cannot become a box is told before a machine is started for it.
func TestBadBoxIsToldBeforeTheMachineStarts(t *testing.T) {
	for name, tt := range map[string]struct{ config, says string }{
		"no image":               {strings.Replace(vmConfig, `image = "localhost/box:1"`, "", 1), "no image"},
		"an archive not there":   {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "box.tar"`, 1), "box.tar"},
		"an archive outside":     {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "../box.tar"`, 1), "rootfs"},
		"a mount not there":      {strings.Replace(vmConfig, "[box]", "[box]\nmounts = [\"./nowhere:ro\"]", 1), "nowhere"},
		"a mount of a link":      {strings.Replace(vmConfig, "[box]", "[box]\nmounts = [\"./link\"]", 1), "no directory"},
		"a FIFO":                 {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "fifo"`, 1), "no regular file"},
		"an archive that is one": {strings.Replace(vmConfig, `image = "localhost/box:1"`, `rootfs = "good.tar"`, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := vmWorld(t, tt.config)
			if err := os.WriteFile(filepath.Join(s.opt.Dir, "good.tar"), []byte("an archive"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc", filepath.Join(s.opt.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(filepath.Join(s.opt.Dir, "fifo"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := s.CreateBox(t.Context(), control.BoxRequest{})
			if tt.says == "" {
				if err != nil || m.Boots() != 1 {
					t.Errorf("control: %v, %d boots", err, m.Boots())
				}
				if _, err := s.StopBox(t.Context(), ""); err != nil {
					t.Error(err)
				}
				return
			}
			if code(err) != control.CodeBad || !strings.Contains(err.Error(), tt.says) || m.Boots() != 0 {
				t.Errorf("got %v after %d boots", err, m.Boots())
			}
		})
	}
}

// [box] mounts hold in a machine's box too, and what a machine does not have is refused.
func TestMountsOfABoxInAMachine(t *testing.T) {
	s, m := vmWorld(t, strings.Replace(vmConfig, "[box]", "[box]\nmounts = [\"./data:ro\"]", 1))
	if err := os.Mkdir(filepath.Join(s.opt.Dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(s.opt.Dir, "data")
	if m.count("--volume="+data+":"+data+":ro") != 1 {
		t.Errorf("not mounted: %q", m.ran)
	}
	if _, err := s.StopBox(t.Context(), ""); err != nil {
		t.Error(err)
	}
	outside := &config.Effective{}
	outside.Box.Mounts = []config.Mount{{Source: "/usr/share"}}
	if _, err := s.vmMounts(outside); code(err) != control.CodeBad {
		t.Errorf("a path of this computer's: %v", err)
	}
	outside.Box.Mounts = []config.Mount{{Source: data, Target: "/elsewhere"}}
	if _, err := s.vmMounts(outside); code(err) != control.CodeBad {
		t.Errorf("another place: %v", err)
	}
}

// TestRealPodman starts our program where verify does, with the podman of this computer: see test/e2e/podman.sh.
func TestRealPodman(t *testing.T) {
	parts := os.Getenv("FY_PODMAN_TEST")
	if parts == "" {
		t.Skip("no FY_PODMAN_TEST")
	}
	run := func(in string, argv ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdin = strings.NewReader(in)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, errs.String())
		}
		return string(out), err
	}
	const image = "localhost/places:1"
	if _, err := run("", "podman", "import", "--quiet", filepath.Join(parts, "box.tar"), image); err != nil {
		t.Fatal(err)
	}
	before, err := run("", "podman", "images", "--all", "--quiet")
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{}
	s.vm.program = filepath.Join(parts, "fy-guest")
	b := &sandbox{id: "x"}
	const plan = `[{"id":"a","kind":"run","argv":["true"]},{"id":"b","kind":"tcp","target":"127.0.0.1:1"}]`
	for _, p := range s.vmPlaces(b, image) {
		if p.Name == "box" { // the box's own container, which is package container's to test
			continue
		}
		s.vm.m = &hostVM{run: func(c machine.Command) ([]byte, error) {
			in, err := io.ReadAll(c.Stdin)
			if err != nil {
				return nil, err
			}
			out, err := run(string(in), c.Argv...)
			return []byte(out), err
		}}
		out, err := p.Run(t.Context(), []byte(plan))
		if err != nil || !strings.Contains(string(out), `"id":"a","outcome":"reached"`) || !strings.Contains(string(out), `"id":"b","outcome":"refused"`) {
			t.Errorf("%s: %v, %s", p.Name, err, out)
		}
	}
	if left, err := run("", "podman", "ps", "--all", "--quiet"); err != nil || left != "" {
		t.Errorf("containers are left: %q, %v", left, err)
	}
	if after, err := run("", "podman", "images", "--all", "--quiet"); err != nil || after != before {
		t.Errorf("images were %q, and are %q, %v", before, after, err)
	}
}

// hostVM is a machine that is this computer.
type hostVM struct {
	machinetest.Fake
	run func(machine.Command) ([]byte, error)
}

func (h *hostVM) Run(_ context.Context, c machine.Command) ([]byte, error) { return h.run(c) }

// What the machine's engine cannot do is told with what mends it, and leaves no box.
func TestEngineThatFailsIsExplained(t *testing.T) {
	for part, tt := range map[string]struct{ says, hint string }{
		"podman run --detach": {"no space left on device", "larger [machine] disk"},
		"podman pull":         {"403 Forbidden", "fy allow"},
	} {
		t.Run(part, func(t *testing.T) {
			s, m := vmWorld(t, vmConfig)
			m.fail = map[string]error{part: &machine.ExitError{Code: 125, Stderr: "Error: " + tt.says}}
			if part == "podman pull" {
				m.fail["podman image exists"] = &machine.ExitError{Code: 1}
			}
			_, err := s.CreateBox(t.Context(), control.BoxRequest{})
			var e *control.Error
			if !errors.As(err, &e) || !strings.Contains(e.Detail, tt.says) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("got %v, hint %q", err, e.Hint)
			}
			if all := s.running(); len(all) > 0 {
				t.Errorf("%d boxes are left", len(all))
			}
			if recs, err := state.ListBoxes(s.opt.Project); err != nil || len(recs) > 0 {
				t.Errorf("records %v, %v", recs, err)
			}
			m.fail = nil
			if _, err := s.CreateBox(t.Context(), control.BoxRequest{}); err != nil {
				t.Errorf("control, once it is mended: %v", err)
			}
			if _, err := s.StopBox(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// Who empties the home and who makes a box that uses it wait for each other, and no machine is stopped under a box that has just begun.
func TestResetOfTheHomeAndAStartWaitForEachOther(t *testing.T) {
	begin := func(t *testing.T, held string, f func(*Supervisor) error) (*Supervisor, *podmanVM, chan struct{}, chan error) {
		s, m := vmWorld(t, vmConfig)
		gate, done := make(chan struct{}), make(chan error, 1)
		m.hold = map[string]chan struct{}{held: gate}
		go func() { done <- f(s) }()
		<-gate
		return s, m, gate, done
	}
	create := func(s *Supervisor) error {
		_, err := s.CreateBox(t.Context(), control.BoxRequest{Oneshot: true, Home: true})
		return err
	}
	reset := func(s *Supervisor) error { return s.ResetHome(t.Context()) }
	t.Run("a start during a reset", func(t *testing.T) {
		s, m, gate, done := begin(t, "podman volume rm", reset)
		made := make(chan error, 1)
		go func() { made <- create(s) }()
		time.Sleep(20 * time.Millisecond) // for a start that does not wait to show it
		if n := m.count("podman run --detach"); n > 0 {
			t.Error("a box is made while its home is emptied")
		}
		gate <- struct{}{}
		if err := errors.Join(<-done, <-made); err != nil {
			t.Fatal(err)
		}
		if st, err := m.State(t.Context()); err != nil || st.State != machine.Running || len(s.running()) != 1 {
			t.Errorf("%d boxes, and the machine is %+v, %v; want one that runs", len(s.running()), st, err)
		}
	})
	t.Run("a reset during a start", func(t *testing.T) {
		s, m, gate, done := begin(t, "podman run --detach", create)
		emptied := make(chan error, 1)
		go func() { emptied <- reset(s) }()
		time.Sleep(20 * time.Millisecond) // for a reset that does not wait to show it
		gate <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := <-emptied; code(err) != control.CodeConflict {
			t.Errorf("the reset: %v, want a conflict", err)
		}
		if n := m.count("podman volume rm"); n > 0 {
			t.Errorf("the home was removed %d times under a box that uses it", n)
		}
	})
}

// A supervisor that comes back holds what a machine's box must not write. Where it cannot, the box is ended, and not only warned of.
func TestBoxWhoseRepoCannotBeHeldAgainIsEnded(t *testing.T) {
	for _, held := range []bool{true, false} {
		s, m := vmWorld(t, vmConfig)
		if err := os.Mkdir(filepath.Join(s.opt.Dir, ".git"), 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := s.CreateBox(t.Context(), control.BoxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		s.keep.Store(true)
		s.close()
		if !held {
			if err := os.Symlink("/etc", filepath.Join(s.opt.Dir, ".idea")); err != nil {
				t.Fatal(err)
			}
		}
		next := start(t, s.opt)
		t.Cleanup(next.close)
		next.vm.m = m
		next.adoptAll(t.Context())
		if got := next.longLived() != nil; got != held {
			t.Errorf("held: %t; the box goes on: %t", held, got)
		}
		goes := func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.runs[container.Name(out.ID)]
		}
		for deadline := time.Now().Add(10 * time.Second); goes() != held && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if goes() != held {
			t.Errorf("held: %t; its container runs: %t", held, goes())
		}
		if held {
			if _, err := next.StopBox(t.Context(), ""); err != nil {
				t.Error(err)
			}
		}
	}
}
