package config

import (
	_ "embed"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"foldyard/internal/egress/policy"
	"foldyard/internal/host/state"
)

// The hosts that package clients use are read from the clients' own
// configuration, in the operator's home and below /etc, never in the project.
// foldyard knows no registry by name. Other hosts that a bundle wants are data.

//go:embed bundles.toml
var bundlesFile []byte

// bundled is an entry of bundles.toml.
type bundled struct {
	Bundle string         `toml:"bundle"`
	Host   string         `toml:"host"`
	What   string         `toml:"what"`
	Source string         `toml:"source"` // who says so
	Read   toml.LocalDate `toml:"read"`   // when that was read
}

func allBundled() ([]bundled, error) {
	var f struct {
		Host []bundled `toml:"host"`
	}
	err := toml.Unmarshal(bundlesFile, &f)
	return f.Host, err
}

// bundledHosts returns what bundles.toml has for a bundle. It was read by a test:
// a fault in it can only leave hosts out.
func bundledHosts(bundle string) []string {
	all, _ := allBundled()
	var out []string
	for _, b := range all {
		if b.Bundle == bundle {
			out = append(out, b.Host)
		}
	}
	return out
}

const maxClientFile = 1 << 20

// read returns the text of a file, or "" for one that cannot be read: a client
// that is not configured expands to nothing.
func read(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := state.ReadBounded(f, path, maxClientFile)
	if err != nil {
		return ""
	}
	return string(data)
}

func (h Host) inHome(path string) string { return filepath.Join(h.Getenv("HOME"), path) }

// hostOf returns the rule for the host of a URL, or "" if it has none.
func hostOf(s string) string {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return ""
	}
	r, err := policy.ParseRule(u.Host)
	if err != nil {
		return ""
	}
	return r.String()
}

func hostsOf(urls []string) []string {
	var out []string
	for _, u := range urls {
		if h := hostOf(u); h != "" {
			out = append(out, h)
		}
	}
	return out
}

func (h Host) npmHosts() []string {
	urls := []string{h.Getenv("NPM_CONFIG_REGISTRY"), h.Getenv("npm_config_registry")}
	for _, path := range []string{h.inHome(".npmrc"), "/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"} {
		for line := range strings.Lines(read(path)) {
			key, value, _ := strings.Cut(line, "=")
			if key = strings.TrimSpace(key); key == "registry" || strings.HasSuffix(key, ":registry") {
				urls = append(urls, strings.Trim(strings.TrimSpace(value), `"'`))
			}
		}
	}
	return hostsOf(urls)
}

func (h Host) goHosts() []string {
	files := []string{h.Getenv("GOENV"), h.inHome(".config/go/env"), h.inHome("Library/Application Support/go/env")}
	if tool, err := exec.LookPath("go"); err == nil {
		if tool, err = filepath.EvalSymlinks(tool); err == nil {
			files = append(files, filepath.Join(filepath.Dir(filepath.Dir(tool)), "go.env"))
		}
	}
	values := []string{h.Getenv("GOPROXY")}
	for _, path := range files {
		for line := range strings.Lines(read(path)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "GOPROXY="); ok {
				values = append(values, v)
			}
		}
	}
	for _, v := range values { // the first that is set wins, as for go itself
		if v != "" {
			return hostsOf(strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == '|' }))
		}
	}
	return nil
}

func (h Host) aptHosts() []string {
	files := []string{"/etc/apt/sources.list"}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join("/etc/apt/sources.list.d", pattern))
		if err == nil {
			files = append(files, found...)
		}
	}
	var urls []string
	for _, path := range files {
		for line := range strings.Lines(read(path)) {
			if before, _, comment := strings.Cut(line, "#"); comment {
				line = before
			}
			urls = append(urls, strings.Fields(line)...)
		}
	}
	return hostsOf(urls)
}

var xmlURL = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`<url>\s*([^<\s]+)\s*</url>`) })

func (h Host) jvmHosts() []string {
	var urls []string
	for _, m := range xmlURL().FindAllStringSubmatch(read(h.inHome(".m2/settings.xml")), -1) {
		urls = append(urls, m[1])
	}
	return append(hostsOf(urls), bundledHosts("@jvm")...)
}

// containerHosts are the registries and mirrors that engines know, and where
// their layers lie.
func (h Host) containerHosts() []string {
	var daemon struct {
		Mirrors []string `json:"registry-mirrors"`
	}
	if json.Unmarshal([]byte(read("/etc/docker/daemon.json")), &daemon) != nil {
		daemon.Mirrors = nil
	}
	urls := daemon.Mirrors
	type location struct {
		Location string `toml:"location"`
	}
	for _, path := range []string{h.inHome(".config/containers/registries.conf"), "/etc/containers/registries.conf"} {
		var f struct {
			Registry []struct {
				location
				Mirror []location `toml:"mirror"`
			} `toml:"registry"`
			Search []string `toml:"unqualified-search-registries"`
		}
		if toml.Unmarshal([]byte(read(path)), &f) != nil {
			continue
		}
		places := f.Search
		for _, r := range f.Registry {
			places = append(places, r.Location)
			for _, m := range r.Mirror {
				places = append(places, m.Location)
			}
		}
		for _, p := range places {
			urls = append(urls, "https://"+p)
		}
	}
	return slices.Concat(h.dockerHosts(), hostsOf(urls), bundledHosts("@containers"))
}

// presetHosts returns the hosts of the presets that inject has none for: the
// registries that the operator's own clients use.
func (h Host) presetHosts() map[string][]string {
	out := map[string][]string{"npm": h.npmHosts(), "pypi": h.pipHosts(), "docker-registry": h.dockerHosts()}
	for k, hosts := range out {
		slices.Sort(hosts)
		out[k] = slices.Compact(append([]string{}, hosts...))
	}
	return out
}

func (h Host) pipHosts() []string {
	urls := []string{h.Getenv("PIP_INDEX_URL"), h.Getenv("UV_DEFAULT_INDEX")}
	for _, path := range []string{h.Getenv("PIP_CONFIG_FILE"), h.inHome(".config/pip/pip.conf"), h.inHome(".pip/pip.conf"), "/etc/pip.conf"} {
		for line := range strings.Lines(read(path)) {
			key, value, _ := strings.Cut(line, "=")
			switch strings.TrimSpace(key) {
			case "index-url", "extra-index-url", "index_url", "extra_index_url":
				urls = append(urls, strings.TrimSpace(value))
			}
		}
	}
	return hostsOf(urls)
}

func (h Host) dockerHosts() []string {
	var urls []string
	for _, path := range []string{h.inHome(".docker/config.json"), h.inHome(".config/containers/auth.json")} {
		var f struct {
			Auths map[string]json.RawMessage `json:"auths"`
		}
		if json.Unmarshal([]byte(read(path)), &f) != nil {
			continue
		}
		for name := range f.Auths {
			if !strings.Contains(name, "://") {
				name = "https://" + name
			}
			urls = append(urls, name)
		}
	}
	return hostsOf(urls)
}
