package dialer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"foldyard/internal/egress/dest"
)

// Kind tells apart why a dial did not succeed.
type Kind uint8

// The kinds. Class is a refusal of ours; all others are the network's.
const (
	KindOther    Kind = iota // anything else
	KindNoName               // the name has no address, or nobody answers for it
	KindRefused              // the port is closed
	KindNoRoute              // no way to the address
	KindTimeout              // a phase took too long
	KindTLS                  // the handshake or the certificate
	KindClass                // an address of a class that is not granted
	KindProxy                // the upstream proxy would not
	KindLimit                // too many dials at once
	KindCanceled             // the caller gave up
)

func (k Kind) String() string {
	switch k {
	case KindOther:
		return "other"
	case KindNoName:
		return "no name"
	case KindRefused:
		return "refused"
	case KindNoRoute:
		return "no route"
	case KindTimeout:
		return "timeout"
	case KindTLS:
		return "tls"
	case KindClass:
		return "address class"
	case KindProxy:
		return "upstream proxy"
	case KindLimit:
		return "limit"
	case KindCanceled:
		return "canceled"
	}
	return "other"
}

// Error is what every failed dial returns. Err, its cause, holds no secret.
type Error struct {
	Kind   Kind
	Target dest.Target
	Addr   netip.AddrPort // the address it failed at; invalid when there was none
	Class  dest.Class     // with KindClass
	Err    error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("dial " + e.Target.String())
	if e.Addr.IsValid() && e.Addr.Addr() != e.Target.Host.Addr() {
		b.WriteString(" at " + e.Addr.String())
	}
	b.WriteString(": " + e.Kind.String())
	if e.Kind == KindClass {
		b.WriteString(": " + e.Class.String())
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of a dial's error; KindOther for any other error.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindOther
}

// kindOf classifies the cause of a failed phase of which ctx is the caller's
// context, not that of the phase.
func kindOf(ctx context.Context, err error) Kind {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return KindCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return KindTimeout
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return KindRefused
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETDOWN),
		errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES),
		errors.Is(err, syscall.EAFNOSUPPORT):
		return KindNoRoute
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return KindTimeout
	}
	return KindOther
}

// kindOfTLS classifies a failed handshake: what is not a timeout or a caller
// that gave up is the handshake's own fault, a reset included.
func kindOfTLS(ctx context.Context, err error) Kind {
	if k := kindOf(ctx, err); k == KindCanceled || k == KindTimeout {
		return k
	}
	return KindTLS
}

// CertificateProblem says in a few words what is wrong with the certificate
// that made a dial fail, or "" when it was something else.
func CertificateProblem(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		return ""
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "signed by an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "for another name"
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return "expired or not yet valid"
	}
	return "not valid"
}

// worse orders the errors of several addresses: the one that says most about
// the target is reported.
func worse(a, b *Error) *Error {
	rank := func(e *Error) int {
		if e == nil {
			return -1
		}
		switch e.Kind {
		case KindCanceled:
			return 6
		case KindClass:
			return 5
		case KindRefused:
			return 4
		case KindTimeout:
			return 3
		case KindNoRoute:
			return 2
		case KindOther, KindNoName, KindTLS, KindProxy, KindLimit:
			return 1
		}
		return 0
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}
