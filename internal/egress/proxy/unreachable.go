package proxy

import (
	"context"
	"errors"
	"net/http"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
)

// unreachable is what to answer when a permitted target was not reached.
func (e *Engine) unreachable(err error, t dest.Target) *denial {
	d := &denial{
		status: http.StatusBadGateway, reason: policy.ReasonUpstreamUnreachable, target: t,
		err: "destination_unavailable", fix: "the target is granted: this is not a refusal", detail: err.Error(),
	}
	name := t.String()
	de, ok := errors.AsType[*dialer.Error](err)
	if !ok {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			d.err, d.what = "connection_timeout", name+" did not answer in time"
		default:
			d.what = name + " closed the connection or broke the protocol"
			d.err = "http_protocol_error"
		}
		return d
	}
	switch de.Kind {
	case dialer.KindNoName:
		d.err, d.what = "dns_error", "no address was found for "+name
	case dialer.KindRefused:
		d.err, d.what = "connection_refused", name+" refused the connection"
	case dialer.KindNoRoute:
		d.err, d.what = "destination_ip_unroutable", "there is no route to "+name
	case dialer.KindTimeout:
		d.err, d.what = "connection_timeout", name+" did not answer in time"
	case dialer.KindTLS:
		d.reason, d.err, d.what = policy.ReasonUpstreamTLS, "tls_certificate_error", "the certificate or TLS handshake of "+name+" was not accepted"
		d.fix = "fix it at the origin, or tunnel it: [proxy] passthrough"
	case dialer.KindClass:
		d.prohibit(!de.Never())
	case dialer.KindProxy:
		d.err, d.what = "destination_unavailable", "the upstream proxy did not connect to "+name
	case dialer.KindLimit:
		e.meters.dials.Add(1)
		d.status, d.reason, d.err = http.StatusServiceUnavailable, policy.ReasonLimit, "connection_limit_reached"
		d.what, d.fix = "too many connections are being opened", "try again; fy status shows the limits"
	default:
		d.what = name + " was not reached"
	}
	return d
}

// prohibit makes d the refusal of a target at an address that is not public.
// grantable says whether a grant opens the way to it.
func (d *denial) prohibit(grantable bool) {
	d.status, d.reason, d.err = http.StatusForbidden, policy.ReasonAddressClass, "destination_ip_prohibited"
	d.what, d.fix = d.target.String()+" is at an address that is not public", ""
	if grantable {
		d.fix = InternalCommand(d.target)
	}
}

// prohibited is the refusal of a target that a rule permits and that is, by
// its own text, at an address that only an internal grant opens, or none. What
// a name leads to shows when it is dialled.
func prohibited(t dest.Target, d policy.Decision) *denial {
	internal, grantable := dialer.Opens(t)
	if d.Internal || grantable && !internal {
		return nil
	}
	out := &denial{target: t}
	out.prohibit(grantable)
	return out
}
