package arch

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// retired are words that have a successor; where they are still needed is
// listed by the start of a path.
var retired = []struct {
	word    string
	instead string
	except  []string
}{
	{"whitelist", "allowlist", nil},
	{"blacklist", "denylist", nil},
	{"default_deny", "enforce", []string{"internal/host/config/", "docs/", "test/script/"}},
	{"host_wall", "host_firewall", []string{"internal/host/config/", "docs/", "test/script/"}},
	{"mitmproxy", "a plain name for what is meant", []string{"test/bench/", "docs/"}},
	{"jail", "box", nil},
	{"failed to ", "what was being done", nil},
}

func TestRetiredWords(t *testing.T) {
	each(t, func(path string, data []byte) {
		if strings.HasPrefix(path, "internal/arch/") || path == "go.sum" || path == "LICENSE" {
			return
		}
		for i, line := range strings.Split(strings.ToLower(string(data)), "\n") {
			for _, r := range retired {
				if !strings.Contains(line, r.word) || slices.ContainsFunc(r.except, func(e string) bool { return strings.HasPrefix(path, e) }) {
					continue
				}
				t.Errorf("%s:%d: %q is retired: say %s", path, i+1, r.word, r.instead)
			}
		}
	})
}

// unnamed are the hashes of host names that the repository must not name:
// package registries and their mirrors. They are found from the clients' own
// configuration. (printf %s NAME | sha256sum | cut -c1-16)
var unnamed = []string{
	"00a7dc5a0cc38858",
	"048e76c14ef34200",
	"05b16d11407cc4e4",
	"0dc11026ac75c015",
	"0e10f3b8bb2a1ef3",
	"0fd460f0568e29c1",
	"1ba4e37997a2e986",
	"271dacc9f4d0caf8",
	"2c77714df232b07f",
	"317d2d52829b7812",
	"386c042daaf7f1eb",
	"3ca29e55be4befa4",
	"43c04ed1dabe979b",
	"4445b86dcaaff098",
	"4db460c55b85212e",
	"70bb4000cd2fab03",
	"70cca582c4895337",
	"71741fe2460a6150",
	"789e46d79514e280",
	"8454fabc8b630901",
	"9da5f32d96412512",
	"a0f007d863a0ed19",
	"a4aa2ac280bb8d1a",
	"be57af6b78a7faca",
	"c899567ee9068517",
	"dcb6cc3991f9799e",
	"e680c440a2e92079",
	"e83cc4bcd94e4ed5",
	"edd83f6692f960c7",
	"f483c1237e51a1fa",
	"f65219c547f9c032",
}

var hostName = regexp.MustCompile(`[a-z0-9-]+(\.[a-z0-9-]+)+`)

func TestNoRegistryIsNamed(t *testing.T) {
	each(t, func(path string, data []byte) {
		for i, line := range strings.Split(strings.ToLower(string(data)), "\n") {
			for _, host := range hostName.FindAllString(line, -1) {
				if registry(host) {
					t.Errorf("%s:%d: names the registry %s", path, i+1, host)
				}
			}
		}
	})
	if registry("packages.example.com") {
		t.Error("control: packages.example.com is no registry")
	}
}

// registry reports whether host, or a domain above it, is one of unnamed.
func registry(host string) bool {
	for {
		sum := sha256.Sum256([]byte(host))
		if slices.Contains(unnamed, hex.EncodeToString(sum[:8])) {
			return true
		}
		_, rest, ok := strings.Cut(host, ".")
		if !ok {
			return false
		}
		host = rest
	}
}
