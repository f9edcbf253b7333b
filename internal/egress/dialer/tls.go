package dialer

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/gather"
)

// TLSConfig returns the configuration for a connection to t: it verifies t's
// certificate, resumes sessions, and presents the operator's client
// certificate where there is one. The caller owns it.
func (d *Dialer) TLSConfig(t dest.Target, alpn ...string) *tls.Config {
	c := d.base.Clone()
	c.ServerName = t.Host.String()
	c.NextProtos = alpn
	if d.cfg.ClientCerts == nil {
		return c
	}
	if cert := d.cfg.ClientCerts(t.Host); cert != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return c
}

// DialTLS is Dial and the handshake. Errors are *Error, of KindTLS when the
// handshake or the certificate is at fault.
func (d *Dialer) DialTLS(ctx context.Context, t dest.Target, internal bool, alpn ...string) (*tls.Conn, netip.AddrPort, error) {
	c, at, err := d.Dial(ctx, t, internal)
	if err != nil {
		return nil, at, err
	}
	tc, err := d.handshake(ctx, c, t, at, alpn)
	return tc, at, err
}

// handshake closes c when it fails.
func (d *Dialer) handshake(ctx context.Context, c net.Conn, t dest.Target, at netip.AddrPort, alpn []string) (*tls.Conn, error) {
	phase, cancel := context.WithTimeout(ctx, d.lim.TLS)
	defer cancel()
	var shared *gather.Conn
	if slices.Contains(alpn, "h2") { // which many will write to at once
		shared = gather.New(c)
		c = shared
	}
	tc := tls.Client(c, d.TLSConfig(t, alpn...))
	if err := tc.HandshakeContext(phase); err != nil {
		c.Close()
		return nil, &Error{Kind: kindOfTLS(ctx, err), Target: t, Addr: at, Err: err}
	}
	if tc.ConnectionState().NegotiatedProtocol == "h2" {
		shared.Gather()
	}
	return tc, nil
}
