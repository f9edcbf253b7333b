package ca

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"foldyard/internal/egress/dest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func host(t testing.TB, s string) dest.Host {
	t.Helper()
	h, err := dest.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func authority(t testing.TB, at time.Time) *Authority {
	t.Helper()
	a, err := LoadOrCreate(t.TempDir(), at)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leafOf(t testing.TB, c *tls.Certificate) *x509.Certificate {
	t.Helper()
	x, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// B1: the shape that strict clients want of the authority.
func TestAuthorityShape(t *testing.T) {
	c := authority(t, now).Certificate()
	switch {
	case !c.IsCA, !c.BasicConstraintsValid, !c.MaxPathLenZero, c.MaxPathLen != 0:
		t.Errorf("basic constraints: CA %v, path length %d", c.IsCA, c.MaxPathLen)
	case c.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign:
		t.Errorf("key usage %b", c.KeyUsage)
	case len(c.SubjectKeyId) == 0:
		t.Error("no subject key identifier")
	case !c.NotBefore.Equal(now.Add(-24 * time.Hour)), !c.NotAfter.Equal(now.AddDate(5, 0, 0)):
		t.Errorf("valid from %v to %v", c.NotBefore, c.NotAfter)
	}
	critical := map[string]bool{"2.5.29.19": false, "2.5.29.15": false}
	for _, e := range c.Extensions {
		if _, ok := critical[e.Id.String()]; ok {
			critical[e.Id.String()] = e.Critical
		}
	}
	for id, ok := range critical {
		if !ok {
			t.Errorf("extension %s is not critical", id)
		}
	}
}

// B1, B4: the shape of a leaf, and a clock that is behind.
func TestLeafShape(t *testing.T) {
	a := authority(t, now)
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate())
	l := NewLeaves(a, func() time.Time { return now }, Limits{})
	long := strings.Repeat("a", 60) + ".long.test"
	for _, name := range []string{"a.test", "x_y.a.test", "192.0.2.1", "2001:db8::1", long, "xn--bcher-kva.test"} {
		h := host(t, name)
		got, err := l.Get(t.Context(), "box", h)
		if err != nil {
			t.Fatal(err)
		}
		c := leafOf(t, got)
		if n := len(c.DNSNames) + len(c.IPAddresses); n != 1 || len(c.EmailAddresses)+len(c.URIs) != 0 {
			t.Errorf("%s: %d alternative names", name, n)
		}
		if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature || len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth {
			t.Errorf("%s: CA %v, usage %b %v", name, c.IsCA, c.KeyUsage, c.ExtKeyUsage)
		}
		if !bytes.Equal(c.AuthorityKeyId, a.Certificate().SubjectKeyId) {
			t.Errorf("%s: authority key identifier %x", name, c.AuthorityKeyId)
		}
		if !c.NotBefore.Equal(now.Add(-24*time.Hour)) || !c.NotAfter.Equal(now.Add(7*24*time.Hour)) {
			t.Errorf("%s: valid from %v to %v", name, c.NotBefore, c.NotAfter)
		}
		for _, at := range []time.Time{now, now.Add(-2 * time.Hour), now.Add(-23 * time.Hour), now.Add(6 * 24 * time.Hour)} {
			if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: at}); err != nil {
				t.Errorf("%s at %v: %v", name, at, err)
			}
		}
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: "b.test", CurrentTime: now}); err == nil {
			t.Errorf("the leaf of %s is good for b.test", name)
		}
	}
}

// B1: other implementations, on files, before and after a restart.
func TestStrictVerifiers(t *testing.T) {
	dir := t.TempDir()
	real := time.Now()
	for _, life := range []string{"created", "loaded"} {
		a, err := LoadOrCreate(dir, real)
		if err != nil {
			t.Fatal(err)
		}
		l := NewLeaves(a, func() time.Time { return real }, Limits{})
		for _, name := range []string{"a.test", "192.0.2.1", "2001:db8::1", strings.Repeat("a", 60) + ".long.test"} {
			c, err := l.Get(t.Context(), "box", host(t, name))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "leaf.pem")
			if err := os.WriteFile(file, encodeCert(c.Certificate[0]), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Run(life+"/openssl/"+name, func(t *testing.T) {
				openssl, err := exec.LookPath("openssl")
				if err != nil {
					t.Skip("no openssl here")
				}
				flag := "-verify_hostname"
				if host(t, name).IsIP() {
					flag = "-verify_ip"
				}
				verify := func(name string) ([]byte, error) {
					return exec.CommandContext(t.Context(), openssl, "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", filepath.Join(dir, CertFile), flag, name, file).CombinedOutput()
				}
				if out, err := verify(name); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				other := "b.test"
				if host(t, name).IsIP() {
					other = "192.0.2.9"
				}
				if out, err := verify(other); err == nil {
					t.Errorf("it is good for %s too: %s", other, out)
				}
			})
		}
	}
}

// B1: Python with VERIFY_X509_STRICT, as from 3.13 by default, over a handshake.
func TestStrictPython(t *testing.T) {
	const python = "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		t.Skip("no python3 here")
	}
	dir := t.TempDir()
	a, err := LoadOrCreate(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l := NewLeaves(a, time.Now, Limits{})
	for _, name := range []string{"a.test", "127.0.0.1"} {
		h := host(t, name)
		ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(i *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return l.Get(i.Context(), "box", h)
		}})
		if err != nil {
			t.Fatal(err)
		}
		var served sync.WaitGroup
		served.Go(func() {
			if c, err := ln.Accept(); err == nil {
				io.WriteString(c, "hello")
				c.Close()
			}
		})
		script := fmt.Sprintf(`
import ssl, socket
c = ssl.create_default_context(cafile=%q)
c.verify_flags |= ssl.VERIFY_X509_STRICT
s = c.wrap_socket(socket.create_connection(("127.0.0.1", %d), 10), server_hostname=%q)
print(s.version(), s.recv(9))
`, filepath.Join(dir, CertFile), ln.Addr().(*net.TCPAddr).Port, name)
		out, err := exec.CommandContext(t.Context(), python, "-c", script).CombinedOutput()
		ln.Close()
		served.Wait()
		if err != nil || !bytes.Contains(out, []byte("TLSv1.3 b'hello'")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

func TestFilesAndRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "ca")
	a, err := LoadOrCreate(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"": 0o700, KeyFile: 0o600, CertFile: 0o644} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v; want %v", name, fi.Mode().Perm(), err, mode)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(dir, CertFile)); !bytes.Equal(b, a.PEM()) || bytes.Contains(b, []byte("PRIVATE")) {
		t.Errorf("%s holds %s", CertFile, b)
	}
	for _, load := range []func(string, time.Time) (*Authority, error){Load, LoadOrCreate} {
		b, err := load(dir, now.AddDate(4, 0, 0))
		if err != nil || !bytes.Equal(a.PEM(), b.PEM()) {
			t.Errorf("loaded another authority: %v", err)
		}
	}
	os.Remove(filepath.Join(dir, CertFile)) // a crash before it was written
	if b, err := LoadOrCreate(dir, now); err != nil || !bytes.Equal(a.PEM(), b.PEM()) {
		t.Errorf("without %s: %v", CertFile, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left over: %v", entries)
	}
	if _, err := Load(t.TempDir(), now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
}

// A damaged or exposed file is named, and stays as it is.
func TestDamagedFilesAreNamedAndKept(t *testing.T) {
	other := authority(t, now)
	for name, tt := range map[string]struct {
		file string
		harm func(t *testing.T, path string)
	}{
		"empty key":      {KeyFile, func(t *testing.T, p string) { os.WriteFile(p, nil, 0o600) }},
		"half a key":     {KeyFile, func(t *testing.T, p string) { os.Truncate(p, 100) }},
		"key is words":   {KeyFile, func(t *testing.T, p string) { os.WriteFile(p, []byte("hello"), 0o600) }},
		"key is huge":    {KeyFile, func(t *testing.T, p string) { os.Truncate(p, maxFile+1) }},
		"key is open":    {KeyFile, func(t *testing.T, p string) { os.Chmod(p, 0o644) }},
		"key for group":  {KeyFile, func(t *testing.T, p string) { os.Chmod(p, 0o640) }},
		"key is a link":  {KeyFile, func(t *testing.T, p string) { os.Rename(p, p+"2"); os.Symlink(p+"2", p) }},
		"key missing":    {KeyFile, func(t *testing.T, p string) { os.Remove(p) }},
		"empty cert":     {CertFile, func(t *testing.T, p string) { os.WriteFile(p, nil, 0o644) }},
		"half a cert":    {CertFile, func(t *testing.T, p string) { os.Truncate(p, 100) }},
		"two certs":      {CertFile, func(t *testing.T, p string) { b, _ := os.ReadFile(p); os.WriteFile(p, append(b, b...), 0o644) }},
		"another's cert": {CertFile, func(t *testing.T, p string) { os.WriteFile(p, other.PEM(), 0o644) }},
		"cert is a directory": {CertFile, func(t *testing.T, p string) {
			os.Remove(p)
			os.Mkdir(p, 0o755)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := LoadOrCreate(dir, now); err != nil {
				t.Fatalf("control: %v", err)
			}
			path := filepath.Join(dir, tt.file)
			tt.harm(t, path)
			before, _ := os.ReadFile(path)
			a, err := LoadOrCreate(dir, now)
			if err == nil || a != nil || !strings.Contains(err.Error(), path) {
				t.Fatalf("%v does not name %s", err, path)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("the damaged file was changed")
			}
			if _, err := Rotate(dir, now); err != nil {
				t.Errorf("rotation does not mend it: %v", err)
			}
		})
	}
}

func TestClockOutsideValidity(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadOrCreate(dir, now); err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Time{now.AddDate(-1, 0, 0), now.AddDate(6, 0, 0)} {
		if _, err := LoadOrCreate(dir, at); err == nil || !strings.Contains(err.Error(), "clock") {
			t.Errorf("at %v: %v", at, err)
		}
	}
}

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	a, err := LoadOrCreate(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Rotate(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Load(dir, now)
	if err != nil || !bytes.Equal(b.PEM(), c.PEM()) || bytes.Equal(a.PEM(), b.PEM()) {
		t.Errorf("rotated to what cannot be loaded: %v", err)
	}
	if bytes.Equal(a.Certificate().RawSubject, b.Certificate().RawSubject) {
		t.Error("two authorities have one name")
	}
	// What is damaged, rotation mends.
	os.WriteFile(filepath.Join(dir, KeyFile), []byte("x"), 0o644)
	if _, err := Rotate(dir, now); err != nil {
		t.Error(err)
	}
	if fi, _ := os.Stat(filepath.Join(dir, KeyFile)); fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", fi.Mode())
	}
	if _, err := Rotate(filepath.Join(t.TempDir(), "none"), now); err != nil {
		t.Error(err)
	}
}

func TestManyStartersGetOneAuthority(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		var g sync.WaitGroup
		got := make([]*Authority, 16)
		for i := range got {
			g.Go(func() {
				a, err := LoadOrCreate(dir, now)
				if err != nil {
					t.Error(err)
				}
				got[i] = a
			})
		}
		g.Wait()
		for _, a := range got {
			if a == nil || !bytes.Equal(a.PEM(), got[0].PEM()) {
				t.Fatal("two starters have two authorities")
			}
		}
	}
}

func TestLeavesAreCachedAndRenewed(t *testing.T) {
	at := now
	l := NewLeaves(authority(t, now), func() time.Time { return at }, Limits{Cache: 3})
	get := func(name string) *tls.Certificate {
		t.Helper()
		c, err := l.Get(t.Context(), "box", host(t, name))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a := get("a.test")
	if get("a.test") != a || get("A.test.") != a {
		t.Error("not cached")
	}
	if b := get("b.test"); b == a || b.PrivateKey != a.PrivateKey {
		t.Error("leaves do not share their key")
	}
	at = now.Add(4 * 24 * time.Hour)
	if get("a.test") != a {
		t.Error("renewed too early")
	}
	at = now.Add(6 * 24 * time.Hour)
	renewed := get("a.test")
	if renewed == a || !leafOf(t, renewed).NotAfter.Equal(at.Add(7*24*time.Hour)) {
		t.Error("not renewed before it expires")
	}
	at = now.Add(-2 * 24 * time.Hour) // the clock was set back
	if get("a.test") == renewed {
		t.Error("a leaf that is not yet valid is served")
	}
	for i := range 10 {
		get(fmt.Sprintf("n%d.test", i))
	}
	if l.Len() != 3 {
		t.Errorf("%d leaves are kept", l.Len())
	}
}

func TestLeavesInTheLastWeekOfTheAuthority(t *testing.T) {
	a := authority(t, now)
	at := a.Certificate().NotAfter.Add(-time.Hour)
	l := NewLeaves(a, func() time.Time { return at }, Limits{})
	c, err := l.Get(t.Context(), "box", host(t, "a.test"))
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := l.Get(t.Context(), "box", host(t, "a.test")); again != c {
		t.Error("minted at each request")
	}
	if x := leafOf(t, c); x.NotAfter.After(a.Certificate().NotAfter) {
		t.Errorf("outlives the authority: %v", x.NotAfter)
	}
}

// A box that asks for endless names pays for them itself.
func TestMintingIsBoundedPerBox(t *testing.T) {
	at := now
	l := NewLeaves(authority(t, now), func() time.Time { return at }, Limits{PerSecond: 10, Burst: 5})
	get := func(box string, i int) error {
		_, err := l.Get(t.Context(), box, host(t, fmt.Sprintf("n%d.test", i)))
		return err
	}
	for i := range 5 {
		if err := get("greedy", i); err != nil {
			t.Fatalf("control: %v", err)
		}
	}
	if err := get("greedy", 99); !errors.Is(err, ErrLimit) {
		t.Errorf("no limit: %v", err)
	}
	if err := get("greedy", 0); err != nil {
		t.Errorf("what is cached costs: %v", err)
	}
	if err := get("modest", 98); err != nil {
		t.Errorf("another box pays: %v", err)
	}
	at = at.Add(time.Second)
	if err := get("greedy", 99); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

func TestPrepareMintsWhatGetReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLeaves(authority(t, now), func() time.Time { return now }, Limits{PerSecond: 1, Burst: 1})
		a, b := host(t, "a.test"), host(t, "b.test")
		if !l.Prepare(t.Context(), "box", a) {
			t.Error("a.test is not new")
		}
		synctest.Wait()
		if l.Len() != 1 || l.Prepare(t.Context(), "box", a) {
			t.Errorf("%d leaves, or a.test is new still", l.Len())
		}
		if !l.Prepare(t.Context(), "box", b) {
			t.Error("b.test is not new")
		}
		synctest.Wait()
		if _, err := l.Get(t.Context(), "box", a); err != nil {
			t.Errorf("control: %v", err)
		}
		if _, err := l.Get(t.Context(), "box", b); !errors.Is(err, ErrLimit) || l.Len() != 1 {
			t.Errorf("what is prepared costs nothing: %v", err)
		}
		if _, err := l.Get(t.Context(), "other", b); err != nil {
			t.Errorf("another box pays: %v", err)
		}
	})
}

func TestGetRefusesNonsense(t *testing.T) {
	l := NewLeaves(authority(t, now), func() time.Time { return now }, Limits{})
	if _, err := l.Get(t.Context(), "box", dest.Host{}); err == nil {
		t.Error("a leaf for no host")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Get(ctx, "box", host(t, "a.test")); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

func TestConcurrentGetsMintOnce(t *testing.T) {
	l := NewLeaves(authority(t, now), func() time.Time { return now }, Limits{})
	var g sync.WaitGroup
	got := make([]*tls.Certificate, 32)
	for i := range got {
		g.Go(func() { got[i], _ = l.Get(t.Context(), "box", host(t, "a.test")) })
	}
	g.Wait()
	for _, c := range got {
		if c == nil || c != got[0] {
			t.Fatal("one name has two leaves")
		}
	}
}

// B2: what a box trusts is the system's roots and ours, certificates only.
func TestBundle(t *testing.T) {
	a, b := authority(t, now), authority(t, now)
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})
	system := append([]byte("# a comment\n"), a.PEM()...)
	got := Bundle(bytes.TrimRight(system, "\n"), append(b.PEM(), key...), a.PEM(), nil)
	if want := append(a.PEM(), b.PEM()...); !bytes.Equal(got, want) {
		t.Errorf("bundle is %s", got)
	}
}

func TestSystemBundle(t *testing.T) {
	a := authority(t, now)
	dir := t.TempDir()
	empty, full := filepath.Join(dir, "empty"), filepath.Join(dir, "full")
	os.WriteFile(empty, nil, 0o644)
	os.WriteFile(full, a.PEM(), 0o644)
	if b, f, err := firstBundle([]string{filepath.Join(dir, "none"), empty, full}); err != nil || f != full || !bytes.Equal(b, a.PEM()) {
		t.Errorf("%s, %v", f, err)
	}
	if _, _, err := firstBundle([]string{empty}); err == nil {
		t.Error("an empty bundle is taken")
	}
	if b, f, err := SystemBundle(); err == nil && (len(b) == 0 || f == "") {
		t.Errorf("%d bytes from %q", len(b), f)
	}
}

func BenchmarkMint(b *testing.B) {
	l := NewLeaves(authority(b, now), func() time.Time { return now }, Limits{})
	h := host(b, "a.test")
	for b.Loop() {
		if _, err := l.mint(h, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetCached(b *testing.B) {
	l := NewLeaves(authority(b, now), func() time.Time { return now }, Limits{})
	h := host(b, "a.test")
	b.ReportAllocs()
	for b.Loop() {
		l.Get(b.Context(), "box", h)
	}
}
