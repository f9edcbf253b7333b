package container

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

func testSpec() Spec {
	return Spec{ID: "b1", Image: "localhost/x:1", Repo: "/home/dev/app", Guarded: []string{".git/hooks"}, User: "dev", Home: "/home/dev", UID: 1000, Program: "/opt/foldyard/fy-1",
		Files: map[string][]byte{"/etc/foldyard/ca.pem": []byte("ca"), "/etc/passwd": []byte("not ours there")}}
}

func TestArgumentsSayWhatTheBoxIs(t *testing.T) {
	has := func(s Spec, want string) bool { return slices.Contains(s.args(), want) }
	s := testSpec()
	for _, want := range []string{"--userns=keep-id", "--cap-drop=all", "--security-opt=no-new-privileges", "--volume=/home/dev/app:/home/dev/app",
		"--volume=/home/dev/app/.git/hooks:/home/dev/app/.git/hooks:ro", "--volume=/opt/foldyard/fy-1:/opt/foldyard/fy:ro", "--pull=never", "--tmpfs=/home/dev:rw,exec,mode=0777"} {
		if !has(s, want) {
			t.Errorf("no %s in %q", want, s.args())
		}
	}
	for _, bad := range []string{"podman.sock", "--privileged", "--network=host", "seccomp=unconfined"} {
		if strings.Contains(strings.Join(s.args(), " "), bad) {
			t.Errorf("%s in %q", bad, s.args())
		}
	}
	s.ReadOnly, s.Engine, s.KeepHome = true, true, true
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
		"an id that is a path":     func(s *Spec) { s.ID = "../x" },
		"an image that is a flag":  func(s *Spec) { s.Image = "--privileged" },
		"no image":                 func(s *Spec) { s.Image = "" },
		"a repo that adds a mount": func(s *Spec) { s.Repo = "/a:/b" },
		"a relative repo":          func(s *Spec) { s.Repo = "a" },
		"a home that adds a mount": func(s *Spec) { s.Home = "/a:/b" },
		"no program":               func(s *Spec) { s.Program = "" },
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
	for state, want := range map[string]bool{"true\n": true, "false\n": false, "": false} {
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

func TestFailedStartLeavesNothing(t *testing.T) {
	var ran []string
	h := Host{Run: func(_ context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
		line := strings.Join(argv, " ")
		ran = append(ran, line)
		if strings.Contains(line, "podman run") {
			return nil, errors.New("no space")
		}
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
		return nil, nil
	}}
	if err := Start(t.Context(), h, testSpec()); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("start: %v", err)
	}
	if last := ran[len(ran)-1]; !strings.Contains(last, "podman rm") || !strings.Contains(last, "fy-b1") {
		t.Errorf("ran %q, and did not clean up", ran)
	}
}
