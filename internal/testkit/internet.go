package testkit

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
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Resolver is the name server of the internet, the only one.
const Resolver = "203.0.113.53:53"

// origin4 and origin6 are where every name leads.
const (
	origin4 = "203.0.113.10"
	origin6 = "2001:db8:113::10"
)

// Internet is what lies at the far end of a lab: a name server for every name
// below .test, and one web server that is all of them, over HTTP/1.1, HTTP/2
// and plain HTTP, with a CA of its own. It notes what arrives and at which
// address: what arrives elsewhere got out of a box.
type Internet struct {
	CA []byte // PEM

	sites  map[string]http.Handler
	signer *x509.Certificate
	key    *ecdsa.PrivateKey
	leaf   *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // guarded by mu
	names  map[string]int              // questions asked, by name; guarded by mu
	stray  []string                    // what arrived where nothing should; guarded by mu
}

// NewInternet opens the internet of lab, with a site for each name. It lasts as
// long as the test process.
func NewInternet(lab *Lab, sites map[string]http.Handler) (*Internet, error) {
	n := &Internet{sites: sites, leaves: map[string]*tls.Certificate{}, names: map[string]int{}}
	if err := n.sign(); err != nil {
		return nil, fmt.Errorf("make a CA: %w", err)
	}
	return n, lab.Far(n.open)
}

func (n *Internet) open() error {
	var lc net.ListenConfig
	plain, err := lc.Listen(context.Background(), "tcp", ":80")
	if err != nil {
		return err
	}
	secure, err := lc.Listen(context.Background(), "tcp", ":443")
	if err != nil {
		return err
	}
	udp, err := lc.ListenPacket(context.Background(), "udp", Resolver)
	if err != nil {
		return err
	}
	anywhere, err := lc.ListenPacket(context.Background(), "udp", ":443")
	if err != nil {
		return err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler: http.HandlerFunc(n.serve), Protocols: &protocols, ReadHeaderTimeout: 30 * time.Second,
		TLSConfig: &tls.Config{GetCertificate: n.certificate}, ErrorLog: log.New(io.Discard, "", 0),
	}
	// The servers end with the process.
	go func() { _ = srv.Serve(&watched{plain, n}) }()
	go func() { _ = srv.ServeTLS(&watched{secure, n}, "", "") }()
	go n.resolve(udp)
	go n.listen(anywhere)
	return nil
}

// serve hands a request to the site it is for.
func (n *Internet) serve(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	site, ok := n.sites[host]
	if !ok {
		http.Error(w, "no site "+host, http.StatusNotFound)
		return
	}
	site.ServeHTTP(w, r)
}

// watched notes connections to an address that no name leads to.
type watched struct {
	net.Listener
	n *Internet
}

func (w *watched) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err == nil {
		at, _ := netip.ParseAddrPort(c.LocalAddr().String())
		if a := at.Addr().Unmap().String(); a != origin4 && a != origin6 {
			w.n.note("tcp " + at.String())
		}
	}
	return c, err
}

func (n *Internet) listen(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		if _, from, err := c.ReadFrom(buf); err != nil {
			return
		} else {
			n.note("udp 443 from " + from.String())
		}
	}
}

func (n *Internet) note(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stray = append(n.stray, what)
}

// Stray returns what arrived at addresses that no name leads to.
func (n *Internet) Stray() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.stray...)
}

// Asked returns how often the name server was asked for name.
func (n *Internet) Asked(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[name]
}

func (n *Internet) resolve(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		k, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		if out := n.answer(buf[:k]); out != nil {
			_, _ = c.WriteTo(out, from) // a resolver asks again
		}
	}
}

func (n *Internet) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	n.mu.Lock()
	n.names[name]++
	n.mu.Unlock()
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type, TTL: 60}
	switch {
	case n.sites[name] == nil:
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: netip.MustParseAddr(origin4).As4()}}}
	case q.Type == dnsmessage.TypeAAAA:
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(origin6).As16()}}}
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

func (n *Internet) sign() (err error) {
	if n.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	if n.leaf, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testkit internet"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, n.key.Public(), n.key)
	if err != nil {
		return err
	}
	n.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	n.signer, err = x509.ParseCertificate(der)
	return err
}

func (n *Internet) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := hello.ServerName
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sites[name] == nil {
		return nil, errors.New("no such site")
	}
	if c := n.leaves[name]; c != nil {
		return c, nil
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, n.signer, n.leaf.Public(), n.key)
	if err != nil {
		return nil, err
	}
	n.leaves[name] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: n.leaf}
	return n.leaves[name], nil
}
