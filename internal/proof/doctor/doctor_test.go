package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func writeCA(t *testing.T, from, to time.Time) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"ca.pem": {Type: "CERTIFICATE", Bytes: der}, "ca-key.pem": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAuthority(t *testing.T) {
	year := 365 * 24 * time.Hour
	tests := []struct {
		name  string
		dir   func() string
		state string
		says  string
	}{
		{"none yet", func() string { return t.TempDir() }, OK, "first start"},
		{"good", func() string { return writeCA(t, now.Add(-year), now.Add(year)) }, OK, "valid until"},
		{"ends soon", func() string { return writeCA(t, now.Add(-year), now.Add(24*time.Hour)) }, Warn, "ends at"},
		{"ended", func() string { return writeCA(t, now.Add(-year), now.Add(-time.Hour)) }, Fail, "ended"},
		{"clock behind", func() string { return writeCA(t, now.Add(time.Hour), now.Add(year)) }, Fail, "clock"},
		{"key for everyone", func() string {
			d := writeCA(t, now.Add(-year), now.Add(year))
			if err := os.Chmod(filepath.Join(d, "ca-key.pem"), 0o644); err != nil {
				t.Fatal(err)
			}
			return d
		}, Fail, "0644"},
		{"key of another", func() string {
			d := writeCA(t, now.Add(-year), now.Add(year))
			other, err := os.ReadFile(filepath.Join(writeCA(t, now, now.Add(year)), "ca-key.pem"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d, "ca-key.pem"), other, 0o600); err != nil {
				t.Fatal(err)
			}
			return d
		}, Fail, "ca.pem"},
		{"damaged", func() string {
			d := writeCA(t, now.Add(-year), now.Add(year))
			if err := os.WriteFile(filepath.Join(d, "ca.pem"), []byte("junk"), 0o600); err != nil {
				t.Fatal(err)
			}
			return d
		}, Fail, "ca.pem"},
		{"certificate lost", func() string {
			d := writeCA(t, now.Add(-year), now.Add(year))
			if err := os.Remove(filepath.Join(d, "ca.pem")); err != nil {
				t.Fatal(err)
			}
			return d
		}, Fail, "missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := authority(Options{CA: tt.dir(), Now: now})
			if r.State != tt.state || !strings.Contains(r.Detail, tt.says) {
				t.Errorf("%+v, want %s with %q", r, tt.state, tt.says)
			}
			if r.State == Fail && r.Fix == "" {
				t.Errorf("no fix: %+v", r)
			}
		})
	}
}

func TestDirectoryThatOthersCanWriteFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := directory("x", dir); r.State != OK {
		t.Errorf("a private one: %+v", r)
	}
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // the test's point
		t.Fatal(err)
	}
	if r := directory("x", dir); r.State != Fail || !strings.Contains(r.Fix, "chmod 700") {
		t.Errorf("an open one: %+v", r)
	}
	if r := directory("x", filepath.Join(dir, "later")); r.State != OK {
		t.Errorf("one that is made later: %+v", r)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := directory("x", file); r.State != Fail {
		t.Errorf("a file: %+v", r)
	}
}

func TestRoom(t *testing.T) {
	for free, want := range map[uint64]string{0: Fail, roomFail - 1: Fail, roomFail: Warn, roomWarn - 1: Warn, roomWarn: OK} {
		if r := room("/x", free); r.State != want {
			t.Errorf("%d bytes: %+v, want %s", free, r, want)
		}
	}
}

func TestClockBeforeTheBinaryWasMadeFails(t *testing.T) {
	if r := clock(Options{Now: now, Built: now.Add(48 * time.Hour)}); r[0].State != Fail {
		t.Errorf("%+v", r)
	}
	for _, built := range []time.Time{{}, now, now.Add(-time.Hour), now.Add(time.Hour)} {
		if r := clock(Options{Now: now, Built: built}); r[0].State != OK {
			t.Errorf("built %v: %+v", built, r)
		}
	}
}

func TestFyInsideTheProjectIsWarnedOf(t *testing.T) {
	dir := t.TempDir()
	fy := filepath.Join(dir, "bin", "fy")
	if r := program(Options{Project: dir, Program: fy}); r.State != Warn || !strings.Contains(r.Detail, "box can change it") {
		t.Errorf("%+v", r)
	}
	if within("/a/b", "/a/bc/fy") || within("/a/b", "/a/fy") || !within("/a/b", "/a/b/..fy") {
		t.Error("within is wrong about neighbours")
	}
}

func TestRunCollectsAndJudges(t *testing.T) {
	o := Options{
		Now: now, State: t.TempDir(), Config: t.TempDir(), CA: t.TempDir(), Program: "/bin/sh",
		Wall:  func(context.Context) []Row { return []Row{{"user namespaces", OK, "they work", ""}} },
		Roots: func() ([]byte, string, error) { return []byte("-----BEGIN CERTIFICATE-----"), "/x", nil },
	}
	for _, d := range []string{o.State, o.Config} {
		if err := os.Chmod(d, 0o700); err != nil { //nolint:gosec // a directory
			t.Fatal(err)
		}
	}
	if rows := Run(t.Context(), o); !Healthy(rows) {
		t.Errorf("%+v", rows)
	}
	o.Wall = func(context.Context) []Row { return []Row{{"user namespaces", Fail, "forbidden", "sudo sysctl …"}} }
	if rows := Run(t.Context(), o); Healthy(rows) {
		t.Error("a computer without user namespaces is healthy")
	}
	o.Wall = nil
	o.Roots = func() ([]byte, string, error) { return nil, "", errors.New("none") }
	if rows := Run(t.Context(), o); Healthy(rows) {
		t.Error("a computer without roots is healthy")
	}
	if rows := Run(t.Context(), Options{Inside: true}); Healthy(rows) || len(rows) != 1 {
		t.Errorf("in a box: %+v", rows)
	}
	if Healthy(nil) || Healthy([]Row{{Name: "x"}}) {
		t.Error("nothing, or a row without a state, is healthy")
	}
}
