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
)

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
