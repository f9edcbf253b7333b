package container

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"foldyard/internal/testkit"
)

func testSpec() Spec {
	return Spec{ID: "b1", Image: "localhost/x:1", Repo: "/home/dev/app", Guarded: []string{".git/hooks"}, User: "dev", Home: "/home/dev", UID: 1000, Program: "/opt/foldyard/fy-1",
		Files: map[string][]byte{"/etc/foldyard/ca.pem": []byte("ca"), "/etc/passwd": []byte("not ours there")}}
}

func TestArgumentsSayWhatTheBoxIs(t *testing.T) {
	has := func(s Spec, want string) bool { return slices.Contains(s.args(), want) }
	s := testSpec()
	for _, want := range []string{"--userns=keep-id", "--cap-drop=all", "--security-opt=no-new-privileges", "--volume=/home/dev/app:/home/dev/app",
		"--volume=/home/dev/app/.git/hooks:/home/dev/app/.git/hooks:ro", "--volume=/home/dev/app/.git:/home/dev/app/.git", "--volume=/opt/foldyard/fy-1:/opt/foldyard/fy:ro", "--pull=never", "--tmpfs=/home/dev:rw,exec,mode=0777"} {
		if !has(s, want) {
			t.Errorf("no %s in %q", want, s.args())
		}
	}
	for _, bad := range []string{"podman.sock", "--privileged", "--network=host", "seccomp=unconfined"} {
		if strings.Contains(strings.Join(s.args(), " "), bad) {
			t.Errorf("%s in %q", bad, s.args())
		}
	}
	s.Mounts = []Mount{{Path: "data"}, {Path: "out", Write: true}}
	if !has(s, "--volume=/home/dev/app/data:/home/dev/app/data:ro") || !has(s, "--volume=/home/dev/app/out:/home/dev/app/out") {
		t.Errorf("mounts are not in %q", s.args())
	}
	s.ReadOnly, s.Engine, s.KeepHome = true, true, true
	if !has(s, "--volume=/home/dev/app/out:/home/dev/app/out:ro") {
		t.Errorf("a mount is writable where the repo is not: %q", s.args())
	}
	for _, want := range []string{"--volume=/home/dev/app:/home/dev/app:ro", "--volume=/run/user/1000/podman/podman.sock:/run/podman/podman.sock", "--volume=fy-home:/home/dev:U"} {
		if !has(s, want) {
			t.Errorf("no %s in %q", want, s.args())
		}
	}
	twin := s
	twin.ID = "b2"
	if s.Digest() != twin.Digest() {
		t.Error("a twin has another digest")
	}
	twin.Engine = false
	if s.Digest() == twin.Digest() || s.Digest() == s.Digest("another boot script") {
		t.Error("another construction has the same digest")
	}
}

func TestBadSpecIsRefused(t *testing.T) {
	for name, f := range map[string]func(*Spec){
		"an id that is a path":                 func(s *Spec) { s.ID = "../x" },
		"an image that is a flag":              func(s *Spec) { s.Image = "--privileged" },
		"no image":                             func(s *Spec) { s.Image = "" },
		"a repo that adds a mount":             func(s *Spec) { s.Repo = "/a:/b" },
		"a relative repo":                      func(s *Spec) { s.Repo = "a" },
		"a mount that adds a flag":             func(s *Spec) { s.Mounts = []Mount{{Path: "a:z"}} },
		"a mount out of the repo":              func(s *Spec) { s.Mounts = []Mount{{Path: "../a"}} },
		"a submodule's name that adds a mount": func(s *Spec) { s.Guarded = []string{".git/modules/a:/b/config"} },
		"a home that adds a mount":             func(s *Spec) { s.Home = "/a:/b" },
		"no program":                           func(s *Spec) { s.Program = "" },
	} {
		s := testSpec()
		f(&s)
		vm := &fakeVM{}
		if err := Start(t.Context(), vm.host(t), s); err == nil || len(vm.ran) > 0 {
			t.Errorf("%s: %v, ran %q", name, err, vm.ran)
		}
	}
	if err := Pull(t.Context(), (&fakeVM{}).host(t), "--all"); err == nil {
		t.Error("pulled a flag")
	}
	if _, err := Import(t.Context(), (&fakeVM{}).host(t), nil, "x; rm"); err == nil {
		t.Error("imported a digest that is none")
	}
	if err := Proxy(t.Context(), (&fakeVM{}).host(t), "http://a\"\nx"); err == nil {
		t.Error("wrote a URL that ends its line")
	}
}

// A container whose first process ends at once is no box.
func TestContainerThatEndsAtOnceIsAnError(t *testing.T) {
	as := mountsOf(testSpec())
	for state, want := range map[string]bool{"true\n" + as: true, "false\n" + as: false, "false\n": false, "true\n": false, "": false} {
		var ran []string
		h := Host{Run: func(_ context.Context, _ io.Reader, argv ...string) ([]byte, error) {
			ran = append(ran, strings.Join(argv, " "))
			return []byte(state), nil
		}}
		err := Start(t.Context(), h, testSpec())
		if (err == nil) != want || !want && !strings.Contains(ran[len(ran)-1], "podman rm") {
			t.Errorf("state %q: %v, ran %q", state, err, ran)
		}
	}
}

// A place is mounted once, and what the configuration mounts takes no guard off.
func TestGuardIsBeforeMounts(t *testing.T) {
	s := testSpec()
	s.Guarded = []string{".git/hooks", "tools/hooks"}
	s.Mounts = []Mount{{Path: "tools"}, {Path: ".git/hooks", Write: true}, {Path: "tools/hooks/run", Write: true}, {Path: ".git/hooks2", Write: true}}
	var got []string
	for _, a := range s.args() {
		if v, ok := strings.CutPrefix(a, "--volume="+s.Repo+"/"); ok {
			p, rest, _ := strings.Cut(v, ":")
			got = append(got, p+map[bool]string{true: " ro"}[strings.HasSuffix(rest, ":ro")])
		}
	}
	if want := []string{".git", ".git/hooks ro", ".git/hooks2", "tools ro", "tools/hooks ro", "tools/hooks/run ro"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// mountsOf is what is mounted in a container that was made as s says, with the repo at /vm of its file system.
func mountsOf(s Spec) string {
	var b strings.Builder
	ids := map[string]int{}
	fmt.Fprintf(&b, "1 0 0:1 / / rw - overlay overlay rw\n")
	for i, arg := range s.args() {
		v, ok := strings.CutPrefix(arg, "--volume="+s.Repo)
		if !ok {
			continue
		}
		rel, rest, _ := strings.Cut(v, ":")
		above := path.Dir(rel)
		for above != "/" && above != "." && ids[above] == 0 {
			above = path.Dir(above)
		}
		if above == "/" {
			above = ""
		}
		if ids[rel] = i + 10; rel == "" {
			above = "none"
		}
		options := "rw,relatime"
		if strings.HasSuffix(rest, ":ro") {
			options = "ro,relatime"
		}
		fmt.Fprintf(&b, "%d %d 0:2 %s %s %s - 9p mount0 rw\n", i+10, max(ids[above], 1), strings.ReplaceAll("/vm"+rel, " ", `\040`), strings.ReplaceAll(s.Repo+rel, " ", `\040`), options)
	}
	return b.String()
}

// What another box did to the repo while Podman made the container is seen before anything runs in it.
func TestWhatIsMountedIsCompared(t *testing.T) {
	s := testSpec()
	s.Repo = "/home/dev/my app"
	s.Guarded = []string{".git/config", ".git/hooks", ".git/modules/a/hooks", ".envrc"}
	s.Mounts = []Mount{{Path: "data"}, {Path: "cache", Write: true}}
	good := mountsOf(s)
	if err := s.held(good); err != nil {
		t.Fatalf("control: %v\n%s", err, good)
	}
	if err := s.held(strings.ReplaceAll(good, "/home/dev/", "/var/home/dev/")); err != nil {
		t.Errorf("control, an image whose /home is a link: %v", err)
	}
	line := func(part string) string {
		for l := range strings.Lines(good) {
			if strings.Contains(l, part) {
				return l
			}
		}
		t.Fatalf("nothing mounted at %s", part)
		return ""
	}
	swap := func(old, now string) string { return strings.Replace(good, old, now, 1) }
	for name, text := range map[string]string{
		"nothing was told":                       "",
		"two may be the repo":                    strings.ReplaceAll(good, "/home/dev/", "/var/home/dev/") + "99 1 0:2 / /srv/my\\040app rw - 9p mount0 rw\n",
		"a link for hooks, followed at its end":  swap(`/vm/.git/hooks `, `/vm/elsewhere `),
		"a link for hooks, in the container":     swap(`app/.git/hooks `, `app/elsewhere `),
		"hooks were moved away":                  swap(`/vm/.git/hooks `, `/vm/.git/hooks//deleted `),
		"a hook's directory is not there":        strings.Replace(good, line(`app/.git/hooks `), "", 1),
		"the git directory was swapped":          swap(`/vm/.git `, `/vm/other `),
		"the git directory is not pinned":        strings.Replace(good, line(`app/.git `), "", 1),
		"the mount is over another":              swap(strings.Join(strings.Fields(line(`app/.git/config `))[:2], " "), "99 1"),
		"something was mounted over it":          good + strings.Replace(line(`app/.git `), "/vm/.git", "/vm/other", 1),
		"it can be written":                      strings.Replace(good, line(`app/.git/config `), strings.Replace(line(`app/.git/config `), " ro,", " rw,", 1), 1),
		"a mount of [box] mounts is another":     swap(`/vm/data `, `/vm/.ssh `),
		"a mount of [box] mounts can be written": strings.Replace(good, line(`app/data `), strings.Replace(line(`app/data `), " ro,", " rw,", 1), 1),
	} {
		if err := s.held(text); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	s.ReadOnly, s.Guarded = true, nil
	if err := s.held(mountsOf(s)); err != nil {
		t.Errorf("control, --ro: %v", err)
	}
	if err := s.held(strings.ReplaceAll(mountsOf(s), " ro,", " rw,")); err == nil {
		t.Error("--ro, and the repo can be written")
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	var ran []string
	h := Host{Run: func(_ context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
		line := strings.Join(argv, " ")
		ran = append(ran, line)
		if stdin != nil {
			var names []string
			r := tar.NewReader(stdin)
			for {
				head, err := r.Next()
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Errorf("the archive ends with %v", err)
					}
					break
				}
				names = append(names, head.Name)
			}
			if !slices.Equal(names, []string{"ca.pem"}) {
				t.Errorf("the files are %q", names)
			}
			if rest, err := io.ReadAll(stdin); err != nil || len(rest) > 0 {
				t.Errorf("%d bytes follow the archive, %v", len(rest), err)
			}
		}
		if strings.Contains(line, "podman run") {
			return nil, errors.New("no space")
		}
		return nil, nil
	}}
	if err := Start(t.Context(), h, testSpec()); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("start: %v", err)
	}
	if last := ran[len(ran)-1]; !strings.Contains(last, "podman rm") || !strings.Contains(last, "fy-b1") {
		t.Errorf("ran %q, and did not clean up", ran)
	}
}

// The script that makes a container is read by a shell: its files are there before it, and that its first process has begun is told after it.
func TestStartScript(t *testing.T) {
	dir := t.TempDir()
	testkit.WriteExecutable(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\necho \"$@\" >"+dir+"/systemctl.said\n")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	process := func(args ...string) (*exec.Cmd, string) {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Args = args
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() }) // it ends with its input
		return cmd, strconv.Itoa(cmd.Process.Pid)
	}
	_, first := process(Program, PauseVerb)
	ended, gone := process(Program, PauseVerb)
	if err := ended.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = ended.Wait() // killed
	dead, zombie := process(Program, PauseVerb)
	if err := dead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, dead.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	files, err := archive(map[string][]byte{"/etc/foldyard/ca.pem": []byte("ca")})
	if err != nil {
		t.Fatal(err)
	}
	box := filepath.Join(dir, "box")
	start := func(engine, pid string, argv ...string) (string, error) {
		if err := os.WriteFile(box+".pid", []byte(pid+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", startScript, box, engine, firstProcess}, argv...)...)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
		cmd.Stdin = bytes.NewReader(files)
		out, err := cmd.Output()
		return string(out), err
	}
	out, err := start("false", first, "sh", "-c", `test -s "$1" && echo "$2" >"$3"`, "sh", box+"/ca.pem", "a  b", filepath.Join(dir, "ran"))
	if err != nil || !strings.HasPrefix(out, "true\n") || !strings.Contains(out, " / ") {
		t.Errorf("got %q, %v", out, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "ran")); err != nil || string(b) != "a  b\n" {
		t.Errorf("the container's command ran with %q, %v", b, err)
	}
	if info, err := os.Stat(box + "/ca.pem"); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("its file: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "systemctl.said")); err == nil {
		t.Error("the engine's socket was started unasked")
	}
	if _, err := start("true", first, "true"); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "systemctl.said")); string(b) != "--user start podman.socket\n" {
		t.Errorf("systemctl was told %q", b)
	}
	if out, err := start("false", first, "false"); err == nil {
		t.Errorf("a command that fails is no error: %q", out)
	}
	for _, pid := range []string{gone, zombie, "", "x"} {
		if out, _ := start("false", pid, "true"); out != "" {
			t.Errorf("a process %q that is none: %q", pid, out)
		}
	}
	runs := func(pid string) bool {
		if err := os.WriteFile(box+".pid", []byte(pid+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", runsScript, "fy-b1", box+".pid", firstProcess)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
		out, err := cmd.Output()
		return err == nil && len(out) > 0
	}
	testkit.WriteExecutable(t, filepath.Join(dir, "podman"), "#!/bin/sh\n") // it knows of none
	if !runs(first) || runs(gone) || runs("") || runs("1") {
		t.Error("what runs is not told from what does not")
	}
}

// What holds a guarded path is a mount of its own: renamed away, it would take the guard with it.
func TestParentsOfGuardedPaths(t *testing.T) {
	got := parents([]string{".git/modules/x/config", ".git/hooks", ".vscode", ".git/hooks/deep", "a/../.idea"})
	if want := []string{".git", ".git/modules", ".git/modules/x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
