package supervisor

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
)

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
