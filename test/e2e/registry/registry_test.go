//go:build e2e

// Package registry runs package managers in real boxes against the registries
// that they are configured for on this computer, with nothing granted but what
// the refusals named, and with no proxy variables. No registry is named here,
// nor shown: each is found by asking the clients, and is registryN.invalid in
// what is printed. A registry that cannot be reached is a skip, with its reason.
package registry

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"foldyard/internal/testkit"
)

var (
	skips testkit.Skips
	fy    string
	users []testkit.User
)

func TestMain(m *testing.M) {
	os.Exit(testkit.Run(m, func() (func(), error) {
		dir, err := os.MkdirTemp("", "fyreg")
		if err != nil {
			return nil, err
		}
		done := func() {
			skips.Report(os.Stdout, "e2e/registry")
			_ = os.RemoveAll(dir) // the tests are over
		}
		if fy, err = testkit.Program(dir, os.Getenv("FY_BIN")); err != nil {
			return done, err
		}
		users, err = testkit.Users()
		return done, err
	}))
}

// ask runs a client on the host and returns the first https URL that it prints.
func ask(t *testing.T, argv ...string) *url.URL {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	if err != nil {
		skips.Skip(t, "%s does not say what it is configured for: %v", argv[0], err)
	}
	for _, s := range strings.FieldsFunc(string(out), func(r rune) bool { return strings.ContainsRune(",| \r\n", r) }) {
		if u, err := url.Parse(s); err == nil && u.Scheme == "https" && u.User == nil {
			return u
		}
	}
	skips.Skip(t, "%s is configured for no https registry", argv[0])
	return nil
}

// reach skips t if nobody answers at u.
func reach(t *testing.T, u *url.URL) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u.String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		skips.Skip(t, "the registry does not answer")
	}
	_ = resp.Body.Close() // that it answers is enough
}

// operator is the i-th user with a project, whose output does not name hosts.
func operator(t *testing.T, u testkit.User, hosts ...string) *testkit.Operator {
	t.Helper()
	o := testkit.NewOperator(t, fy, u)
	o.Hide = hosts
	return o
}

// captured fails t unless the log has what was granted, decrypted.
func captured(t *testing.T, o *testkit.Operator, granted []string) {
	t.Helper()
	log := o.Must(t, "log", "--json")
	for _, g := range granted {
		if !strings.Contains(log, fmt.Sprintf(`"host":%q`, g)) || !strings.Contains(log, `"mode":"decrypted"`) {
			t.Errorf("%s was granted, and the log has no request to it", g)
		}
	}
	t.Logf("granted %v", granted)
}

func TestNPM(t *testing.T) {
	registry := ask(t, "npm", "config", "get", "registry")
	reach(t, registry)
	for _, u := range users {
		t.Run(u.Name, func(t *testing.T) {
			o := operator(t, u, registry.Hostname())
			o.Flags = []string{"--env", "npm_config_registry=" + registry.String()}
			o.Write(t, "repo/package.json", 0o644, []byte(`{"name":"app","version":"1.0.0","private":true}`))
			out, granted := o.Run(t, "bash", "-ec", `npm install --no-audit --no-fund --no-progress --fetch-retries=0 ms && node -p 'require("ms")("2 days")'`)
			if !strings.Contains(out, "172800000") {
				t.Errorf("the package does not work: %s", out)
			}
			captured(t, o, granted)
		})
	}
}

// A lock file is made, and then installed by a box that starts from nothing.
func TestNPMProject(t *testing.T) {
	registry := ask(t, "npm", "config", "get", "registry")
	reach(t, registry)
	o := operator(t, users[0], registry.Hostname())
	o.Flags = []string{"--env", "npm_config_registry=" + registry.String()}
	o.Write(t, "repo/package.json", 0o644, []byte(`{"name":"app","version":"1.0.0","private":true,"dependencies":{"jest":"^29.7.0"}}`))
	const quiet = " --ignore-scripts --no-audit --no-fund --no-progress --fetch-retries=0"
	_, granted := o.Run(t, "bash", "-ec", "npm install --package-lock-only"+quiet)
	out, more := again(t, o, "bash", "-ec", "npm ci"+quiet+" && ls node_modules | wc -l && node_modules/.bin/jest --version")
	t.Log(out)
	captured(t, o, append(granted, more...))
}

// again is Run for a client whose grants may all be there.
func again(t *testing.T, o *testkit.Operator, argv ...string) (string, []string) {
	t.Helper()
	r := o.FY(t.Context(), slices.Concat([]string{"run"}, o.Flags, []string{"--"}, argv)...)
	if r.Code == 0 {
		return r.Stdout, nil
	}
	return o.Run(t, argv...)
}

func TestGo(t *testing.T) {
	registry := ask(t, "go", "env", "GOPROXY")
	reach(t, registry)
	sums, err := exec.CommandContext(t.Context(), "go", "env", "GOSUMDB").Output()
	if err != nil {
		t.Fatal(err)
	}
	hide := []string{registry.Hostname()}
	if s := strings.Fields(string(sums)); len(s) > 0 && strings.Contains(s[0], ".") {
		hide = append(hide, s[0])
	}
	for _, u := range users {
		t.Run(u.Name, func(t *testing.T) {
			o := operator(t, u, hide...)
			o.Flags = []string{"--env", "GOPROXY=" + registry.String(), "--env", "GOTOOLCHAIN=local"}
			o.Write(t, "repo/go.mod", 0o644, []byte("module app\n\ngo 1.22\n\nrequire rsc.io/quote v1.5.2\n"))
			o.Write(t, "repo/main.go", 0o644, []byte("package main\n\nimport \"rsc.io/quote\"\n\nfunc main() { println(quote.Go()) }\n"))
			out, granted := o.Run(t, "bash", "-ec", "go mod tidy && go mod download && go build -o app . && ./app 2>&1")
			if !strings.Contains(out, "share memory by communicating") {
				t.Errorf("the program does not work: %s", out)
			}
			captured(t, o, granted)
		})
	}
}

var aptHost = regexp.MustCompile(`https?://([^/\s:]+)`)

func TestApt(t *testing.T) {
	files, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	sources := map[string][]byte{}
	for _, f := range append(files, "/etc/apt/sources.list") {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		sources[filepath.Base(f)] = data
		for line := range strings.Lines(string(data)) {
			if m := aptHost.FindStringSubmatch(line); m != nil && !strings.HasPrefix(line, "#") && !slices.Contains(hosts, m[1]) {
				hosts = append(hosts, m[1])
			}
		}
	}
	if len(hosts) == 0 {
		skips.Skip(t, "apt has no sources here")
	}
	reach(t, &url.URL{Scheme: "http", Host: hosts[0], Path: "/"})
	o := operator(t, users[0], hosts...)
	for name, data := range sources {
		o.Write(t, "repo/sources/"+name, 0o644, data)
	}
	out, granted := o.Run(t, "bash", "-ec", `
		rm -rf apt
		mkdir -p apt/{lists,archives}/partial
		opts="-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$PWD/sources -o Dir::State=$PWD/apt -o Dir::State::lists=$PWD/apt/lists
		  -o Dir::Cache=$PWD/apt -o Dir::State::status=/dev/null -o APT::Sandbox::User= -o Acquire::Retries=0 -o APT::Update::Error-Mode=any"
		apt-get $opts update
		apt-get $opts download hostname
		dpkg-deb -f hostname*.deb Package`)
	if !strings.Contains(out, "hostname") {
		t.Errorf("no package: %s", out)
	}
	captured(t, o, granted)
}

func TestPip(t *testing.T) {
	const python = "/usr/bin/python3" // a box sees the system's programs
	if err := exec.CommandContext(t.Context(), python, "-m", "pip", "--version").Run(); err != nil {
		skips.Skip(t, "the system's Python has no pip")
	}
	index := ask(t, python, "-m", "pip", "config", "get", "global.index-url")
	reach(t, index)
	o := operator(t, users[0], index.Hostname())
	o.Flags = []string{"--env", "PIP_INDEX_URL=" + index.String()}
	out, granted := o.Run(t, python, "-m", "pip", "download", "--no-deps", "--retries", "0", "six")
	if !strings.Contains(out, "Saved") {
		t.Errorf("no package: %s", out)
	}
	captured(t, o, granted)
}
