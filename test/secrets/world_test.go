// Package secrets runs the real fy with a credential of every kind against
// fakes of the services, in a box that tries to get hold of them, and then
// looks for every secret wherever it could have come to lie.
package secrets

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// world is a project, a state directory, and an internet on loopback.
type world struct {
	t    *testing.T
	dir  string
	bin  string
	port string // of every service

	env []string // further variables of fy's

	mu   sync.Mutex // guards the fields that follow
	said []byte     // everything that fy ever printed
	seen map[string][]string
}

// build compiles fy once.
var build = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "fysec")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "fy"), "foldyard/cmd/fy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build fy: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "fy"))
})

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "fysec") // short: sockets go below
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, bin: filepath.Join(dir, "bin", "fy"), seen: map[string][]string{}}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, d := range []string{"repo", "state", "home", "run", "bin", "gh"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.bin, bin, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = w.fy("", "down")
		_, _ = w.fy("", "supervisor", "stop")
	})
	return w
}

func (w *world) path(p string) string { return filepath.Join(w.dir, p) }

// command is one command line of fy.
func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.Command(w.bin, args...)
	cmd.Dir = w.path("repo")
	cmd.Env = []string{
		"PATH=" + w.path("gh") + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + w.path("home"),
		"FOLDYARD_HOME=" + w.path("state"), "XDG_RUNTIME_DIR=" + w.path("run"), "NO_COLOR=1", "LANG=C.UTF-8",
	}
	cmd.Env = append(cmd.Env, w.env...)
	return cmd
}

// fy runs one command line, with input on stdin.
func (w *world) fy(input string, args ...string) (string, error) {
	cmd := w.command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	w.mu.Lock()
	w.said = append(w.said, out...)
	w.mu.Unlock()
	return string(out), err
}

func (w *world) must(input string, args ...string) string {
	w.t.Helper()
	out, err := w.fy(input, args...)
	if err != nil {
		w.t.Fatalf("fy %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// canBox says why this computer cannot make a box, nil if it can.
func (w *world) canBox() error {
	if runtime.GOOS != "linux" {
		return errors.New("the namespace backend is for Linux")
	}
	out, err := w.fy("", "run", "--", "true")
	_, _ = w.fy("", "supervisor", "stop") // the project has no name yet, and gets another one
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace([]byte(out)))
	}
	return nil
}

func (w *world) write(name, text string, mode os.FileMode) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), mode); err != nil {
		w.t.Fatal(err)
	}
}

// serve answers every name under .test, over TLS, with h.
func (w *world) serve(h http.Handler) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, DNSNames: []string{"*.test"},
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		w.t.Fatal(err)
	}
	parent, err := x509.ParseCertificate(der)
	if err != nil {
		w.t.Fatal(err)
	}
	leaf := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: []string{hello.ServerName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, key)
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
	}
	w.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o644)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	_, w.port, _ = net.SplitHostPort(l.Addr().String())
	srv := &http.Server{Handler: h, TLSConfig: &tls.Config{GetCertificate: leaf}, ReadHeaderTimeout: 10 * time.Second}
	w.t.Cleanup(func() { _ = srv.Close() })
	go func() { _ = srv.ServeTLS(l, "", "") }()
}

// resolve answers every question with 127.0.0.1 and returns where.
func (w *world) resolve() string {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
			}
			if b, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(b, from)
			}
		}
	}()
	return c.LocalAddr().String()
}

// note keeps what a service saw.
func (w *world) note(host, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[host] = append(w.seen[host], what)
}

func (w *world) saw(host string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.seen[host], "\n")
}
