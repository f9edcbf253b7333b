package ruleset

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
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

func testGuest() Guest {
	return Guest{Gateway: netip.MustParseAddr("192.168.5.2"), Services: Ports{41000, 41099}, DNS: 41001}
}

const testCA = "-----BEGIN CERTIFICATE-----\nMIIBGOLDEN\n-----END CERTIFICATE-----\n"

func testBoot() Boot {
	return Boot{User: "fy", UID: 1000, CA: testCA, Firewall: true, Guest: testGuest()}
}

func testHost() Host {
	return Host{Name: "my-app", UID: 1000, Slice: "user.slice/user-1000.slice/user@1000.service/" + SliceUnit("my-app"), Services: Ports{41000, 41099}, DNS: 41001}
}

func TestGoldens(t *testing.T) {
	table, err := testGuest().Table([]UIDs{{1000, 1000}, Unbound(), {524288, 589823}})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "guest.nft", table)

	script, digest, err := testBoot().Script()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(script, digest) != 1 {
		t.Error("the script does not carry its digest once")
	}
	golden(t, "boot.sh", script)

	off := testBoot()
	off.Firewall = false
	_, other, err := off.Script()
	if err != nil || other == digest {
		t.Errorf("firewall off: digest %s, %v; want another one", other, err)
	}

	r, err := testHost().Render()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range r.Files {
		b.WriteString("## " + f.Path + "\n" + f.Text + "\n")
	}
	b.WriteString("## install\n" + strings.Join(r.Install, "\n") + "\n## uninstall\n" + strings.Join(r.Uninstall, "\n") + "\n")
	golden(t, "host.txt", b.String())
}

func TestWhatIsNoRuleSetIsRefused(t *testing.T) {
	good := []UIDs{{1000, 1000}}
	for name, f := range map[string]func(*Guest, *[]UIDs){
		"no gateway":      func(g *Guest, _ *[]UIDs) { g.Gateway = netip.Addr{} },
		"IPv6 gateway":    func(g *Guest, _ *[]UIDs) { g.Gateway = netip.MustParseAddr("fd00::1") },
		"no services":     func(g *Guest, _ *[]UIDs) { g.Services = Ports{} },
		"backward range":  func(g *Guest, _ *[]UIDs) { g.Services = Ports{41099, 41000} },
		"no DNS":          func(g *Guest, _ *[]UIDs) { g.DNS = 0 },
		"nobody walled":   func(_ *Guest, u *[]UIDs) { *u = nil },
		"backward ids":    func(_ *Guest, u *[]UIDs) { *u = []UIDs{{9, 1}} },
		"root in the set": func(_ *Guest, u *[]UIDs) { *u = []UIDs{{0, 1000}} },
	} {
		g, ids := testGuest(), good
		f(&g, &ids)
		if _, err := g.Table(ids); err == nil {
			t.Errorf("%s: rendered", name)
		}
	}
	if _, err := testGuest().Table(good); err != nil {
		t.Errorf("control: %v", err)
	}
	for name, f := range map[string]func(*Boot){
		"root":                func(b *Boot) { b.User = "root" },
		"a shell word":        func(b *Boot) { b.User = "fy;id" },
		"uid 0":               func(b *Boot) { b.UID = 0 },
		"no CA":               func(b *Boot) { b.CA = "" },
		"a CA that runs":      func(b *Boot) { b.CA = "-----BEGIN CERTIFICATE-----\n$(id)\n" },
		"a CA that is closed": func(b *Boot) { b.CA = "-----BEGIN CERTIFICATE-----\n'\n" },
		"a template":          func(b *Boot) { b.CA = "-----BEGIN CERTIFICATE-----\n{{.User}}\n" },
		"a bad table":         func(b *Boot) { b.Guest.DNS = 0 },
	} {
		b := testBoot()
		f(&b)
		if _, _, err := b.Script(); err == nil {
			t.Errorf("%s: rendered", name)
		}
	}
	for name, f := range map[string]func(*Host){
		"no name":            func(h *Host) { h.Name = "" },
		"a name that ends":   func(h *Host) { h.Name = "a;b" },
		"no slice":           func(h *Host) { h.Slice = "/" },
		"a slice with quote": func(h *Host) { h.Slice = `a" accept #` },
		"no services":        func(h *Host) { h.Services = Ports{} },
	} {
		h := testHost()
		f(&h)
		if _, err := h.Render(); err == nil {
			t.Errorf("host, %s: rendered", name)
		}
	}
}

func TestReport(t *testing.T) {
	good := "foldyard boot report 1\ndigest abc\nfirewall on\nwalled 1000, 1000-4294967294\nboot b\n"
	r, err := ParseReport(good)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Report{"abc", true, "1000, 1000-4294967294", "b"}); r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
	for name, text := range map[string]string{
		"empty": "", "another version": strings.Replace(good, "report 1", "report 2", 1), "cut": good[:40],
		"a key twice": good + "digest def\n", "an unknown key": good + "x y\n", "endless": good + strings.Repeat("x y\n", 2000),
	} {
		if _, err := ParseReport(text); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}

// The shell itself reads the script: no quoting of ours is broken by a value.
func TestScriptIsShell(t *testing.T) {
	script, _, err := testBoot().Script()
	if err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"sh", "bash"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		cmd := exec.CommandContext(t.Context(), path, "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}
	if strings.Contains(script, "{{") {
		t.Error("the script holds what Lima would take for a template")
	}
	if i := strings.IndexByte(script, '@'); i >= 0 && strings.Contains(script, "@USER@") {
		t.Error("a mark is left")
	}
}
