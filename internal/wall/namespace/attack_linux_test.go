package namespace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"foldyard/internal/box/wire"
)

// withHelper puts the test's own binary into the repo, to attack from inside.
func withHelper(t *testing.T, s *Spec) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Repo, "helper"), b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func attempt(t *testing.T, c *Client, spec Spec, names ...string) map[string]string {
	t.Helper()
	out, _ := in(t, c, spec, "./helper "+tryVerb+" "+strings.Join(names, " ")+" 2>&1")
	got := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		n, rest, _ := strings.Cut(line, " ")
		got[n] = rest
	}
	if len(got) < len(names) {
		t.Fatalf("the helper did not finish: %s", out)
	}
	return got
}

func wantShut(t *testing.T, got map[string]string, names ...string) {
	t.Helper()
	for _, n := range names {
		if !strings.HasPrefix(got[n], "shut") {
			t.Errorf("%s: %q, want it shut", n, got[n])
		}
	}
}

func wantOpen(t *testing.T, got map[string]string, names ...string) {
	t.Helper()
	for _, n := range names {
		if got[n] != "open" {
			t.Errorf("control %s: %q, want it open", n, got[n])
		}
	}
}

func TestKernelDoorsAreShut(t *testing.T) {
	doors := []string{"unshare-user", "clone-user", "clone3", "vsock", "alg", "packet", "raw", "netlink-audit", "io_uring", "mount", "lease", "tiocsetd", "umount-proc-sys", "fsopen", "keyctl", "core-pattern", "sysrq",
		"write-usr", "write-etc", "write-root", "read-shadow", "see-sys", "pid1-exe", "pid1-fd", "pid1-mem", "pid1-trace", "pid1-kill"}
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	got := attempt(t, c, spec, append(doors, "netlink-route", "write-tmp", "chmod-plain", "getfl")...)
	wantShut(t, got, doors...)
	wantOpen(t, got, "netlink-route", "write-tmp", "chmod-plain", "getfl")
	for _, n := range []string{"unshare-user", "clone-user", "clone3"} {
		if err := tries[n](); err != nil {
			t.Errorf("control: %s is shut outside too (%v), so the test shows nothing", n, err)
		}
	}
}

func TestSetuidBitsCannotBeMade(t *testing.T) {
	bits := []string{"chmod-suid", "fchmodat-sgid", "open-suid", "tmpfile-suid", "mknod-suid"}
	for _, root := range []bool{false, true} {
		c, spec := testBox(t, func(s *Spec) { withHelper(t, s); s.Root = root })
		got := attempt(t, c, spec, append(bits, "chmod-plain")...)
		wantShut(t, got, bits...)
		wantOpen(t, got, "chmod-plain")
	}
}

func TestRootOfTheBoxHasNoPowerOverItsWalls(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s); s.Root = true })
	if out, _ := in(t, c, spec, "id -u"); out != "0\n" {
		t.Fatalf("uid %q, want 0", out)
	}
	doors := []string{"unshare-user", "packet", "raw", "mount", "umount-proc-sys", "core-pattern", "sysrq", "write-usr", "write-root", "pid1-exe", "pid1-mem", "pid1-trace", "git-config", "git-rename"}
	got := attempt(t, c, spec, doors...)
	wantShut(t, got, doors...)
}

func TestNestedOpensExactlyTheNamespaceFamily(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s); s.Nested = true })
	shut := []string{"io_uring", "keyctl", "vsock", "packet", "raw", "chmod-suid", "umount-proc-sys", "mount", "core-pattern"}
	got := attempt(t, c, spec, append(shut, "unshare-user", "clone3")...)
	wantShut(t, got, shut...)
	wantOpen(t, got, "unshare-user", "clone3")
}

func TestWhatHostToolsExecuteIsReadOnly(t *testing.T) {
	make := func(s *Spec) {
		withHelper(t, s)
		for _, d := range []string{".git/objects", ".git/modules/a/b/hooks", ".vscode"} {
			if err := os.MkdirAll(filepath.Join(s.Repo, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{".git/config", ".git/modules/a/b/HEAD", ".git/modules/a/b/config", ".envrc"} {
			if err := os.WriteFile(filepath.Join(s.Repo, f), []byte("[core]\n\thooksPath = tools/git-hooks\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	shut := []string{"git-config", "git-hook", "hooks-path", "hooks-path-move", "git-info", "hooks-rename", "module-hook", "module-move", "envrc", "vscode", "git-rename"}
	c, spec := testBox(t, make)
	got := attempt(t, c, spec, append([]string{"git-object", "chmod-plain"}, shut...)...)
	wantOpen(t, got, "git-object", "chmod-plain")
	wantShut(t, got, shut...)

	c, spec = testBox(t, func(s *Spec) { make(s); s.Writable = []string{".envrc"} })
	wantOpen(t, attempt(t, c, spec, "envrc"), "envrc")

	c, _ = testBox(t, func(s *Spec) {
		make(s)
		if err := errors.Join(os.Mkdir(filepath.Join(s.Repo, "elsewhere"), 0o755), os.Symlink("elsewhere", filepath.Join(s.Repo, ".husky"))); err != nil {
			t.Fatal(err)
		}
	})
	if f, err := c.Facts(t.Context()); err != nil || !slices.Equal(f.Linked, []string{".husky"}) {
		t.Errorf("links %v %v, want the one told that leads elsewhere", f, err)
	}

	c, spec = testBox(t, func(s *Spec) { make(s); s.RepoReadOnly = true })
	wantShut(t, attempt(t, c, spec, "git-object", "chmod-plain"), "git-object", "chmod-plain")
}

func TestSocketsLeftInTheRepoAreCovered(t *testing.T) {
	var l net.Listener
	c, spec := testBox(t, func(s *Spec) {
		withHelper(t, s)
		var err error
		if l, err = net.Listen("unix", filepath.Join(s.Repo, "left.sock")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(s.Repo, "left.sock"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(s.Repo, "left.fifo"), 0o666); err != nil {
			t.Fatal(err)
		}
	})
	defer l.Close()
	wantShut(t, attempt(t, c, spec, "repo-socket", "repo-fifo"), "repo-socket", "repo-fifo")
	if err := dialUnix(filepath.Join(spec.Repo, "left.sock")); err != nil {
		t.Errorf("control: the socket does not answer outside either: %v", err)
	}
	f, err := c.Facts(t.Context())
	if err != nil || len(f.Covered) != 2 {
		t.Errorf("covered %v %v, want both named", f, err)
	}
}

func TestNoDescriptorOfOursIsInherited(t *testing.T) {
	c, spec := testBox(t, nil)
	out, _ := in(t, c, spec, "ls /proc/self/fd | tr '\\n' ' '")
	if out != "0 1 2 3 " { // 3 is the directory that ls reads
		t.Errorf("descriptors %q, want only 0, 1 and 2", out)
	}
}

func TestTerminalIsTheBoxsOwnAndCannotBeTypedInto(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	s, err := c.Exec(t.Context(), wire.Exec{Argv: []string{"/bin/sh", "-c", "tty; stty size; ./helper " + tryVerb + " tiocsti"}, Env: []string{"PATH=/usr/bin:/bin", "TERM=dumb"}, Dir: spec.Repo, TTY: true, Rows: 11, Cols: 77})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	var out strings.Builder
	for {
		n, err := s.Terminal.Read(b)
		out.Write(b[:n])
		if err != nil {
			break
		}
	}
	s.Terminal.Close()
	if _, err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "/dev/pts/0") || !strings.Contains(out.String(), "11 77") || !strings.Contains(out.String(), "tiocsti shut") {
		t.Errorf("got %q", out.String())
	}
}

func TestRefusedTrafficEndsAtOnceAndIsTold(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	told := make(chan Refusal, 64)
	links, err := c.Adopt(t.Context(), func(rs []Refusal) {
		for _, r := range rs {
			told <- r
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	out, _ := in(t, c, spec, "./helper "+dialVerb+" tcp 192.0.2.1:443 tcp [2001:db8::1]:22 udp 192.0.2.1:443 udp [2001:db8::1]:443 tcp 203.0.113.7:8080")
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if !strings.Contains(line, "refused fast") {
			t.Errorf("%s, want it refused at once", line)
		}
	}
	want := map[string]bool{"tcp 192.0.2.1 443": true, "tcp 2001:db8::1 22": true, "udp 192.0.2.1 443": true, "udp 2001:db8::1 443": true, "tcp 203.0.113.7 8080": true}
	for len(want) > 0 {
		select {
		case r := <-told:
			delete(want, r.Proto+" "+r.Addr.String()+" "+strconv.Itoa(int(r.Port)))
		case <-time.After(5 * time.Second):
			t.Fatalf("never told of %v", want)
		}
	}
}

// answered adopts a box and answers it: what is redirected by f, DNS with what was asked.
func answered(t *testing.T, c *Client, f func(net.Conn)) *Links {
	t.Helper()
	links, err := c.Adopt(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { links.Close() })
	for _, l := range links.Redirect {
		go func() {
			for {
				conn, err := l.AcceptTCP()
				if err != nil {
					return
				}
				f(conn)
				conn.Close()
			}
		}()
	}
	for _, p := range links.DNSPacket {
		go func() {
			b := make([]byte, 512)
			for {
				n, from, err := p.ReadFrom(b)
				if err != nil {
					return
				}
				p.WriteTo(append([]byte("answer to "), b[:n]...), from)
			}
		}()
	}
	return links
}

// saysInOrder fails the test unless each line of out holds what is wanted of it.
func saysInOrder(t *testing.T, out string, want ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, w := range want {
		if i >= len(lines) || !strings.Contains(lines[i], w) {
			t.Fatalf("line %d of\n%s\nwant %q", i, out, w)
		}
	}
}

func TestNamesAndGrantedAddressesEndInOurListener(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	links := answered(t, c, func(conn net.Conn) { fmt.Fprint(conn, "ours") })
	out, _ := in(t, c, spec, "./helper "+dialVerb+" tcp 198.18.5.5:5432 tcp [fd5b:7d1e:9c04::9]:443 udp 192.0.2.53:53 udp [2001:db8::53]:53 tcp 192.0.2.80:80")
	saysInOrder(t, out, "ours", "ours", "answer to", "answer to", "refused")
	if err := links.SetGranted([]netip.Prefix{netip.MustParsePrefix("192.0.2.80/32"), netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("2001:db8:1:2::/64")}); err != nil {
		t.Fatal(err)
	}
	out, _ = in(t, c, spec, "./helper "+dialVerb+" tcp 192.0.2.80:80 tcp 192.0.2.81:80 tcp [2001:db8:1:ffff::1]:80 tcp [2001:db8:2::]:80")
	saysInOrder(t, out, "ours", "refused", "ours", "refused")
	if err := links.SetGranted(nil); err != nil {
		t.Fatal(err)
	}
	if out, _ = in(t, c, spec, "./helper "+dialVerb+" tcp 192.0.2.80:80"); !strings.Contains(out, "refused") {
		t.Errorf("revoked: %s", out)
	}
}

// Where the kernel has no nf_tables, listeners on a list of ports take what is sent to any address; the rest is refused as quickly.
func TestPortsDoWithoutRules(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s); s.Ports = true })
	if f, err := c.Facts(t.Context()); err != nil || f.Rules != "ports" || len(f.Devices) != 1 {
		t.Fatalf("facts %+v %v, want rules by ports and loopback alone", f, err)
	}
	links := answered(t, c, func(conn net.Conn) { fmt.Fprint(conn, "for ", conn.LocalAddr()) })
	if err := links.SetGranted([]netip.Prefix{netip.MustParsePrefix("192.0.2.80/32")}); err != nil {
		t.Errorf("granted addresses: %v", err)
	}
	out, _ := in(t, c, spec, "./helper "+dialVerb+" tcp 198.18.5.5:443 tcp [fd5b:7d1e:9c04::9]:80 udp 198.18.0.1:53 tcp 192.0.2.80:22 tcp 198.18.5.5:4444 udp 192.0.2.53:443")
	saysInOrder(t, out, "for 198.18.5.5:443", "for [fd5b:7d1e:9c04::9]:80", "answer to", "for 192.0.2.80:22", "refused fast", "refused fast")
}

// A one-shot box whose launcher died before its command was launched ends by itself; one that has its command goes on.
func TestOneshotThatNobodyLaunchesEnds(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { s.LaunchWithin = 2 * time.Second })
	f, err := c.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, code := in(t, c, spec, "true"); code != 0 { // a command of somebody else is no launch
		t.Fatalf("control: %d %s", code, out)
	}
	waitGone(t, "agent", f.Pid)
	waitGone(t, "keeper", f.Keeper)

	c, spec = testBox(t, func(s *Spec) { s.LaunchWithin = 3 * time.Second })
	s, err := c.Exec(t.Context(), wire.Exec{Argv: []string{"/bin/sh", "-c", "sleep 3.3; exit 7"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: spec.Repo, Launch: true, TTY: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Terminal.Close()
	if code, err := s.Wait(); err != nil || code != 7 {
		t.Errorf("launched: %d %v, want it to run to its end", code, err)
	}
}

// alive tells whether a process that is no zombie has this number.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func waitGone(t *testing.T, what string, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for alive(pid) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s (pid %d) is still there", what, pid)
		}
	}
}

func TestNothingStaysWhenAnyProcessIsKilled(t *testing.T) {
	for _, victim := range []string{"keeper", "agent", "launcher", "stop"} {
		t.Run(victim, func(t *testing.T) {
			c, spec := testBox(t, nil)
			f, err := c.Facts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			s, err := c.Exec(t.Context(), wire.Exec{Argv: []string{"/bin/sleep", "1000"}, Env: []string{"PATH=/bin"}, Dir: spec.Repo, Launch: true}, null, null, null)
			if err != nil {
				t.Fatal(err)
			}
			switch victim {
			case "keeper":
				unix.Kill(f.Keeper, unix.SIGKILL)
			case "agent":
				unix.Kill(f.Pid, unix.SIGKILL)
			case "launcher":
				s.conn.Close()
			case "stop":
				if err := c.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			waitGone(t, "the keeper", f.Keeper)
			waitGone(t, "the agent", f.Pid)
		})
	}
}

func TestWrongNonceGetsNothing(t *testing.T) {
	c, _ := testBox(t, nil)
	bad := NewClient(c.socket, "wrong")
	if _, err := bad.Adopt(t.Context(), nil); err == nil {
		t.Error("adopted without the nonce")
	}
	if _, err := bad.Exec(t.Context(), wire.Exec{Argv: []string{"/bin/true"}, TTY: true}); err == nil {
		t.Error("ran a command without the nonce")
	}
	if err := bad.Stop(t.Context()); err == nil {
		t.Error("stopped without the nonce")
	}
	if _, err := c.Facts(t.Context()); err != nil {
		t.Errorf("control: with the nonce: %v", err)
	}
}

func TestTwinHasTheSameDigestAndAnotherConstructionHasNot(t *testing.T) {
	digest := func(change func(*Spec)) string {
		c, _ := testBox(t, change)
		f, err := c.Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return f.Digest
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	same := func(s *Spec) { s.Repo = dir }
	a := digest(same)
	if b := digest(same); a != b {
		t.Error("a twin has another digest")
	}
	if b := digest(func(s *Spec) { s.Repo = dir; s.Nested = true }); a == b {
		t.Error("a relaxed filter has the same digest")
	}
}

func TestSupervisorThatComesBackIsHandedTheSameSockets(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	for range 2 {
		links, err := c.Adopt(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan struct{})
		go func() {
			conn, err := links.Redirect[0].Accept()
			if err == nil {
				conn.Write([]byte("ours"))
				conn.Close()
			}
			close(answered)
		}()
		if out, _ := in(t, c, spec, "./helper "+dialVerb+" tcp 198.18.5.5:5432"); !strings.Contains(out, "ours") {
			t.Errorf("got %q", out)
		}
		<-answered
		links.Close()
	}
}

func TestPublishedPortReachesWhatTheBoxListensOn(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := c.Exec(t.Context(), wire.Exec{Argv: []string{spec.Repo + "/helper", listenVerb, "127.0.0.1:80"}, Dir: spec.Repo}, null, w, w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	b := make([]byte, 64)
	if n, err := r.Read(b); err != nil || string(b[:n]) != "listening\n" {
		t.Fatalf("helper: %q %v", b[:n], err)
	}
	conn, err := c.DialPort(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, _ := conn.Read(b); string(b[:n]) != "served" {
		t.Errorf("got %q", b[:n])
	}
	if _, err := c.DialPort(t.Context(), 81); err == nil {
		t.Error("a port that nobody listens on answered")
	}
}

func TestConnectionIsAttributedToItsProcess(t *testing.T) {
	c, spec := testBox(t, func(s *Spec) { withHelper(t, s) })
	links, err := c.Adopt(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	found := make(chan *Process, 1)
	go func() {
		defer close(found)
		conn, err := links.Redirect[0].Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if p, err := c.Who(context.Background(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()); err == nil {
			found <- p
		}
	}()
	in(t, c, spec, "./helper "+dialVerb+" tcp 198.18.5.5:5432")
	p := <-found
	if p == nil || !strings.HasSuffix(p.Exe, "/helper") || !strings.Contains(p.Cmd, dialVerb+" tcp 198.18.5.5:5432") {
		t.Errorf("got %+v, want the helper", p)
	}
	if _, err := c.Who(t.Context(), netip.MustParseAddrPort("198.18.0.1:1")); err == nil {
		t.Error("a socket that does not exist has an owner")
	}
}

func TestWhatTheBoxPlantsInTheRepoMakesNoTwinDiffer(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	c, spec := testBox(t, func(s *Spec) { s.Repo = dir })
	before, err := c.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in(t, c, spec, "mkfifo fifo; mkdir .vscode; touch .envrc")
	twin, _ := testBox(t, func(s *Spec) { s.Repo = dir })
	after, err := twin.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before.Digest != after.Digest {
		t.Error("a FIFO that the box made in its repo makes its twin another construction")
	}
	if len(after.Covered) != 1 {
		t.Errorf("control: covered %v, want the FIFO", after.Covered)
	}
}

// A43: the host's root is never mapped, whoever asks.
func TestHostRootIsNeverMapped(t *testing.T) {
	_, spec := testBox(t, nil) // control: the same, as somebody else
	for _, u := range []User{{Name: "root", UID: 0, GID: spec.User.GID}, {Name: "dev", UID: spec.User.UID, GID: 0}, {Name: "none", UID: -1, GID: -1}} {
		bad := spec
		bad.User = u
		socket := filepath.Join(t.TempDir(), "s")
		_, err := Start(t.Context(), testProgram(t), nil, bad, socket, nil)
		if err == nil || !strings.Contains(err.Error(), "never mapped") {
			t.Errorf("uid %d gid %d: %v, want it refused", u.UID, u.GID, err)
		}
		if _, err := os.Lstat(socket); err == nil {
			t.Errorf("uid %d gid %d: a socket is left", u.UID, u.GID)
		}
	}
}
