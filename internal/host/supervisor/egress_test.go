package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/dest"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
)

// Behind an upstream proxy address classes are not ours to judge: why and status say so, of the targets that it is asked for.
func TestUpstreamProxyIsTold(t *testing.T) {
	for _, proxy := range []string{"", "http://proxy.corp.test:3128"} {
		opt := options(t, time.Now, "")
		opt.Getenv = func(name string) string {
			return map[string]string{"HTTPS_PROXY": proxy, "NO_PROXY": "direct.test"}[name]
		}
		s := start(t, opt)
		t.Cleanup(s.close)
		if _, err := s.Allow(t.Context(), control.RuleRequest{Rules: []string{"a.test", "direct.test"}}); err != nil {
			t.Fatal(err)
		}
		st, err := s.Status(t.Context())
		if err != nil || strings.Contains(strings.Join(st.Notes, "\n"), "upstream proxy") != (proxy != "") {
			t.Errorf("proxy %q: status notes %q %v", proxy, st.Notes, err)
		}
		for target, through := range map[string]bool{"https://a.test/": proxy != "", "https://direct.test/": false} {
			w, err := s.Why(t.Context(), control.WhyRequest{Target: target})
			if err != nil || w.Verdict != "allow" || strings.Contains(w.Note, "upstream proxy") != through {
				t.Errorf("proxy %q: why %s: %+v %v, want it told: %v", proxy, target, w, err, through)
			}
		}
	}
}

// An operator's certificate is shown to the hosts it is for and to nobody else; a key that others can read is refused.
func TestOperatorsClientCertificates(t *testing.T) {
	dir := t.TempDir()
	if _, err := ca.LoadOrCreate(dir, time.Now()); err != nil { // any pair will do
		t.Fatal(err)
	}
	entry := config.ClientCert{Hosts: []string{"mtls.corp.test", "*.deep.test"}, Cert: filepath.Join(dir, "ca.pem"), Key: filepath.Join(dir, "ca-key.pem")}
	find, err := clientCerts([]config.ClientCert{entry})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"mtls.corp.test": true, "a.b.deep.test": true, "corp.test": false, "deep.test": false, "x.mtls.corp.test": false} {
		h, err := dest.ParseHost(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := find(h) != nil; got != want {
			t.Errorf("%s: a certificate %v, want %v", name, got, want)
		}
	}
	if err := os.Chmod(entry.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := clientCerts([]config.ClientCert{entry}); err == nil || !strings.Contains(err.Error(), "ca-key.pem") {
		t.Errorf("a key that others can read: %v, want an error that names it", err)
	}
	if find, err := clientCerts(nil); find != nil || err != nil {
		t.Errorf("none configured: %v", err)
	}
}
