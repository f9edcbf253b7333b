package lima

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/machine"
	"foldyard/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testSpec() machine.Spec {
	return machine.Spec{
		CPUs: 4, Memory: 8 << 30, Disk: 60 << 30, Image: "https://images.example.com/debian.qcow2", Digest: "sha256:" + strings.Repeat("0a", 32),
		Repo: "/home/dev/my app", Share: "/home/dev/.local/state/foldyard/guest", UID: 1000,
		Band: 41000, Services: 100, DNS: 41001, SSH: 41190, Firewall: true,
		CA: "-----BEGIN CERTIFICATE-----\nMIIBGOLDEN\n-----END CERTIFICATE-----\n",
	}
}

func TestConfigGoldens(t *testing.T) {
	own := testSpec()
	unnamed, fedora := testSpec(), testSpec()
	unnamed.Image, unnamed.Digest = "", ""
	fedora.Image, fedora.Digest = "fedora", ""
	own.Kernel, own.Initrd, own.Image, own.Firewall = "/vm/vmlinuz", "/vm/initrd.img", "/vm/guest.qcow2", false
	for name, tt := range map[string]struct {
		p platform
		s machine.Spec
	}{
		"linux.yaml":      {platform{"linux", "amd64"}, testSpec()},
		"darwin.yaml":     {platform{"darwin", "arm64"}, testSpec()},
		"own-kernel.yaml": {platform{"linux", "amd64"}, own},
		"debian.yaml":     {platform{"linux", "amd64"}, unnamed},
		"debian-arm.yaml": {platform{"darwin", "arm64"}, unnamed},
		"fedora.yaml":     {platform{"linux", "amd64"}, fedora},
		"fedora-arm.yaml": {platform{"linux", "arm64"}, fedora},
	} {
		got, digest, err := tt.p.render(tt.s)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(got, digest) {
			t.Errorf("%s: the digest is not in it", name)
		}
		if tt.s.Image == "" || tt.s.Image == "fedora" { // the rest of it is in the others
			got, _, _ = strings.Cut(got, "\ncpus:")
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s differs (-want +got); go test -update rewrites it:\n%s", name, diff)
		}
	}
}

func TestBadSpecIsRefused(t *testing.T) {
	p := platform{"linux", "amd64"}
	for name, f := range map[string]func(*machine.Spec){
		"a digest alone":  func(s *machine.Spec) { s.Image = "" },
		"debian's digest": func(s *machine.Spec) { s.Image = "debian" },
		"debian's kernel": func(s *machine.Spec) { s.Image, s.Digest, s.Kernel = "debian", "", "/vm/vmlinuz" },
		"no such name":    func(s *machine.Spec) { s.Image, s.Digest = "plan9", "" },
		"no digest":       func(s *machine.Spec) { s.Digest = "" },
		"a short digest":  func(s *machine.Spec) { s.Digest = "sha256:0a" },
		"another sum":     func(s *machine.Spec) { s.Digest = "md5:" + strings.Repeat("0a", 32) },
		"a part of a MiB": func(s *machine.Spec) { s.Memory = 8<<30 + 1 },
		"no memory":       func(s *machine.Spec) { s.Memory = 0 },
		"no CPU":          func(s *machine.Spec) { s.CPUs = 0 },
		"a relative repo": func(s *machine.Spec) { s.Repo = "repo" },
		"root":            func(s *machine.Spec) { s.UID = 0 },
		"no band":         func(s *machine.Spec) { s.Band = 0 },
		"DNS elsewhere":   func(s *machine.Spec) { s.DNS = 53 },
	} {
		s := testSpec()
		f(&s)
		if _, _, err := p.render(s); err == nil {
			t.Errorf("%s: rendered", name)
		}
	}
}

// Every image that can be named has a place and a whole digest, for each architecture.
func TestDistributionsImages(t *testing.T) {
	for _, name := range []string{"debian", "fedora"} {
		for _, arch := range []string{"x86_64", "aarch64"} {
			location, digest, ok := distribution(name, arch)
			if !ok || !strings.HasPrefix(location, "https://") || !strings.HasSuffix(location, ".qcow2") || !digestRE().MatchString(digest) {
				t.Errorf("%s, %s: %q, %q, %t", name, arch, location, digest, ok)
			}
		}
	}
	if _, _, ok := distribution("debian", "riscv64"); ok {
		t.Error("control: there is an image of an architecture that was never looked at")
	}
}

// A newer fy knows a newer image of a distribution: a disk that was made from the older one stays.
func TestNewerImageOfADistributionKeepsTheDisk(t *testing.T) {
	l := newLab(t)
	spec := labSpec()
	spec.Image, spec.Digest = "", ""
	if _, said, err := l.up(spec); err != nil || !strings.Contains(strings.Join(said, "\n"), "debian's image, and at the first start in the VM what it lacks: past the proxy") {
		t.Fatalf("%v, said %q", err, said)
	}
	config, err := os.ReadFile(l.d.configPath())
	if err != nil {
		t.Fatal(err)
	}
	older := strings.Replace(string(config), "20260831", "20250831", -1)
	if older == string(config) {
		t.Fatal("the configuration does not name the image")
	}
	if err := os.WriteFile(l.d.configPath(), []byte(older), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, said, err := l.up(spec); err != nil || !strings.Contains(strings.Join(said, "\n"), "made otherwise") {
		t.Errorf("a newer image of the same name: %v, said %q", err, said)
	}
	spec.Image = "fedora"
	if _, _, err := l.up(spec); err == nil || !strings.Contains(err.Error(), "another image") {
		t.Errorf("control: another distribution's: %v", err)
	}
}

// fakeTools is a PATH of programs that say what they are told to.
func fakeTools(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		testkit.WriteExecutable(t, filepath.Join(dir, name), "#!/bin/sh\n"+text+"\n")
	}
	return dir
}

func options(path, home string) Options {
	return Options{Home: home, Instance: "fy-app", GOOS: "linux", GOARCH: "amd64", UID: 1000, Getenv: func(name string) string {
		if name == "PATH" {
			return path
		}
		return ""
	}}
}

func TestComputerThatCannotIsTold(t *testing.T) {
	ok := map[string]string{"limactl": "echo limactl version 2.2.0", "qemu-system-x86_64": "", "qemu-img": "", "ssh": ""}
	without := func(name string) map[string]string {
		m := map[string]string{}
		for k, v := range ok {
			if k != name {
				m[k] = v
			}
		}
		return m
	}
	saying := func(text string) map[string]string {
		m := without("limactl")
		m["limactl"] = text
		return m
	}
	home := t.TempDir()
	if len(home) > 60 {
		home = "/tmp"
	}
	for _, tt := range []struct {
		name  string
		tools map[string]string
		with  func(*Options)
		want  string
	}{
		{"control", ok, nil, ""},
		{"Lima 2.1", saying("echo limactl version 2.1.3"), nil, ""},
		{"no limactl", without("limactl"), nil, "limactl is not installed"},
		{"an old limactl", saying("echo limactl version 1.2.1"), nil, "version 1.2.1"},
		{"a limactl to come", saying("echo limactl version 2.3.0"), nil, "version 2.3.0"},
		{"a limactl that says nothing", saying("true"), nil, "says its version"},
		{"a limactl that fails", saying("exit 1"), nil, "--version failed"},
		{"no QEMU", without("qemu-system-x86_64"), nil, "qemu-system-x86_64 is not installed"},
		{"no qemu-img", without("qemu-img"), nil, "qemu-img is not installed"},
		{"no ssh", without("ssh"), nil, "ssh is not installed"},
		{"root", ok, func(o *Options) { o.UID = 0 }, "as root"},
		{"a long home", ok, func(o *Options) { o.Home = "/" + strings.Repeat("h", 90) }, "bytes long"},
		{"a name that is a path", ok, func(o *Options) { o.Instance = "../x" }, "cannot name a VM"},
	} {
		o := options(fakeTools(t, tt.tools)+":/usr/bin:/bin", home)
		if strings.HasPrefix(tt.name, "no QEMU") || strings.HasPrefix(tt.name, "no qemu") || tt.name == "no ssh" || tt.name == "no limactl" {
			o = options(fakeTools(t, tt.tools), home)
		}
		if tt.with != nil {
			tt.with(&o)
		}
		_, err := New(t.Context(), o)
		var e *machine.Error
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want == "":
		case !errors.As(err, &e) || !strings.Contains(err.Error(), tt.want) || e.Fix == "":
			t.Errorf("%s: %v, want %q and a fix", tt.name, err, tt.want)
		}
	}
}

func TestInstanceOfSomeoneElseIsLeftAlone(t *testing.T) {
	home := filepath.Join("/tmp", filepath.Base(t.TempDir())+"-lima")
	t.Cleanup(func() { os.RemoveAll(home) })
	log := filepath.Join(home, "called")
	tools := fakeTools(t, map[string]string{
		"limactl":            `case "$*" in *version*) echo limactl version 2.2.0;; *) echo "$*" >>` + log + `;; esac`,
		"qemu-system-x86_64": "", "qemu-img": "",
	})
	d, err := New(t.Context(), options(tools+":/usr/bin:/bin", home))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, "fy-app")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lima.yaml"), []byte("images: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if st, err := d.State(t.Context()); err != nil || st.State != machine.Foreign {
		t.Fatalf("state %+v, %v; want foreign", st, err)
	}
	if _, err := d.Up(t.Context(), testSpec(), nil); err == nil {
		t.Error("up took it")
	}
	if err := d.Stop(t.Context()); err == nil {
		t.Error("stopped it")
	}
	if err := d.Remove(t.Context()); err == nil {
		t.Error("removed it")
	}
	if b, err := os.ReadFile(log); err == nil {
		t.Errorf("limactl was told %s", b)
	}
	if _, err := os.Stat(filepath.Join(dir, "lima.yaml")); err != nil {
		t.Error(err)
	}
}

func TestWordsReachTheGuestAsTheyAre(t *testing.T) {
	for in, want := range map[string]string{"a-b/c.d": "a-b/c.d", "": "''", "a b": "'a b'", "$(id)": "'$(id)'", "it's": `'it'\''s'`, "a\nb": "'a\nb'", "~": "'~'"} {
		if got := shellQuote(in); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", in, got, want)
		}
	}
}

// newReal is a driver of a real limactl, where FY_VM_DIR has what it needs: see test/e2e/vm.sh.
func newReal(t *testing.T) (*Driver, machine.Spec) {
	t.Helper()
	dir := os.Getenv("FY_VM_DIR")
	if dir == "" {
		t.Skip("no FY_VM_DIR: test/e2e/vm.sh boots real machines")
	}
	home := os.Getenv("FY_VM_LIMA_HOME")
	d, err := New(context.Background(), Options{Home: home, Instance: "fy-suite", Getenv: os.Getenv, GOOS: runtime.GOOS, GOARCH: runtime.GOARCH, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := os.ReadFile(filepath.Join(dir, "guest.sha256"))
	if err != nil {
		t.Fatal(err)
	}
	repo := home + "-repo of it"
	if err := os.MkdirAll(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	s := testSpec()
	s.CPUs, s.Memory, s.Disk = 2, 2<<30, 6<<30
	s.Image, s.Digest, s.Kernel, s.Initrd = filepath.Join(dir, "guest.qcow2"), "sha256:"+strings.Fields(string(digest))[0], filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd.img")
	s.Repo, s.Share, s.UID = repo, "", os.Getuid()
	s.CA = realCA
	return d, s
}
