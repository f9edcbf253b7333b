package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// speak serves HTTP to a client whose first bytes are known: behind TLS with a
// leaf of ours, or plain. Each request is judged by itself, so that a refused
// host explains itself here too.
func (e *Engine) speak(c *client, n *note, first sniffed) {
	switch first.kind {
	case spokeTLS:
		e.intercept(c, n)
	case spokeHTTP:
		n.silent = true
		s := session{e: e, c: c, conn: c, bound: c.target, scheme: connect.SchemeHTTP}
		_ = s.serve() // it has recorded what there was to
	case spokeH2C:
		n.silent = true
		e.front.serve(c, c)
	default:
		e.mute(c, n, first)
	}
}

func (e *Engine) intercept(c *client, n *note) {
	n.Proto, n.Scheme = capture.ProtoTLS, "https"
	tc := tls.Server(c, e.tls)
	ctx, cancel := context.WithTimeout(c.ctx, e.lim.Handshake)
	err := tc.HandshakeContext(ctx)
	cancel()
	if err != nil {
		n.handshake(err)
		if errors.Is(err, ca.ErrLimit) {
			e.meters.leaves.Add(1)
		}
		reset(c.Conn)
		return
	}
	state := tc.ConnectionState()
	sni := state.ServerName
	if sni != "" {
		if h, err := dest.ParseHost(sni); err == nil && h == c.target.Host {
			sni = ""
		}
	}
	if state.NegotiatedProtocol == "h2" {
		c.sni, c.secure = sni, true
		e.front.serve(c, tc)
	} else {
		s := session{e: e, c: c, conn: tc, bound: c.target, scheme: connect.SchemeHTTPS, sni: sni}
		err = s.serve()
	}
	if oe, ok := errors.AsType[*net.OpError](err); ok && oe.Op == "remote error" {
		n.handshake(err) // what it thinks of our certificate came late
		return
	}
	// A connection without a request is an outcome only where it was refused.
	n.silent = c.requests.Load() > 0 || n.Verdict != capture.VerdictDeny
}

// leaf answers a ClientHello with the certificate of the connection's target,
// whatever the SNI says.
func (e *Engine) leaf(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c, ok := h.Conn.(*client)
	if !ok {
		return nil, errors.New("handshake outside a flow")
	}
	return e.cfg.Leaves.Get(h.Context(), c.box.ID, c.target.Host)
}

// handshake notes why the client's TLS failed.
func (n *note) handshake(err error) {
	switch {
	case errors.Is(err, ca.ErrLimit):
		n.refused(policy.ReasonLimit, err.Error())
		return
	case errors.Is(err, context.DeadlineExceeded):
		n.failed(policy.ReasonClientTLS, errors.New("the client did not finish the handshake in time"))
	case errors.Is(err, net.ErrClosed):
		n.failed(policy.ReasonClientAbort, errors.New("closed during the handshake"))
	default:
		n.failed(policy.ReasonClientTLS, err)
	}
}
