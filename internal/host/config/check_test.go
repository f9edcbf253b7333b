package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/host/state"
)

// world is a project directory with a FOLDYARD_HOME beside it.
type world struct {
	Host
	t   *testing.T
	dir string
	env map[string]string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root := resolve(t.TempDir())
	w := &world{t: t, dir: filepath.Join(root, "repo"), env: map[string]string{
		"FOLDYARD_HOME": filepath.Join(root, "state"),
		"HOME":          filepath.Join(root, "home"),
	}}
	for _, d := range []string{w.dir, w.env["FOLDYARD_HOME"], w.env["HOME"]} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.Host = w.host("linux")
	return w
}

func (w *world) host(goos string) Host {
	w.t.Helper()
	getenv := func(k string) string { return w.env[k] }
	l, err := state.NewLayout(getenv)
	if err != nil {
		w.t.Fatal(err)
	}
	return Host{Layout: l, Getenv: getenv, GOOS: goos}
}

func (w *world) write(path, text string) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) repo(text string)     { w.write(filepath.Join(w.dir, FileName), text) }
func (w *world) operator(text string) { w.write(w.Layout.OperatorConfig(), text) }

func (w *world) resolve() Checkout {
	w.t.Helper()
	c, err := w.Resolve(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) adopt() Checkout {
	w.t.Helper()
	p, err := w.Propose(w.resolve())
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := p.Adopt(noon, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// A row of the config language: what is wrong, and where it is said to be. An
// empty fault means that it is taken: the neighbour of the rows around it.
type row struct {
	name     string
	repo     string
	operator string
	goos     string
	want     []string // each in a fault line of its own; none: no fault
	warn     string
}

func (r row) run(t *testing.T) {
	w := newWorld(t)
	if r.goos != "" {
		w.Host = w.host(r.goos)
	}
	w.repo(r.repo)
	if r.operator != "" {
		w.operator(r.operator)
	}
	e, err := w.Check(w.resolve())
	if len(r.want) == 0 {
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		if got := e.Warnings.Error(); r.warn == "" && got != "" || !strings.Contains(got, r.warn) {
			t.Errorf("warnings %q, want %q", got, r.warn)
		}
		return
	}
	faults, ok := errors.AsType[Faults](err)
	if !ok {
		t.Fatalf("err = %v, want faults", err)
	}
	if len(faults) != len(r.want) {
		t.Errorf("%d faults, want %d:\n%v", len(faults), len(r.want), faults)
	}
	for i, want := range r.want {
		if i < len(faults) && !strings.Contains(faults[i].String(), want) {
			t.Errorf("fault %d is %q, want %q in it", i, faults[i], want)
		}
	}
}

func runRows(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, r.run)
	}
}

func TestSpelling(t *testing.T) {
	runRows(t, []row{
		{name: "empty"},
		{name: "exact", repo: "[proxy]\nenforce = true\n"},
		{
			name: "nearest name", repo: "[project]\nname = \"acc\"\n[proxy]\nenforse = true\n",
			want: []string{"foldyard.toml:4:1: proxy.enforse: unknown key; the nearest is enforce"},
		},
		{
			name: "key of another table", repo: "[machine]\npassthrough = []\n",
			want: []string{"foldyard.toml:2:1: machine.passthrough: unknown key here; it is a key of [proxy]"},
		},
		{
			name: "letter case: go-toml takes the later of the two", repo: "[proxy]\nenforce = true\nEnforce = false\n",
			want: []string{"foldyard.toml:3:1: proxy.Enforce: unknown key; the nearest is enforce"},
		},
		{name: "letter case of a table", repo: "[Proxy]\nenforce = false\n", want: []string{"1:2: Proxy: unknown key; the nearest is proxy"}},
		{name: "key twice", repo: "[proxy]\nenforce = true\nenforce = false\n", want: []string{"3:1: proxy.enforce: comes twice, first on line 2"}},
		{name: "key twice, once quoted", repo: "[proxy]\nenforce = true\n\"enforce\" = false\n", want: []string{"3:1: proxy.enforce: comes twice"}},
		{name: "key twice, once dotted", repo: "proxy.enforce = true\n[proxy]\nenforce = false\n", want: []string{"3:1: proxy.enforce: comes twice"}},
		{name: "key twice in an inline table", repo: "proxy = { enforce = true, enforce = false }\n", want: []string{"1:27: proxy.enforce: comes twice"}},
		{name: "table twice", repo: "[proxy]\n[box]\n[proxy]\n", want: []string{"3:2: proxy: comes twice, first on line 1"}},
		{name: "table as array", repo: "[proxy]\n[[proxy]]\n", want: []string{"2:3: proxy: is already there"}},
		{name: "all at once", repo: "[proxi]\n[machine]\nbackend = \"vm\"\ncpus = \"4\"\n[box]\nports = [\"99999\", \"80:x\"]\n", want: []string{
			"1:2: proxi: unknown key; the nearest is proxy",
			"3:11: machine.backend: unknown value \"vm\"; known are namespace, lima, podman",
			"4:8: machine.cpus: want a whole number, got the string \"4\"",
			"6:10: box.ports[0]: port \"99999\"",
			"6:19: box.ports[1]: port \"80:x\"",
		}},
		{name: "faults of both files", repo: "x = 1\n", operator: "[upstream]\nresolver = \"dns.test\"\n", want: []string{
			"foldyard.toml:1:1: x: unknown key",
			"config.toml:2:1: upstream.resolver: want ADDRESS",
		}},
		{name: "syntax", repo: "[proxy]\nenforce =\n", want: []string{"foldyard.toml:2:10: not TOML"}},
		{name: "not UTF-8", repo: "[proxy]\n# \xff\n", want: []string{"foldyard.toml:2:3: not UTF-8"}},
		{name: "NUL", repo: "[proxy]\nenforce = true\x00\n", want: []string{"foldyard.toml:2:"}},
		{name: "terminal escape in a key", repo: "\"\\u001b[2J\" = 1\n", want: []string{`1:1: "\x1b[2J": unknown key`}},
		{name: "dates", repo: "project = { name = 2026-11-30 }\n", want: []string{"project.name: want a string, got 2026-11-30"}},
		{name: "old names", repo: "[proxy]\ndefault_deny = true\n", warn: "foldyard.toml:2:1: proxy.default_deny: is now called enforce"},
		{name: "old name of the firewall", repo: "[machine]\nbackend = \"lima\"\nwall = true\nhost_wall = false\n", warn: "machine.wall: is now called firewall"},
		{name: "old and new name", repo: "[proxy]\ndefault_deny = false\nenforce = true\n", warn: "is the old name of enforce, which is set too"},
		{name: "project names that differ in case", operator: "[projects.App]\n[projects.app]\n", want: []string{"config.toml:2:11: projects.app: differs only in letter case from App"}},
	})
}

func TestOldNameIsObeyed(t *testing.T) {
	w := newWorld(t)
	w.repo("[proxy]\ndefault_deny = false\n")
	e, err := w.Check(w.resolve())
	if err != nil || e.Proxy.Enforce != EnforceOff {
		t.Errorf("enforce = %v, %v; want off", e.Proxy.Enforce, err)
	}
	w.operator("[projects.repo.proxy]\nenforce = true\n") // wins under the new name too
	e, err = w.Check(w.resolve())
	if err != nil || e.Proxy.Enforce != EnforceOn {
		t.Errorf("enforce = %v, %v; want on", e.Proxy.Enforce, err)
	}
}

func TestMachine(t *testing.T) {
	const lima = "[machine]\nbackend = \"lima\"\n"
	digest := "digest = \"sha256:" + strings.Repeat("ab", 32) + "\"\n"
	runRows(t, []row{
		{name: "firewall on lima", repo: lima + "firewall = true\n"},
		{name: "firewall elsewhere", repo: "[machine]\nbackend = \"namespace\"\nfirewall = true\n", want: []string{`3:1: machine.firewall: works with backend = "lima" only`}},
		{name: "firewall on podman", repo: "[machine]\nbackend = \"podman\"\nfirewall = true\n", want: []string{`3:1: machine.firewall: works with backend = "lima" only; this project's backend is podman`}},
		{name: "podman without one", repo: "[machine]\nbackend = \"podman\"\n"},
		{name: "firewall on the default of Linux", repo: "[machine]\nfirewall = true\n", want: []string{"lima"}},
		{name: "firewall on the default of macOS", repo: "[machine]\nfirewall = true\n", goos: "darwin"},
		{name: "gateway elsewhere", repo: "[machine]\nbackend = \"podman\"\ngateway = true\n", want: []string{"machine.gateway: works with backend = \"lima\""}},
		{name: "host firewall", repo: lima + "host_firewall = true\n", warn: "machine.host_firewall: is not built yet"},
		{name: "gateway", repo: lima + "gateway = true\n", warn: "machine.gateway: is not built yet"},
		{name: "no gateway", repo: lima + "gateway = false\n"},
		{name: "host firewall without firewall", repo: lima + "firewall = false\nhost_firewall = true\n", want: []string{"needs firewall = true"}},
		{name: "host firewall on macOS", repo: lima + "host_firewall = true\n", goos: "darwin", want: []string{"Linux host only"}},
		{name: "operator chooses the backend", repo: "[machine]\nfirewall = true\n", operator: "[projects.repo.machine]\nbackend = \"lima\"\n"},
		{name: "operator takes the backend away", repo: lima + "firewall = true\n", operator: "[projects.repo.machine]\nbackend = \"namespace\"\n", want: []string{"foldyard.toml:3:1: machine.firewall"}},
		{name: "cpus have no effect", repo: "[machine]\ncpus = 2\n", warn: "machine.cpus: has no effect"},
		{name: "no cpus", repo: lima + "cpus = 0\n", want: []string{"machine.cpus: want 1 to"}},
		{name: "sizes", repo: lima + "memory = \"6GiB\"\ndisk = \"1TiB\"\n"},
		{name: "fractions of MiB", repo: lima + "memory = \"3.91GiB\"\n", want: []string{`machine.memory: want a size such as "8GiB"`}},
		{name: "odd bytes", repo: lima + "memory = \"4194304001B\"\n", want: []string{"in whole MiB"}},
		{name: "huge size", repo: lima + "memory = \"99999999999TiB\"\n", want: []string{"want a size"}},
		{name: "image with digest", repo: lima + "image = \"https://img.test/a.qcow2\"\n" + digest},
		{name: "image by path", repo: lima + "image = \"/vm/a.qcow2\"\nkernel = \"/vm/vmlinuz\"\n" + digest},
		{name: "image in the repo", repo: lima + "image = \"vm/a.qcow2\"\n" + digest, want: []string{"machine.image: want a full path"}},
		{name: "image in a home", repo: lima + "image = \"~/a.qcow2\"\n" + digest, want: []string{"machine.image: want a full path"}},
		{name: "kernel in the repo", repo: lima + "image = \"/vm/a.qcow2\"\nkernel = \"vmlinuz\"\n" + digest, want: []string{"machine.kernel: want a full path"}},
		{name: "image without", repo: lima + "image = \"https://img.test/a.qcow2\"\n", want: []string{`machine.image: wants digest`}},
		{name: "debian", repo: lima + "image = \"debian\"\n"},
		{name: "debian's digest", repo: lima + "image = \"debian\"\ndigest = \"sha256:" + strings.Repeat("0a", 32) + "\"\n", want: []string{`machine.digest: image = "debian" has its own`}},
		{name: "fedora's kernel", repo: lima + "image = \"fedora\"\nkernel = \"/vm/vmlinuz\"\n", want: []string{`machine.kernel: image = "fedora" has its own`}},
		{name: "debian in podman machine", repo: "[machine]\nbackend = \"podman\"\nimage = \"debian\"\n", want: []string{"machine.image: debian is for lima"}},
		{name: "bad digest", repo: lima + "image = \"a\"\ndigest = \"sha256:12\"\n", want: []string{"machine.digest: want"}},
		{name: "kernel alone", repo: lima + "kernel = \"k\"\n", want: []string{"machine.kernel: wants image too"}},
	})
}

func TestBox(t *testing.T) {
	runRows(t, []row{
		{name: "ports", repo: `box.ports = ["3000", "8080:80", "127.0.0.1:8081:80", "[::1]:8080:80"]`},
		{name: "port beyond loopback", repo: `box.ports = ["0.0.0.0:8080:80"]`, want: []string{"1:14: box.ports[0]: 0.0.0.0 is not loopback"}},
		{name: "operator publishes beyond loopback", operator: "[projects.repo.box]\nports = [\"0.0.0.0:8080:80\"]\n"},
		{name: "published proxy (the box's grants for every user of the host)", repo: `box.ports = ["18128:3128"]`, want: []string{"1:14: box.ports[0]: port 3128 of a box is foldyard's own"}},
		{name: "published redirect and DNS, by the operator too", operator: "[projects.repo.box]\nports = [\"1:3129\", \"127.0.0.1:2:3153\"]\n", want: []string{"box.ports[0]: port 3129", "box.ports[1]: port 3153"}},
		{name: "those ports of the host (control)", repo: `box.ports = ["3128:8080", "3129:8129", "3153:53"]`},
		{name: "port twice", repo: `box.ports = ["8080", "8080:80"]`, want: []string{"is published already, by ports[0]"}},
		{
			name: "bad ports", repo: `box.ports = ["0", "-1", "+1", "01", "1:2:3", "::1:1:2", "[127.0.0.1]:1:2", "a:1:2", "1:", "", "127.0.0.1:1:2:3", "[::ffff:1.2.3.4]:1:2", "[fe80::1%lo]:1:2"]`,
			want: slices13("port "),
		},
		{name: "env", repo: `box.env = { EDITOR = "vi", TZ = "UTC" }`},
		{name: "owned", repo: `box.env = { HTTPS_PROXY = "x" }`, want: []string{"1:13: box.env.HTTPS_PROXY: variable HTTPS_PROXY is set by foldyard"}},
		{name: "owned, lower case", repo: `box.env = { https_proxy = "x", node_extra_ca_certs = "y" }`, want: []string{"https_proxy", "node_extra_ca_certs"}},
		{name: "owned families", repo: `box.env = { FY_BOX = "x", SSL_CERT_FILE = "y", IN_DEVBOX = "0" }`, want: []string{"FY_BOX", "SSL_CERT_FILE", "IN_DEVBOX"}},
		{name: "no name", repo: `box.env = { "A B" = "x" }`, want: []string{`box.env."A B": variable "A B"`}},
		{name: "mounts in the repo", repo: `box.mounts = ["./data:ro", "cache", "a/b:rw"]`},
		{name: "mounts outside", repo: `box.mounts = ["../x", "/etc:ro", "~/.ssh", "a/../../x", "."]`, want: []string{"mounts[0]", "mounts[1]", "mounts[2]", "mounts[3]"}},
		{name: "mount elsewhere in the box", repo: `box.mounts = ["data:/etc:ro"]`, want: []string{"stays at its own path"}},
		{name: "operator's mounts", operator: "[projects.repo.box]\nmounts = [\"/opt/tool\", \"/opt/x:/opt/y:rw\"]\n"},
		{name: "operator's bad mounts", operator: "[projects.repo.box]\nmounts = [\"/\", \"/opt/x:opt\", \"/opt:/a/../b\"]\n", want: []string{"whole file system", "absolute and clean", "absolute and clean"}},
		{name: "operator's keys in the repo", repo: "[box]\nwritable = [\".git/hooks\"]\nuid = 1000\n", want: []string{
			"2:1: box.writable: may only be set in the operator's config.toml", "3:1: box.uid: may only be set",
		}},
		{name: "operator's keys", operator: "[projects.repo.box]\nwritable = [\".git/hooks\"]\nuid = 1000\n"},
		{name: "uid 0 of the host", operator: "[projects.repo.box]\nuid = 0\n", want: []string{"box.uid: want the uid of an unprivileged user"}},
		{name: "writable outside", operator: "[projects.repo.box]\nwritable = [\"../x\", \"/etc\", \".\"]\n", want: []string{"writable[0]", "writable[1]", "writable[2]"}},
		{name: "engine elsewhere", repo: `box.engine = true`, want: []string{"lima"}},
		{name: "image and rootfs", repo: "[machine]\nbackend = \"podman\"\n[box]\nimage = \"a\"\nrootfs = \"b\"\n", want: []string{"5:1: box.rootfs: image and rootfs together"}},
		{name: "image has no effect", repo: `box.image = "a"`, warn: "box.image: has no effect"},
	})
}

func slices13(s string) []string {
	return []string{s, s, s, s, s, s, s, s, s, s, s, s, s}
}

// The state directory must not come in through a mount of the operator's own.
func TestMountOfOwnDirectory(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{w.Layout.StateDir, filepath.Dir(w.Layout.StateDir), filepath.Join(w.Layout.StateDir, "ca")} {
		w.operator("[projects.repo.box]\nmounts = [\"" + path + "\"]\n")
		if _, err := w.Check(w.resolve()); err == nil || !strings.Contains(err.Error(), "never mounted") {
			t.Errorf("%s: err = %v", path, err)
		}
	}
	w.operator("[projects.repo.box]\nmounts = [\"" + w.env["HOME"] + "/go\"]\n")
	if _, err := w.Check(w.resolve()); err != nil {
		t.Errorf("control: %v", err)
	}
}

func TestMountModes(t *testing.T) {
	w := newWorld(t)
	w.repo(`box.mounts = ["a", "b:ro", "c:rw"]`)
	e, err := w.Check(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := texts(e.Box.Mounts), "a:rw b:ro c:rw"; strings.Join(got, " ") != want {
		t.Errorf("in the repo: %v, want %s", got, want)
	}
	w.operator("[projects.repo.box]\nmounts = [\"/a\", \"/b:ro\", \"/c:/d:rw\"]\n")
	if e, err = w.Check(w.resolve()); err != nil {
		t.Fatal(err)
	}
	if got, want := texts(e.Box.Mounts), "/a:ro /b:ro /c:/d:rw"; strings.Join(got, " ") != want {
		t.Errorf("the operator's: %v, want %s", got, want)
	}
}

func TestProxy(t *testing.T) {
	runRows(t, []row{
		{name: "recommend", repo: "proxy.recommend = [{ host = \"packages.example.com\", why = \"npm install\" }, \"*.b.test\"]\n"},
		{name: "recommend all", repo: `proxy.recommend = ["*"]`, want: []string{"1:20: proxy.recommend[0]"}},
		{name: "passthrough", repo: `proxy.passthrough = ["*.mirror.example.com", "a.test:8443", "10.0.0.0/8"]`},
		{name: "passthrough with a path", repo: `proxy.passthrough = ["a.test/x", "GET a.test"]`, want: []string{"path or a method", "path or a method"}},
		{name: "unknown bundle", repo: `proxy.passthrough = ["@all"]`, want: []string{"unknown bundle \"@all\"; known are @apt, @containers, @go, @jvm, @npm"}},
		{name: "path rule on a tunnelled host", repo: "[proxy]\npassthrough = [\"*.test\"]\nrecommend = [\"a.test/x/*\"]\n", want: []string{"passthrough *.test forbids to decrypt"}},
		{name: "enforce", repo: `proxy.enforce = "learn"`},
		{name: "enforce by a word", repo: `proxy.enforce = "off"`, want: []string{`proxy.enforce: want true, false or "learn", got "off"`}},
		{name: "enforce by a number", repo: `proxy.enforce = 0`, want: []string{"proxy.enforce: want"}},
		{name: "ask", repo: "[proxy]\nask = \"hold\"\nask_timeout = \"20s\"\n"},
		{name: "ask for ever", repo: "[proxy]\nask = \"hold\"\nask_timeout = \"0s\"\n", want: []string{"proxy.ask_timeout: want a duration"}},
		{name: "allow is not a key: grants live on the host", repo: `proxy.allow = ["a.test"]`, want: []string{"proxy.allow: unknown key"}},
	})
}

func TestOperator(t *testing.T) {
	runRows(t, []row{
		{name: "everything", operator: `
[upstream]
proxy = "http://user:pw@proxy.corp.test:3128"
ca = ["corp-root.pem"]
resolver = "127.0.0.1:5353"
[[upstream.client_cert]]
hosts = ["mtls.corp.test"]
cert = "client.pem"
key = "client-key.pem"
[log]
max_size = "64MiB"
keep = 10
otlp = "http://127.0.0.1:4318"
[metrics]
listen = "127.0.0.1:9464"
[secrets.github]
from = "command"
command = ["pass", "show", "github"]
[projects.repo.machine]
backend = "lima"
cpus = 8
`},
		{name: "proxy", operator: "[upstream]\nproxy = \"proxy.corp.test:3128\"\n", want: []string{"upstream.proxy: want a URL"}},
		{name: "metrics beyond loopback", operator: "[metrics]\nlisten = \"0.0.0.0:9464\"\n", want: []string{"metrics.listen: want a loopback"}},
		{name: "half a certificate", operator: "[[upstream.client_cert]]\nhosts = [\"a.test\"]\n", want: []string{"wants hosts, cert and key"}},
		{name: "source without its field", operator: "[secrets.a]\nfrom = \"file\"\n", want: []string{"secrets.a: from = \"file\" wants file too"}},
		{name: "source with another's field", operator: "[secrets.a]\nfrom = \"env\"\nenv = \"A\"\ncommand = [\"x\"]\n", want: []string{"secrets.a.command: has no effect"}},
		{name: "name inside the override", operator: "[projects.repo.project]\nname = \"x\"\n", want: []string{"it cannot be set in there"}},
		{name: "other project's faults are told too", operator: "[projects.other.machine]\nbackend = \"vm\"\n", want: []string{"projects.other.machine.backend: unknown value"}},
	})
}

// An error about the upstream proxy must not repeat the password in its URL.
func TestFaultKeepsPasswordToItself(t *testing.T) {
	w := newWorld(t)
	w.operator("[upstream]\nproxy = \"http://u:hunter2@[bad:3128\"\n")
	if _, err := w.Check(w.resolve()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("err = %v", err)
	}
}

func TestInject(t *testing.T) {
	rule := func(name, rest string) string {
		return "[[inject]]\nname = \"" + name + "\"\nkind = \"static\"\n" + rest + "\n"
	}
	const host = `hosts = ["api.test"]` + "\n"
	runRows(t, []row{
		{name: "header", repo: rule("demo", host+"header = \"Authorization\"\nprefix = \"Bearer \"\nenv = { DEMO_TOKEN = \"dummy-demo-token\" }")},
		{name: "query", repo: rule("demo", host+`query = "userToken"`)},
		{name: "unknown kind", repo: "[[inject]]\nname=\"x\"\nkind=\"nope\"\nhosts=[\"h.test\"]\n", want: []string{"3:6: inject[0].kind: unknown value \"nope\"; known are static, github-app"}},
		{name: "header and query", repo: rule("x", host+"header = \"A\"\nquery = \"b\""), want: []string{"inject[0].query: header and query together"}},
		{name: "unknown field", repo: rule("x", host+`token_env = "T"`), want: []string{"inject[0].token_env: unknown key"}},
		{name: "field of another kind", repo: rule("x", host+`app_id = "1"`), want: []string{`inject[0].app_id: is no field of kind = "static", only of github-app`}},
		{name: "no name", repo: "[[inject]]\n" + host, want: []string{"inject[0]: wants a name"}},
		{name: "no hosts", repo: rule("x", ""), want: []string{"inject[0]: wants hosts"}},
		{name: "preset instead of hosts", repo: rule("x", `preset = "openai"`)},
		{name: "preset whose clients are not configured", repo: rule("x", `preset = "npm"`), want: []string{"wants hosts"}},
		{name: "preset with hosts", repo: rule("x", "preset = \"npm\"\nhosts = [\"packages.test\"]")},
		{name: "unknown preset", repo: rule("x", `preset = "npn"`), want: []string{"known are anthropic"}},
		{name: "command in the repo", repo: "[[inject]]\nname = \"x\"\nkind = \"command\"\ncommand = [\"sh\"]\n" + host, want: []string{
			"inject[0].kind: runs a program on the host", "inject[0].command: may only be set in the operator's config.toml",
		}},
		{name: "command of the operator", operator: "[[projects.repo.inject]]\nname = \"x\"\nkind = \"command\"\ncommand = [\"pass\"]\n" + host},
		{name: "overlap", repo: rule("demo", host) + rule("demo2", host), want: []string{"inject[1]: the rules demo and demo2 overlap"}},
		{name: "overlap by wildcard", repo: rule("demo", host) + rule("demo2", `hosts = ["*.test"]`), want: []string{"demo and demo2 overlap"}},
		{name: "overlap by nested paths", repo: rule("a", host+`path = "/r"`) + rule("b", host+`path = "/r/x"`), want: []string{"a and b overlap"}},
		{name: "told apart by path", repo: rule("a", host+`path = "/r/"`) + rule("b", host+`path = "/s/"`)},
		{name: "told apart by method", repo: rule("a", host+`methods = ["GET"]`) + rule("b", host+`methods = ["POST"]`)},
		{name: "told apart by port", repo: rule("a", host) + rule("b", `hosts = ["api.test:8443"]`)},
		{name: "kinds of one service overlap", repo: "[[inject]]\nname = \"a\"\nkind = \"gh-cli\"\n[[inject]]\nname = \"b\"\nkind = \"github-app\"\napp_id = \"1\"\ninstallation_id = \"2\"\n", want: []string{"a and b overlap"}},
		{name: "names that fold to one variable", repo: rule("pen-pot", host) + rule("pen_pot", `hosts = ["b.test"]`), want: []string{"pen-pot and pen_pot would share one secret, FY_INJECT_PEN_POT"}},
		{name: "names that fold by letter case", repo: rule("github", host) + rule("GitHub", `hosts = ["b.test"]`), want: []string{"github and GitHub would share one secret"}},
		{name: "name twice", repo: rule("a", host) + rule("a", `hosts = ["b.test"]`), want: []string{"a comes twice"}},
		{name: "owned variable", repo: rule("a", host+`env = { HTTPS_PROXY = "x" }`), want: []string{"inject[0].env.HTTPS_PROXY: variable HTTPS_PROXY is set by foldyard"}},
		{name: "two placeholders for one variable", repo: rule("a", host+`env = { T = "x" }`) + rule("b", "hosts = [\"b.test\"]\nenv = { T = \"y\" }"), want: []string{"the rules a and b give it different placeholders"}},
		{name: "variable of the box too", repo: "box.env = { T = \"v\" }\n" + rule("a", host+`env = { T = "x" }`), want: []string{"is set by [box] env too"}},
		{name: "shared placeholder", repo: rule("a", host+`env = { T = "x" }`) + rule("b", "hosts = [\"b.test\"]\nenv = { U = \"x\" }"), warn: "a and b share a placeholder"},
		{name: "header that steers the message", repo: rule("a", host+`header = "Transfer-Encoding"`), want: []string{"cannot carry a credential"}},
		{name: "header with a line break", repo: rule("a", host+`header = "A\r\nB"`), want: []string{"cannot carry a credential"}},
		{name: "prefix with a line break", repo: rule("a", host+`prefix = "Bearer\r\nX: "`), want: []string{"holds what no header may hold"}},
		{name: "TRACE", repo: rule("a", host+`methods = ["GET", "TRACE"]`), want: []string{"TRACE never carries a credential"}},
		{name: "method in lower case", repo: rule("a", host+`methods = ["get"]`), want: []string{"want a method in capitals"}},
		{name: "path with dots", repo: rule("a", host+`path = "/a/../b"`), want: []string{"inject[0].path"}},
		{name: "path as a pattern", repo: rule("a", host+`path = "/a/*"`), want: []string{"inject[0].path"}},
		{name: "path in a host", repo: rule("a", `hosts = ["api.test/x"]`), want: []string{"want HOST or HOST:PORT"}},
		{name: "hosts of strangers", repo: rule("a", `hosts = ["*.github.io"]`), want: []string{"covers hosts of strangers"}},
		{name: "app without ids", repo: "[[inject]]\nname = \"a\"\nkind = \"github-app\"\n", want: []string{"wants app_id", "wants installation_id"}},
	})
}

func TestOverrideWinsAndOriginsAreTold(t *testing.T) {
	w := newWorld(t)
	w.repo("[project]\nname = \"acc\"\n[box]\nenv = { A = \"1\", B = \"2\" }\nports = [\"1\"]\n[[inject]]\nname = \"x\"\nhosts = [\"a.test\"]\n[[inject]]\nname = \"y\"\nhosts = [\"b.test\"]\n")
	w.operator("[projects.acc.box]\nenv.B = \"3\"\nports = [\"2\"]\n[[projects.acc.inject]]\nname = \"y\"\nhosts = [\"c.test\"]\n[projects.other.box]\nroot = true\n")
	e, err := w.Check(w.resolve())
	if err != nil {
		t.Fatal(err)
	}
	if e.Box.Env["A"] != "1" || e.Box.Env["B"] != "3" || len(e.Box.Ports) != 1 || e.Box.Ports[0].Box != 2 || e.Box.Root {
		t.Errorf("box = %+v", e.Box)
	}
	if got := e.InjectHosts(); strings.Join(got, " ") != "a.test c.test" {
		t.Errorf("inject hosts = %v", got)
	}
	for key, want := range map[string]string{"box.env.A": "foldyard.toml:4:9", "box.env.B": "config.toml:2:5", "machine.backend": "default", "inject[1].hosts": "config.toml:6:1"} {
		if got := e.Origin(key); !strings.HasSuffix(got, want) {
			t.Errorf("origin of %s = %s, want %s", key, got, want)
		}
	}
}

func TestDefaultsByPlatform(t *testing.T) {
	for goos, want := range map[string]string{"linux": Namespace, "darwin": Lima} {
		w := newWorld(t)
		w.Host = w.host(goos)
		e, err := w.Load(w.resolve())
		if err != nil {
			t.Fatal(err)
		}
		if e.Machine.Backend != want || e.Machine.Firewall != (want == Lima) || e.Proxy.Enforce != EnforceOn || e.Adopted {
			t.Errorf("%s: %+v", goos, e.Machine)
		}
	}
}

// A file that a box wrote must not keep the operator waiting.
func TestBigFilesAreReadQuickly(t *testing.T) {
	fill := func(head, part, tail string) string {
		return head + strings.Repeat(part, (MaxFile-len(head)-len(tail))/len(part)) + tail
	}
	numbered := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"unknown keys":  numbered("k%d=1\n", 90_000),
		"known keys":    "[box.env]\n" + numbered("K%d=\"\"\n", 80_000),
		"one long key":  fill("", "a.", "a = 1\n"),
		"one header":    fill("[", "a.", "a]\n"),
		"tables":        numbered("[t%d]\n", 90_000),
		"array":         fill("proxy.passthrough=[", "\"a\",", "]\n"),
		"bad rules":     fill("proxy.recommend=[", "\"*\",", "]\n"),
		"nested arrays": fill("a = ", "[", "\n"),
		"nested tables": fill("a = ", "{a=", "\n"),
		"deep, closed":  "a = " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "\n",
		"inject":        numbered("[[inject]]\nname=\"a%d\"\nhosts=[\"*.test\"]\n", 20_000),
		"comment":       fill("#", "x", "\n"),
		"string":        fill("a = \"", "x", "\"\n"),
		"newlines":      fill("", "\n", "x"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.repo(text)
			start := time.Now()
			_, err := w.Check(w.resolve())
			if took := time.Since(start); took > time.Minute { // it was 85 s before keys, depth and entries were bounded; a second on an idle computer
				t.Errorf("%d bytes took %v", len(text), took)
			} else {
				t.Logf("%v", took)
			}
			if faults, ok := errors.AsType[Faults](err); ok && len(faults) > maxFaults+1 {
				t.Errorf("%d faults told", len(faults))
			}
		})
	}
}
