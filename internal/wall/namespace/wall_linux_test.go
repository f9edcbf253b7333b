package namespace

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/box/agent"
	"foldyard/internal/box/wire"
)

// Verbs that the tests run inside a box.
const (
	tryVerb    = "__try"
	dialVerb   = "__dial"
	listenVerb = "__listen"
)

// The test's own binary is what keeper, agent and probe are executed from.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case KeeperVerb:
			os.Exit(Keep())
		case AgentVerb:
			os.Exit(agent.Main())
		case ProbeVerb:
			os.Exit(testProbe())
		case tryVerb:
			os.Exit(try(os.Args[2:]))
		case dialVerb:
			os.Exit(dialAll(os.Args[2:]))
		case listenVerb:
			os.Exit(listenAt(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

func testProgram(t *testing.T) *Program {
	t.Helper()
	p, err := OpenProgram("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// testBox starts a box over a new directory, or skips where the kernel cannot.
func testBox(t *testing.T, change func(*Spec)) (*Client, Spec) {
	t.Helper()
	for _, f := range Available(t.Context()) {
		if f.State == "fail" {
			t.Skipf("no boxes here: %s: %s", f.Name, f.Detail)
		}
	}
	p := testProgram(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(dir, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 65534, 65534
	}
	spec := Spec{ID: "test", Nonce: rand.Text(), Repo: repo, User: User{Name: "dev", UID: uid, GID: gid, Home: "/home/dev", Shell: "/bin/sh"},
		Files: map[string][]byte{"/etc/passwd": []byte("dev:x:1:1::/home/dev:/bin/sh\n")}}
	if change != nil {
		change(&spec)
	}
	socket := filepath.Join(dir, "box.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Start(ctx, p, spec, socket); err != nil {
		t.Fatal(err)
	}
	c := NewClient(socket, spec.Nonce)
	t.Cleanup(func() { c.Stop(context.Background()) })
	return c, spec
}

// in runs a shell script in the box.
func in(t *testing.T, c *Client, spec Spec, script string) (string, int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Exec(t.Context(), wire.Exec{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + spec.User.Home}, Dir: spec.Repo}, null, w, w)
	null.Close()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	io.Copy(&out, r)
	r.Close()
	code, err := s.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), code
}

func TestCommandRunsAndItsStatusComesBack(t *testing.T) {
	c, spec := testBox(t, nil)
	out, code := in(t, c, spec, "echo hello; pwd; exit 7")
	if code != 7 || out != "hello\n"+spec.Repo+"\n" {
		t.Fatalf("got %d %q", code, out)
	}
	if out, code := in(t, c, spec, "kill -9 $$"); code != 137 {
		t.Fatalf("killed: %d %q, want 137", code, out)
	}
	_, err := c.Exec(t.Context(), wire.Exec{Argv: []string{"/no/such"}, TTY: true})
	if se, ok := err.(*StartError); !ok || se.Errno != 2 {
		t.Fatalf("a missing program: %v, want ENOENT", err)
	}
}

func testProbe() int {
	plan, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	os.Stdout.Write(plan)
	return 0
}

func TestWhatTheBoxSees(t *testing.T) {
	c, spec := testBox(t, nil)
	out, _ := in(t, c, spec, `id -u; ls /; echo; ls /home /etc /dev /proc/self/fd; cat /proc/1/comm; cat /proc/mounts; tail -n +3 /proc/net/dev; ls -la /proc/1/exe; ps aux; touch /x; touch f; grep -i cap /proc/self/status`)
	t.Log(out)
	f, err := c.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", f)
	b, err := c.Probe(t.Context(), testProgram(t), []byte(`{"a":1}`), false)
	if err != nil || !strings.Contains(string(b), "1") {
		t.Fatalf("probe: %s %v", b, err)
	}
}
