package namespace

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	if err := likeAHost(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// likeAHost starts a test that runs as root once more, in a mount namespace where every mount is shared, as on a host with systemd.
// Where all are private anyway, a mount that reaches the host would not be seen.
func likeAHost() error {
	const done = "FY_TEST_SHARED_MOUNTS"
	if os.Geteuid() != 0 || os.Getenv(done) != "" {
		return nil
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace of the tests: %w", err)
	}
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} { // of our own, and then among ourselves
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("mount namespace of the tests: %w", err)
		}
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), done+"=1"))
}

func TestNoMountOfABoxReachesTheHost(t *testing.T) {
	mounts := func() string {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if os.Geteuid() == 0 && !strings.Contains(mounts(), " shared:") {
		t.Fatal("the control: no mount of the host is shared")
	}
	repo := t.TempDir()
	for _, name := range []string{".envrc", ".git/hooks/pre-commit"} { // what a box sees through mounts of its own
		if err := os.MkdirAll(filepath.Dir(filepath.Join(repo, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repo, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := mounts()
	box, spec := testBox(t, func(s *Spec) { s.Repo = repo })
	if out, code := in(t, box, spec, "grep -c "+repo+" /proc/self/mountinfo"); code != 0 || out == "0\n" {
		t.Fatalf("the control: the box has no mounts in its repo: %q, status %d", out, code)
	}
	if after := mounts(); after != before {
		t.Errorf("while a box runs the host has\n%s\nbefore it had\n%s", after, before)
	}
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
	links, err := Start(ctx, p, nil, spec, socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(links.Close)
	c := NewClient(socket, spec.Nonce)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c.Stop(ctx)
	})
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

// The root is the box's own: what is listed here and nothing else. Each line of the script prints what must be.
func TestWhatTheBoxSees(t *testing.T) {
	c, spec := testBox(t, nil)
	for _, tt := range []struct{ name, script, want string }{
		{"control", "echo yes", "yes"},
		{"nothing of the host's root", "for d in /srv /opt /mnt /media /root /sys /boot /lost+found; do ls -d $d 2>/dev/null; done; ls /home; ls /run /var", "dev\n/run:\n\n/var:\ntmp"},
		{"no secret of /etc", "for f in shadow gshadow sudoers ssh fstab machine-id krb5.keytab; do ls -d /etc/$f 2>/dev/null; done; cat /etc/passwd", "dev:x:1:1::/home/dev:/bin/sh"},
		{"own devices", "ls /dev | tr '\\n' ' '", "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"},
		{"own processes", "ls /proc | grep -c '^[0-9]*$' | awk '{print ($1 < 8)}'", "1"},
		{"no door in /proc", "for f in kcore keys sysrq-trigger bus irq scsi; do cat /proc/$f 2>/dev/null | head -c 1; done; (echo 1 >/proc/sys/kernel/core_pattern) 2>/dev/null || echo shut", "shut"},
		{"no capability, no new privileges, a filter", "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status | awk '{print $2}' | sort | uniq -c | awk '{print $1, $2}'", "5 0000000000000000\n1 1\n1 2"},
		{"bounded", "ulimit -c; awk '/processes/ {print ($3 <= 8192)} /open files/ {print ($4 <= 65536)}' /proc/self/limits", "0\n1\n1"},
		{"any port may be served", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
		{"loopback alone, with an address that resolvers count", "tail -n +3 /proc/net/dev | cut -d: -f1 | grep -vE 'sit0|tunl0|gre|ip6|erspan|vti' | tr -d ' '; grep -qw 198.18.0.1 /proc/net/fib_trie && echo there", "lo\nthere"},
		{"no set-id or device on what it mounts", "awk '$2 !~ /^.dev/ && $2 !~ /^.proc/ && ($4 !~ /nosuid/ || $4 !~ /nodev/) {print $2}' /proc/mounts", ""},
		{"system read-only", "awk '$2 ~ /^.(usr|etc)/ && $4 !~ /^ro/ {print $2}' /proc/mounts; (echo x >/usr/x) 2>/dev/null || echo shut", "shut"},
		{"own name", "cat /proc/sys/kernel/hostname", "box"},
		{"own tmp", "ls -A /tmp /dev/shm | grep -v TestWhatTheBoxSees; touch /tmp/x /dev/shm/x && echo writable", "/dev/shm:\n\n/tmp:\nwritable"},
	} {
		out, _ := in(t, c, spec, tt.script)
		if got := strings.TrimSpace(out); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	b, err := c.Probe(t.Context(), testProgram(t), []byte(`{"a":1}`), false)
	if err != nil || !strings.Contains(string(b), "1") {
		t.Fatalf("probe: %s %v", b, err)
	}
}
