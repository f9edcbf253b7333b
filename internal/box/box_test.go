package box

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func testCA(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestEnvironmentIsMadeFromNothing(t *testing.T) {
	operator := map[string]string{
		"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TZ": "Europe/Berlin", "LANG": "x\x1b]52;c;evil\a",
		"AWS_SECRET_ACCESS_KEY": "canary", "SSH_AUTH_SOCK": "/tmp/canary", "LD_PRELOAD": "canary",
	}
	var asked []string
	env := Environment(Options{
		ID: "b1", User: "dev", Home: "/home/dev",
		Operator: func(name string) string { asked = append(asked, name); return operator[name] },
		Config: map[string]string{
			"EDITOR": "vi", "HTTPS_PROXY": "http://evil.test", "ssl_cert_file": "/evil", "FY_PROXY": "evil", "A=B": "x", "NUL": "a\x00b",
		},
		Named: map[string]string{"EDITOR": "ed", "WANTED": "by hand", "JAVA_TOOL_OPTIONS": "-javaagent:evil"},
	})
	for _, want := range []string{
		"TERM=xterm-256color", "LC_ALL=C.UTF-8", "TZ=Europe/Berlin", "EDITOR=ed", "WANTED=by hand", "FY_BOX=b1", "IN_DEVBOX=1",
		"FY_PROXY=http://127.0.0.1:3128", "HOME=/home/dev", "USER=dev", "SHELL=/bin/sh",
		"NODE_EXTRA_CA_CERTS=/etc/foldyard/ca.pem", "SSL_CERT_FILE=/etc/foldyard/bundle.pem", "DENO_CERT=/etc/foldyard/bundle.pem",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("missing %s in %q", want, env)
		}
	}
	if with := Environment(Options{ExtraCA: true}); !slices.Contains(with, "NODE_EXTRA_CA_CERTS=/etc/foldyard/extra.pem") {
		t.Errorf("Node is not told of the operator's authorities: %q", with)
	}
	all := strings.Join(env, "\n")
	for _, bad := range []string{"canary", "evil", "_PROXY=http://127.0.0.1:3128\nHTTP", "LANG=", "NUL=", "A=B", "HTTPS_PROXY", "\x00"} {
		if strings.Contains(all, bad) {
			t.Errorf("%q is in the environment:\n%s", bad, all)
		}
	}
	if slices.Contains(asked, "AWS_SECRET_ACCESS_KEY") || slices.Contains(asked, "HOME") {
		t.Errorf("asked the operator's environment for %q", asked)
	}
	if !slices.IsSorted(env) {
		t.Error("not sorted")
	}
}

func TestProxyVariablesOnlyWhenWanted(t *testing.T) {
	o := Options{ID: "b", User: "u", Home: "/home/u", ProxyVariables: true}
	env := Environment(o)
	for _, want := range []string{
		"HTTP_PROXY=" + ProxyURL, "http_proxy=" + ProxyURL, "https_proxy=" + ProxyURL, "ALL_PROXY=" + ProxyURL,
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1", "NODE_USE_ENV_PROXY=1",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("missing %s", want)
		}
	}
	o.ProxyVariables = false
	for _, v := range Environment(o) {
		if name, _, _ := strings.Cut(v, "="); Owned(name) && strings.HasSuffix(strings.ToUpper(name), "_PROXY") && name != "FY_PROXY" {
			t.Errorf("%s is set", v)
		}
	}
}

func TestOwned(t *testing.T) {
	o := Options{ProxyVariables: true}
	free := []string{"PATH", "HOME", "USER", "SHELL", "EDITOR", "NODE_OPTIONS", "FYI", "PROXY"}
	for _, v := range Environment(o) {
		name, _, _ := strings.Cut(v, "=")
		if got, want := Owned(name), !slices.Contains(free, name); got != want {
			t.Errorf("Owned(%s) = %v, want %v", name, got, want)
		}
	}
	for _, name := range free {
		if Owned(name) {
			t.Errorf("Owned(%s)", name)
		}
		if err := CheckVariable(name, "x"); err != nil {
			t.Errorf("CheckVariable(%s): %v", name, err)
		}
	}
	for _, bad := range []string{"", "1A", "A B", "A=", "ä", "fy_box", "Http_Proxy"} {
		if CheckVariable(bad, "x") == nil {
			t.Errorf("CheckVariable(%q) accepts", bad)
		}
	}
}

func TestInsideBySignOfEither(t *testing.T) {
	tests := []struct {
		name   string
		env    string
		marker bool
		want   bool
	}{
		{"host", "", false, false},
		{"host with another value", "0", false, false},
		{"variable", "1", false, true},
		{"box that cleared its environment", "", true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := inside(func(string) string { return tt.env }, func(p string) bool { return tt.marker && p == MarkerPath })
			if got != tt.want {
				t.Errorf("inside = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestEtcFiles(t *testing.T) {
	good := Identity{
		Box: "b1", Project: "p", Backend: "namespace", Hostname: "p-b1", Resolver: netip.MustParseAddr("198.18.0.1"),
		User: User{Name: "dev", UID: 1000, GID: 1001, Home: "/home/dev", Shell: "/bin/bash"},
	}
	files, err := EtcFiles(good)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"/etc/passwd":      "root:x:0:0:root:/root:/usr/sbin/nologin\ndev:x:1000:1001::/home/dev:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"/etc/group":       "root:x:0:\ndev:x:1001:\nnogroup:x:65534:\n",
		"/etc/resolv.conf": "nameserver 198.18.0.1\noptions timeout:3 attempts:2\n",
		"/etc/hosts":       "127.0.0.1 localhost p-b1\n::1 localhost ip6-localhost ip6-loopback\n",
		MarkerPath:         `{"box":"b1","project":"p","backend":"namespace"}` + "\n",
	}
	for path, text := range want {
		if string(files[path]) != text {
			t.Errorf("%s is\n%swant\n%s", path, files[path], text)
		}
	}
	bad := map[string]func(*Identity){
		"a line of passwd in the home": func(i *Identity) { i.User.Home = "/home/x\nroot2:x:0:0::/:" },
		"a colon in the name":          func(i *Identity) { i.User.Name = "a:b" },
		"no name":                      func(i *Identity) { i.User.Name = "" },
		"a dotted hostname":            func(i *Identity) { i.Hostname = "a.b" },
		"a newline in the hostname":    func(i *Identity) { i.Hostname = "a\n1.2.3.4 control" },
		"no resolver":                  func(i *Identity) { i.Resolver = netip.Addr{} },
	}
	for name, spoil := range bad {
		id := good
		spoil(&id)
		if _, err := EtcFiles(id); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPasswdNamesEachNumberOnce(t *testing.T) {
	for _, u := range []User{
		{Name: "root", UID: 0, GID: 0, Home: "/home/root"},
		{Name: "nobody", UID: 65534, GID: 65534, Home: "/home/nobody"},
		{Name: "dev", UID: 65534, GID: 65534, Home: "/home/dev"},
		{Name: "dev", UID: 0, GID: 0, Home: "/home/dev"},
	} {
		passwd, err := Passwd(u)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range [][]byte{passwd, Group(u)} {
			names, ids := map[string]int{}, map[string]int{}
			for _, line := range strings.Split(strings.TrimSpace(string(file)), "\n") {
				f := strings.Split(line, ":")
				names[f[0]]++
				ids[f[2]]++
			}
			for k, n := range names {
				if n != 1 {
					t.Errorf("%+v: name %s %d times", u, k, n)
				}
			}
			for k, n := range ids {
				if n != 1 {
					t.Errorf("%+v: id %s %d times", u, k, n)
				}
			}
		}
	}
}

func TestBundleHoldsSystemRootsAndOurs(t *testing.T) {
	ca, root, own := testCA(t, "ours"), testCA(t, "system"), testCA(t, "the operator's")
	files, err := TrustFiles(ca, root, own)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(files[CAPath], ca) {
		t.Error("ca.pem is not the CA alone")
	}
	pool := func(pems ...[]byte) *x509.CertPool {
		out := x509.NewCertPool()
		for _, p := range pems {
			out.AppendCertsFromPEM(p)
		}
		return out
	}
	if !pool(files[ExtraPath]).Equal(pool(own, ca)) {
		t.Error("extra.pem is not the operator's and ours")
	}
	if !pool(files[BundlePath]).Equal(pool(root, own, ca)) {
		t.Error("the bundle does not hold both")
	}
	// A bundle without a last newline must not run into our first line.
	files, err = TrustFiles(ca, bytes.TrimSpace(root), bytes.TrimSpace(own))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(files[BundlePath], []byte("----------")) {
		t.Error("two PEM lines run together")
	}
	if _, err := TrustFiles([]byte("no pem"), root, nil); err == nil {
		t.Error("a CA that is no certificate was accepted")
	}
}

func TestJavaReadsTheTrustStore(t *testing.T) {
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("no keytool on this computer")
	}
	junk := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("junk")})
	store := JavaTrustStore(slices.Concat(testCA(t, "first"), junk, testCA(t, "second")))
	path := filepath.Join(t.TempDir(), "trust.jks")
	if err := os.WriteFile(path, store, 0o600); err != nil {
		t.Fatal(err)
	}
	list := func(password string) (string, error) {
		out, err := exec.CommandContext(t.Context(), keytool, "-list", "-v", "-keystore", path, "-storetype", "JKS", "-storepass", password).CombinedOutput()
		return string(out), err
	}
	out, err := list(javaPassword)
	if err != nil {
		t.Fatalf("keytool: %v\n%s", err, out)
	}
	if !strings.Contains(out, "CN=first") || !strings.Contains(out, "CN=second") || !strings.Contains(out, "contains 2 entries") {
		t.Errorf("keytool lists\n%s", out)
	}
	if out, err := list("changed"); err == nil {
		t.Errorf("the checksum is not one: another password opens it\n%s", out)
	}
}
