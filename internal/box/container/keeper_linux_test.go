package container

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/box/wire"
)

// TestMain lets the test binary be what runs in the container.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == EnterVerb {
		os.Exit(Enter(os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) == 3 && os.Args[1] == DialVerb {
		os.Exit(Connect(os.Args[2], os.Stdin, os.Stdout))
	}
	if len(os.Args) == 2 && os.Args[1] == PauseVerb {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeVM runs what is meant for the container on this computer, and notes the rest.
type fakeVM struct {
	ran [][]string
	err error
}

func (f *fakeVM) host(t *testing.T) Host {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Host{
		Argv: func([]string) []string { return []string{self, EnterVerb} },
		Run: func(_ context.Context, _ io.Reader, argv ...string) ([]byte, error) {
			f.ran = append(f.ran, argv)
			return []byte("running\n"), f.err
		},
	}
}

func newKeeper(t *testing.T) (*Keeper, string) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	k := &Keeper{Host: (&fakeVM{}).host(t), ID: "b1", Nonce: "n", Digest: "d", Proxy: l}
	socket := filepath.Join(t.TempDir(), "s")
	if len(socket) > 100 {
		socket = filepath.Join("/tmp", filepath.Base(filepath.Dir(filepath.Dir(socket)))+".sock")
	}
	if err := k.Serve(t.Context(), socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Gone(); _ = os.Remove(socket) })
	return k, socket
}

func dialKeeper(t *testing.T, socket string) *wire.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.New(c.(*net.UnixConn))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// runIn runs a command over the socket as the CLI does, and returns its exit status.
func runIn(t *testing.T, socket string, e wire.Exec, stdin string, during func(*wire.Conn)) (code int, stdout, stderr string) {
	t.Helper()
	var ends [3][2]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = [2]*os.File{r, w}
	}
	c := dialKeeper(t, socket)
	if err := c.Send(&wire.Message{Op: "exec", Nonce: "n", Exec: &e}, ends[0][0], ends[1][1], ends[2][1]); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{ends[0][0], ends[1][1], ends[2][1]} {
		_ = f.Close()
	}
	go func() {
		_, _ = io.WriteString(ends[0][1], stdin)
		_ = ends[0][1].Close()
	}()
	var out, errs bytes.Buffer
	read := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(&out, ends[1][0]); read <- struct{}{} }()
	go func() { _, _ = io.Copy(&errs, ends[2][0]); read <- struct{}{} }()
	if m, _, err := c.Recv(); err != nil || m.Op != "started" {
		t.Fatalf("got %+v, %v; want started", m, err)
	}
	if during != nil {
		during(c)
	}
	m, _, err := c.Recv()
	if err != nil || m.Op != "exited" {
		t.Fatalf("got %+v, %v; want exited", m, err)
	}
	<-read
	<-read
	return m.Status >> 8, out.String(), errs.String()
}

func TestCommandsRunAsTheyWouldInAnyBox(t *testing.T) {
	_, socket := newKeeper(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plain"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, stdin  string
		argv, env    []string
		code         int
		stdout, said string
	}{
		{"words and output", "", []string{"/bin/sh", "-c", `printf '%s|' "$@"`, "sh", "a  b", "", "$HOME"}, nil, 0, "a  b||$HOME|", ""},
		{"a status", "", []string{"sh", "-c", "echo no >&2; exit 7"}, []string{"PATH=/bin"}, 7, "", "no\n"},
		{"input, whole and binary", "a\x00b\xff" + strings.Repeat("x", 100_000), []string{"/bin/sh", "-c", "wc -c"}, []string{"PATH=/usr/bin:/bin"}, 0, "100004\n", ""},
		{"only the environment that was given", "", []string{"env"}, []string{"PATH=/usr/bin:/bin", "A=1"}, 0, "PATH=/usr/bin:/bin\nA=1\n", ""},
		{"where it was told to", "", []string{"pwd"}, []string{"PATH=/bin"}, 0, dir + "\n", ""},
		{"a signal", "", []string{"/bin/sh", "-c", "kill -9 $$"}, nil, 137, "", ""},
		{"a status of 255 is the command's", "", []string{"/bin/sh", "-c", "exit 255"}, nil, 255, "", ""},
		{"not there", "", []string{"no-such-program"}, []string{"PATH=/bin"}, 127, "", `"no-such-program": no such file`},
		{"not executable", "", []string{filepath.Join(dir, "plain")}, nil, 126, "", "permission denied"},
	} {
		code, out, said := runIn(t, socket, wire.Exec{Argv: tt.argv, Env: tt.env, Dir: dir}, tt.stdin, nil)
		if code != tt.code || out != tt.stdout || !strings.Contains(said, tt.said) {
			t.Errorf("%s: %d %q %q, want %d %q %q", tt.name, code, out, said, tt.code, tt.stdout, tt.said)
		}
	}
}

func TestSignalReachesTheCommand(t *testing.T) {
	_, socket := newKeeper(t)
	code, _, _ := runIn(t, socket, wire.Exec{Argv: []string{"/bin/sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.05; done"}, Env: []string{"PATH=/bin:/usr/bin"}, Dir: "/"}, "", func(c *wire.Conn) {
		for range 20 { // until the trap is set
			if err := c.Send(&wire.Message{Op: "signal", Signal: 15}); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	if code != 9 && code != 143 {
		t.Errorf("exit %d, want 9 of the trap, or 143 before it was set", code)
	}
}

func TestTerminal(t *testing.T) {
	_, socket := newKeeper(t)
	c := dialKeeper(t, socket)
	e := wire.Exec{Argv: []string{"/bin/sh", "-c", "stty size; read a; echo got $a; tty >/dev/null && echo tty"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", TTY: true, Rows: 33, Cols: 77}
	if err := c.Send(&wire.Message{Op: "exec", Nonce: "n", Exec: &e}); err != nil {
		t.Fatal(err)
	}
	m, files, err := c.Recv()
	if err != nil || m.Op != "terminal" || len(files) != 1 {
		t.Fatalf("got %+v, %d files, %v; want a terminal", m, len(files), err)
	}
	if _, err := files[0].WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, files[0])
		out <- b.String()
	}()
	for m.Op != "exited" {
		if m, _, err = c.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	got := <-out
	if m.Status != 0 || !strings.Contains(got, "33 77") || !strings.Contains(got, "got hello") || !strings.Contains(got, "tty") {
		t.Errorf("status %d, the terminal shows %q", m.Status, got)
	}
}

// A keeper obeys nobody who does not show the nonce.
func TestStrangersAreRefused(t *testing.T) {
	_, socket := newKeeper(t)
	for _, nonce := range []string{"", "x", "nn"} {
		for _, op := range []string{"exec", "adopt", "stop", "facts"} {
			c := dialKeeper(t, socket)
			if err := c.Send(&wire.Message{Op: op, Nonce: nonce, Exec: &wire.Exec{Argv: []string{"true"}}}); err != nil {
				t.Fatal(err)
			}
			if m, _, err := c.Recv(); err != nil || m.Op != "failed" {
				t.Errorf("%s with nonce %q: %+v, %v", op, nonce, m, err)
			}
		}
	}
	c := dialKeeper(t, socket)
	if err := c.Send(&wire.Message{Op: "facts", Nonce: "n"}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := c.Recv(); err != nil || m.Op != "ok" || !strings.Contains(string(m.Data), `"digest":"d"`) {
		t.Errorf("control: %+v, %v", m, err)
	}
}

func TestAdopterGetsTheWayOutAndLearnsOfTheEnd(t *testing.T) {
	_, socket := newKeeper(t)
	c := dialKeeper(t, socket)
	if err := c.Send(&wire.Message{Op: "adopt", Nonce: "n"}); err != nil {
		t.Fatal(err)
	}
	m, files, err := c.Recv()
	if err != nil || m.Op != "links" || len(files) != 1 || m.Names[0] != "proxy" {
		t.Fatalf("got %+v, %d files, %v", m, len(files), err)
	}
	_ = files[0].Close()
	s := dialKeeper(t, socket)
	if err := s.Send(&wire.Message{Op: "stop", Nonce: "n"}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := s.Recv(); err != nil || m.Op != "ok" {
		t.Fatalf("stop: %+v, %v", m, err)
	}
	if _, _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the adopter hears %v, want the end", err)
	}
}
