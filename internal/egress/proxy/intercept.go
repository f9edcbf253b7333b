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

// intercept serves HTTP behind TLS with a leaf of ours.
func (e *Engine) intercept(c *client, n *note) {
	n.Proto, n.Scheme = capture.ProtoTLS, "https"
	tc := tls.Server(c, e.tls)
	err := e.shake(c, tc)
	if err != nil {
		n.handshake(err)
		if errors.Is(err, ca.ErrLimit) {
			e.meters.leaves.Add(1)
		}
		c.reset()
		return
	}
	if h2 := c.secured(tc.ConnectionState()); h2 {
		err = e.front.serve(c, tc)
	} else {
		err = e.session(c, tc, connect.SchemeHTTPS).serve()
	}
	if oe, ok := errors.AsType[*net.OpError](err); ok && oe.Op == "remote error" {
		n.handshake(err) // what it thinks of our certificate came late
		return
	}
	// A connection without a request is an outcome only where it was refused.
	n.silent = c.requests.Load() > 0 || n.Verdict != capture.VerdictDeny
}

// shake does the handshake, on a stack of its own: it needs several times
// what the connection needs for the rest of its life.
func (e *Engine) shake(c *client, tc *tls.Conn) error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(c.ctx, e.lim.Handshake)
		defer cancel()
		done <- tc.HandshakeContext(ctx)
	}()
	return <-done
}

// secured notes what the handshake has settled.
func (c *client) secured(state tls.ConnectionState) (h2 bool) {
	c.secure = true
	if sni := state.ServerName; sni != "" {
		if h, err := dest.ParseHost(sni); err != nil || h != c.target.Host {
			c.sni = sni
		}
	}
	return state.NegotiatedProtocol == "h2"
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
		n.c.e.meters.handshakes.Add(1)
		n.failed(policy.ReasonLimit, errors.New("the client did not finish the handshake in time"))
	case errors.Is(err, net.ErrClosed):
		n.failed(policy.ReasonClientAbort, errors.New("closed during the handshake"))
	default:
		n.failed(policy.ReasonClientTLS, err)
	}
}
