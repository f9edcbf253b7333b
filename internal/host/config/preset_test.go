package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/host/state"
)

// Registries are found in the operator's own configuration, never in what the
// project says; what was adopted stays as it was shown.
func TestPresetsFindTheirHosts(t *testing.T) {
	w := newWorld(t)
	home := w.env["HOME"]
	for _, d := range []string{".config/pip", ".docker"} {
		if err := os.MkdirAll(filepath.Join(home, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.write(filepath.Join(home, ".npmrc"), "registry=https://npm.mirror.test/x/\n")
	w.write(filepath.Join(w.dir, ".npmrc"), "registry=https://evil.test/\n")
	w.write(filepath.Join(home, ".config/pip/pip.conf"), "[global]\nindex-url = https://pypi.mirror.test/simple\n")
	w.write(filepath.Join(home, ".docker/config.json"), `{"auths":{"registry.mirror.test":{"auth":"c2VjcmV0"},"https://index.mirror.test/v1/":{}}}`)
	w.repo("[[inject]]\nname=\"npm\"\npreset=\"npm\"\n[[inject]]\nname=\"pypi\"\npreset=\"pypi\"\n[[inject]]\nname=\"docker\"\npreset=\"docker-registry\"\n" +
		"[[inject]]\nname=\"model\"\npreset=\"anthropic\"\n[[inject]]\nname=\"git\"\npreset=\"git-https\"\nhosts=[\"git.test\"]\n")
	p, err := w.Propose(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Join(p.Widenings, "\n")
	for _, want := range []string{"npm → npm.mirror.test (static, header Authorization)", "pypi → pypi.mirror.test", "docker → index.mirror.test", "docker → registry.mirror.test", "model → api.anthropic.com (static, header X-Api-Key)", "git → git.test"} {
		if !strings.Contains(shown, want) {
			t.Errorf("adoption does not show %q:\n%s", want, shown)
		}
	}
	c, err := p.Adopt(time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	w.write(filepath.Join(home, ".npmrc"), "registry=https://changed.test/\n")
	e, err := w.Load(c)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range e.Inject {
		got[r.Name] = strings.Join(r.Hosts, " ") + " " + r.Header + " " + r.Prefix
	}
	want := map[string]string{
		"npm": "npm.mirror.test Authorization Bearer ", "pypi": "pypi.mirror.test Authorization Basic ", "docker": "index.mirror.test registry.mirror.test Authorization Bearer ",
		"model": "api.anthropic.com X-Api-Key ", "git": "git.test Authorization Basic ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if hosts := e.InjectHosts(); !slices.Contains(hosts, "npm.mirror.test") || slices.Contains(hosts, "evil.test") {
		t.Errorf("decrypted hosts %q", hosts)
	}
}

func TestKindsHaveTheirDefaults(t *testing.T) {
	w := newWorld(t)
	w.repo("[[inject]]\nname=\"app\"\nkind=\"github-app\"\napp_id=\"1\"\ninstallation_id=\"2\"\n[[inject]]\nname=\"gcp\"\nkind=\"gcp-metadata\"\n" +
		"[[inject]]\nname=\"aws\"\nkind=\"aws-sigv4\"\nhosts=[\"s3.test\"]\n[[inject]]\nname=\"plain\"\nhosts=[\"plain.test\"]\n")
	e, err := w.Check(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"api.github.com|Authorization|Bearer ", "*.googleapis.com|Authorization|Bearer ", "s3.test||", "plain.test|Authorization|"} {
		r := e.Inject[i]
		if got := strings.Join(r.Hosts, " ") + "|" + r.Header + "|" + r.Prefix; got != want {
			t.Errorf("%s: %s, want %s", r.Name, got, want)
		}
	}
	w.repo("[[inject]]\nname=\"aws\"\nkind=\"aws-sigv4\"\nhosts=[\"s3.test\"]\nheader=\"X\"\n")
	if _, err := w.Check(w.resolve()); err == nil || !strings.Contains(err.Error(), "puts a signature where") {
		t.Errorf("%v", err)
	}
	w.repo("[[inject]]\nname=\"wide\"\nkind=\"aws-sigv4\"\nhosts=[\"*.amazonaws.com\"]\n")
	if _, err := w.Check(w.resolve()); err == nil || !strings.Contains(err.Error(), "strangers") {
		t.Errorf("%v", err)
	}
	w.repo("")
	w.operator("[[projects.repo.inject]]\nname=\"wide\"\nkind=\"aws-sigv4\"\nhosts=[\"*.amazonaws.com\"]\nissuing=true\n[tripwire]\nrevoke=true\n")
	if e, err := w.Check(w.resolve()); err != nil || len(e.Inject) != 1 || !e.Inject[0].Issuing || !e.Tripwire.Revoke {
		t.Errorf("%v", err)
	}
	w.operator("")
	w.repo("[[inject]]\nname=\"x\"\nhosts=[\"x.test\"]\nissuing=true\n")
	if _, err := w.Check(w.resolve()); err == nil || !strings.Contains(err.Error(), "may only be set in the operator's config.toml") {
		t.Errorf("%v", err)
	}
}

// Whatever decides where a secret goes, or what can be done with it, is bound.
func TestBoundHoldsWhatMatters(t *testing.T) {
	base := Inject{
		Name: "x", Kind: "github-app", Hosts: []string{"B.test", "a.test:443"}, Header: "Authorization", AppID: "1", InstallationID: "2",
		Repositories: []string{"b", "a"}, Permissions: map[string]string{"contents": "read"}, TokenURL: "https://t.test/", Scopes: []string{"s"},
	}
	b := base.Bound()
	want := state.Bound{Name: "x", Hosts: []string{"a.test:443", "b.test"}, Facts: []string{
		"app_id 1", "header authorization", "installation_id 2", "kind github-app", "permissions contents:read", "repositories a b", "scopes s", "token_url https://t.test/",
	}}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*Inject){
		"host":             func(r *Inject) { r.Hosts = append(slices.Clone(r.Hosts), "evil.test") },
		"header":           func(r *Inject) { r.Header = "X-Evil" },
		"to query":         func(r *Inject) { r.Header, r.Query = "", "t" },
		"kind":             func(r *Inject) { r.Kind = "static" },
		"token endpoint":   func(r *Inject) { r.TokenURL = "https://evil.test/" },
		"installation":     func(r *Inject) { r.InstallationID = "3" },
		"all repositories": func(r *Inject) { r.Repositories = nil },
		"more permissions": func(r *Inject) { r.Permissions = map[string]string{"contents": "write"} },
		"all permissions":  func(r *Inject) { r.Permissions = nil },
		"scopes":           func(r *Inject) { r.Scopes = []string{"all"} },
	} {
		r := base
		change(&r)
		if len(b.Covers(r.Bound())) == 0 {
			t.Errorf("another %s needs no confirmation", name)
		}
	}
	r := base
	r.Hosts, r.Path, r.Methods, r.Env = r.Hosts[:1], "/x", []string{"GET"}, map[string]string{"A": "dummy"}
	if got := b.Covers(r.Bound()); len(got) > 0 {
		t.Errorf("control: narrower needs confirmation: %q", got)
	}
}
