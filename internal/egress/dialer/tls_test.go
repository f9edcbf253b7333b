package dialer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"foldyard/internal/egress/dest"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	c := a.issue(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "test root"}})
	a.cert, _ = x509.ParseCertificate(c.Certificate[0])
	a.key = c.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(t testing.TB, c *x509.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(1)
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) server(t testing.TB, name string) *tls.Certificate {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
	if ip, err := netip.ParseAddr(name); err == nil {
		c.IPAddresses = []net.IP{ip.AsSlice()}
	} else {
		c.DNSNames = []string{name}
	}
	return a.issue(t, c)
}

// tlsWorld leads every address to a TLS origin.
func tlsWorld(t testing.TB, cfg Config, origin *tls.Config, seen chan<- tls.ConnectionState) *Dialer {
	t.Helper()
	i := &internet{to: listen(t, func(c net.Conn) {
		s := tls.Server(c, origin)
		if s.Handshake() != nil {
			return
		}
		if seen != nil {
			seen <- s.ConnectionState()
		}
		io.WriteString(s, "hello")
		s.Close()
	})}
	cfg.Own = none
	d := New(cfg)
	d.connect = i.connect
	d.lookup = func(context.Context, string) ([]netip.Addr, error) { return addrs("192.0.2.1"), nil }
	return d
}

func TestDialTLS(t *testing.T) {
	a := newAuthority(t)
	for _, name := range []string{"a.test", "a_b.test", "192.0.2.1", "2001:db8::1"} {
		seen := make(chan tls.ConnectionState, 1)
		d := tlsWorld(t, Config{Roots: a.pool}, &tls.Config{Certificates: []tls.Certificate{*a.server(t, name)}, NextProtos: []string{"h2", "http/1.1"}}, seen)
		h, err := dest.ParseHost(name)
		if err != nil {
			t.Fatal(err)
		}
		c, at, err := d.DialTLS(t.Context(), dest.Target{Host: h, Port: 443}, false, "http/1.1")
		if err != nil {
			t.Fatal(err)
		}
		s := <-seen
		if p := c.ConnectionState().NegotiatedProtocol; p != "http/1.1" || at.Port() != 443 || readAll(t, c) != "hello" {
			t.Errorf("%s: protocol %q at %v", name, p, at)
		}
		if want := h.Name(); s.ServerName != want {
			t.Errorf("%s: SNI %q, want %q", name, s.ServerName, want)
		}
		c.Close()
	}
}

func TestCertificatesAreVerified(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	old := &x509.Certificate{DNSNames: []string{"a.test"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}
	for name, tt := range map[string]struct {
		cert *tls.Certificate
		want string
	}{
		"good":            {a.server(t, "a.test"), ""},
		"wildcard":        {a.server(t, "*.test"), ""},
		"other authority": {other.server(t, "a.test"), "signed by an unknown authority"},
		"self-signed":     {(&authority{}).issue(t, &x509.Certificate{DNSNames: []string{"a.test"}}), "signed by an unknown authority"},
		"other name":      {a.server(t, "b.test"), "for another name"},
		"expired":         {a.issue(t, old), "expired or not yet valid"},
	} {
		t.Run(name, func(t *testing.T) {
			d := tlsWorld(t, Config{Roots: a.pool}, &tls.Config{Certificates: []tls.Certificate{*tt.cert}}, nil)
			c, _, err := d.DialTLS(t.Context(), target(t, "a.test:443"), false)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
				return
			}
			if e := wantKind(t, err, KindTLS); CertificateProblem(e) != tt.want || e.Addr.String() != "192.0.2.1:443" {
				t.Errorf("%q at %v, want %q", CertificateProblem(e), e.Addr, tt.want)
			}
		})
	}
}

func TestHandshakeFailures(t *testing.T) {
	stop := make(chan struct{})
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		want  Kind
	}{
		"not TLS":  {func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n") }, KindTLS},
		"hangs up": {func(net.Conn) {}, KindTLS},
		"resets":   {func(c net.Conn) { io.ReadFull(c, make([]byte, 9)); c.(*net.TCPConn).SetLinger(0) }, KindTLS},
		"silent":   {func(net.Conn) { <-stop }, KindTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			i := &internet{to: listen(t, tt.serve)}
			d := New(Config{Own: none, Limits: Limits{TLS: 100 * time.Millisecond}})
			if tt.want == KindTLS {
				d.lim.TLS = time.Minute
			}
			d.connect = i.connect
			if tt.want == KindTimeout {
				defer close(stop)
			}
			_, _, err := d.DialTLS(t.Context(), target(t, "192.0.2.1:443"), false)
			if e := wantKind(t, err, tt.want); CertificateProblem(e) != "" {
				t.Errorf("the certificate is blamed: %v", e)
			}
		})
	}
}

// A client certificate goes to the hosts that the operator named for it and to
// no other.
func TestClientCertificates(t *testing.T) {
	a := newAuthority(t)
	mine := a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "me"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	cfg := Config{Roots: a.pool, ClientCerts: func(h dest.Host) *tls.Certificate {
		if h.Name() == "mtls.test" {
			return mine
		}
		return nil
	}}
	seen := make(chan tls.ConnectionState, 1)
	d := tlsWorld(t, cfg, &tls.Config{Certificates: []tls.Certificate{*a.server(t, "*.test")}, ClientAuth: tls.RequestClientCert}, seen)
	for name, want := range map[string]int{"mtls.test": 1, "other.test": 0} {
		c, _, err := d.DialTLS(t.Context(), target(t, name+":443"), false)
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, c)
		c.Close()
		if s := <-seen; len(s.PeerCertificates) != want {
			t.Errorf("%s saw %d certificates", name, len(s.PeerCertificates))
		}
	}
}

func TestSessionsResume(t *testing.T) {
	a := newAuthority(t)
	d := tlsWorld(t, Config{Roots: a.pool}, &tls.Config{Certificates: []tls.Certificate{*a.server(t, "*.test")}}, nil)
	for i, want := range []bool{false, true} {
		c, _, err := d.DialTLS(t.Context(), target(t, "a.test:443"), false)
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, c)
		c.Close()
		if got := c.ConnectionState().DidResume; got != want {
			t.Errorf("dial %d: resumed %v", i, got)
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	a := newAuthority(t)
	d := tlsWorld(t, Config{Roots: a.pool, Limits: Limits{Sessions: 1}}, &tls.Config{Certificates: []tls.Certificate{*a.server(t, "*.test")}}, nil)
	for i, c := range []struct {
		host string
		want bool
	}{{"a.test", false}, {"a.test", true}, {"b.test", false}, {"a.test", false}} {
		conn, _, err := d.DialTLS(t.Context(), target(t, c.host+":443"), false)
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, conn)
		conn.Close()
		if got := conn.ConnectionState().DidResume; got != c.want {
			t.Errorf("dial %d, of %s: resumed %v", i, c.host, got)
		}
	}
}

// B28: TLS to the origin through an https:// proxy.
func TestTLSThroughTLSProxy(t *testing.T) {
	a := newAuthority(t)
	origin := listen(t, func(c net.Conn) { io.WriteString(c, "hello") })
	p := startProxy(t, origin, &tls.Config{Certificates: []tls.Certificate{*a.server(t, "proxy.test")}})
	ap := netip.MustParseAddrPort(p.addr)
	cfg := through(t, ProxyOptions{URL: "https://user:" + secret + "@proxy.test:" + p.addr[len("127.0.0.1:"):]})
	cfg.Roots = a.pool
	d := New(cfg)
	d.lookup = (&names{answers: map[string][][]netip.Addr{"proxy.test": {{ap.Addr()}}}}).lookup
	c, at, err := d.Dial(t.Context(), target(t, "a.test:443"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := readAll(t, c); got != "banner hello" || at != ap {
		t.Errorf("read %q at %v", got, at)
	}
	cfg.Roots = newAuthority(t).pool
	d2 := New(cfg)
	d2.lookup = d.lookup
	_, _, err = d2.Dial(t.Context(), target(t, "a.test:443"), false)
	wantKind(t, err, KindProxy)
}
