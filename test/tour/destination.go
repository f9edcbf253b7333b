package main

import (
	"context"
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
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// destination is what the box asks for.
type destination struct {
	name  string
	url   string
	grant []string // arguments of fy allow
}

// destination finds a real registry in the configuration of the clients on
// this computer, or starts an origin of the tour's own.
func (g *guide) destination() (destination, error) {
	if g.own {
		fmt.Println("The tour asks an origin of its own, on this computer.")
		return g.origin()
	}
	for _, raw := range registries() {
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || !answers(raw) {
			continue
		}
		fmt.Printf("The tour asks a real registry, which a client on this computer is configured for: %s\n", u.Host)
		return destination{name: "the registry " + u.Host, url: raw, grant: []string{u.Host}}, nil
	}
	fmt.Println("No registry is configured and reachable here: the tour asks an origin of its own, on this computer.")
	return g.origin()
}

// registries asks the package clients what they are configured for.
func registries() []string {
	var out []string
	for _, q := range []struct {
		argv []string
		path string
	}{
		{[]string{"go", "env", "GOPROXY"}, "/github.com/google/go-cmp/@v/list"},
		{[]string{"npm", "config", "get", "registry"}, "/left-pad/latest"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		text, err := exec.CommandContext(ctx, q.argv[0], q.argv[1:]...).Output()
		cancel()
		if err != nil {
			continue
		}
		for _, s := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(",| \n", r) }) {
			if strings.HasPrefix(s, "https://") {
				out = append(out, strings.TrimSuffix(s, "/")+q.path)
			}
		}
	}
	return out
}

func answers(url string) bool {
	c := &http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status matters
	return resp.StatusCode == http.StatusOK
}

// origin starts a name server and a web server on loopback, and tells fy of
// them in the operator's configuration, as one tells it of a corporate CA and
// resolver.
func (g *guide) origin() (destination, error) {
	const name = "origin.test"
	cert, ca, err := certificate(name)
	if err != nil {
		return destination{}, err
	}
	web, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return destination{}, err
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s, over %s\n", r.Host, r.Proto)
	})}
	go func() {
		if err := srv.Serve(web); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "tour: origin:", err)
		}
	}()
	resolver, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return destination{}, err
	}
	go serveNames(resolver, name)

	state := filepath.Join(g.dir, "state")
	if err := os.WriteFile(filepath.Join(state, "origin-ca.pem"), ca, 0o600); err != nil {
		return destination{}, err
	}
	config := fmt.Sprintf("[upstream]\nresolver = %q\nca = [\"origin-ca.pem\"]\n", resolver.LocalAddr())
	if err := os.WriteFile(filepath.Join(state, "config.toml"), []byte(config), 0o600); err != nil {
		return destination{}, err
	}
	_, port, err := net.SplitHostPort(web.Addr().String())
	if err != nil {
		return destination{}, err
	}
	host := name + ":" + port
	return destination{name: host, url: "https://" + host + "/", grant: []string{host, "--internal"}}, nil
}

func certificate(name string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "fy tour"}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// serveNames answers that name is at 127.0.0.1, and that nothing else is
// anywhere.
func serveNames(c net.PacketConn, name string) {
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
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		switch {
		case !strings.EqualFold(q.Name.String(), name+"."):
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		if answer, err := m.Pack(); err == nil {
			_, _ = c.WriteTo(answer, from) // a resolver asks again
		}
	}
}
