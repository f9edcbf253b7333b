package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"foldyard/internal/box/wire"
)

// TestRealPodman makes a box with the podman of this computer, where FY_PODMAN_TEST names a directory with box.tar, a root file system
// with busybox, and fy-guest. It needs what a machine has: subordinate ids, a cgroup of one's own, and /home/fy.
func TestRealPodman(t *testing.T) {
	parts := os.Getenv("FY_PODMAN_TEST")
	if parts == "" {
		t.Skip("no FY_PODMAN_TEST")
	}
	h := Host{
		Argv: func(argv []string) []string { return argv },
		Run: func(ctx context.Context, in io.Reader, argv ...string) ([]byte, error) {
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Stdin = in
			out, err := cmd.Output()
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				err = fmt.Errorf("%w: %s", err, exit.Stderr)
			}
			return out, err
		},
	}
	tar, err := os.Open(filepath.Join(parts, "box.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer tar.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, tar); err != nil {
		t.Fatal(err)
	}
	if _, err := tar.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	image, err := Import(t.Context(), h, tar, hex.EncodeToString(sum.Sum(nil)))
	if err != nil {
		t.Fatal(err)
	}
	repo := t.TempDir()
	for _, d := range []string{".git/hooks", ".git/info", ".git/modules/a/hooks", "data", "src"} {
		if err := os.MkdirAll(filepath.Join(repo, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{".git/config", ".git/commondir", "data/file", "src/file"} {
		if err := os.WriteFile(filepath.Join(repo, f), []byte("before\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := Spec{
		ID: "real", Image: image, Repo: repo, User: "dev", Home: "/home/dev", UID: os.Getuid(), Program: filepath.Join(parts, "fy-guest"),
		Guarded: []string{".git/config", ".git/commondir", ".git/hooks", ".git/info", ".git/modules/a/hooks"}, Mounts: []Mount{{Path: "data"}, {Path: ".git/modules", Write: true}},
		Files: map[string][]byte{"/etc/foldyard/ca.pem": []byte("ca")},
	}
	if err := os.Symlink("src/file", filepath.Join(repo, ".envrc")); err != nil { // as if another box had put it there meanwhile
		t.Fatal(err)
	}
	swapped := s
	swapped.ID, swapped.Guarded = "swapped", append(slices.Clone(s.Guarded), ".envrc")
	if err := Start(t.Context(), h, swapped); err == nil || !strings.Contains(err.Error(), ".envrc of the repo is not") {
		t.Errorf("a link was put in a guarded place: %v", err)
	}
	if runs, err := Runs(t.Context(), h, swapped.ID); err != nil || runs {
		t.Errorf("the container goes on: %t, %v", runs, err)
	}
	ro := s
	ro.ID, ro.ReadOnly, ro.Guarded = "ro", true, nil
	if err := Start(t.Context(), h, ro); err != nil {
		t.Errorf("--ro: %v", err)
	}
	if err := Stop(t.Context(), h, ro.ID); err != nil {
		t.Error(err)
	}
	if err := Start(t.Context(), h, s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Stop(context.WithoutCancel(t.Context()), h, s.ID); err != nil {
			t.Error(err)
		}
		if runs, err := Runs(context.WithoutCancel(t.Context()), h, s.ID); err != nil || runs {
			t.Errorf("it runs after its end: %t, %v", runs, err)
		}
	})
	if runs, err := Runs(t.Context(), h, s.ID); err != nil || !runs {
		t.Errorf("it does not run: %v", err)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	k := &Keeper{Host: h, ID: s.ID, Nonce: "n", Proxy: l}
	socket := filepath.Join(repo, "s")
	if err := k.Serve(t.Context(), socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Gone)
	sh := func(script string) (int, string) {
		code, out, errs := runIn(t, socket, wire.Exec{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin"}, Dir: repo}, "", nil)
		return code, out + errs
	}
	for _, tt := range []struct {
		name, script string
		ok           bool
	}{
		{"control: the repo is written", "echo x >src/file && echo x >.git/HEAD", true},
		{"git's config", "echo x >.git/config", false},
		{"its common directory", "echo x >.git/commondir", false},
		{"a hook", "echo x >.git/hooks/post-checkout", false},
		{"a submodule's hook", "echo x >.git/modules/a/hooks/post-checkout", false},
		{"all of it, renamed away", "mv .git gone", false},
		{"a submodule, renamed away", "mv .git/modules/a gone", false},
		{"the modules, renamed away", "mv .git/modules gone", false},
		{"hooks, removed", "rm -r .git/hooks", false},
		{"a mount that is read-only", "echo x >data/file", false},
		{"the CA", "echo x >/etc/foldyard/ca.pem", false},
		{"our own program", "echo x >" + Program, false},
		{"the home", "echo x >/home/dev/x", true},
		{"the user", "test $(id -u) = " + fmt.Sprint(os.Getuid()), true},
	} {
		if code, out := sh(tt.script); (code == 0) != tt.ok {
			t.Errorf("%s: exit %d, %s", tt.name, code, out)
		}
	}
	if b, err := os.ReadFile(filepath.Join(repo, "src/file")); err != nil || string(b) != "x\n" {
		t.Errorf("the operator sees %q, %v", b, err)
	}
	if code, out := sh("(echo hello | nc -l -p 8080 127.0.0.1) >/dev/null 2>&1 &"); code != 0 {
		t.Fatalf("a server in it: exit %d, %s", code, out)
	}
	var got []byte
	for range 100 {
		c, err := Dial(t.Context(), h, s.ID, 8080)
		if err != nil {
			continue
		}
		got, _ = io.ReadAll(c)
		_ = c.Close()
		break
	}
	if !strings.Contains(string(got), "hello") {
		t.Errorf("its port says %q", got)
	}
}
