package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// throughProxy asks the proxy port for a target with CONNECT. When it agrees,
// the tag goes through, so that the host knows.
func (p *prober) throughProxy(ctx context.Context, t *tally, id, target string) {
	if t.futile() {
		return
	}
	what := "CONNECT " + target
	conn, err := dial(ctx, p.plan.Proxy)
	if err != nil {
		t.add(Errored, what, "the proxy port: "+err.Error())
		return
	}
	defer conn.Close() //nolint:errcheck // only read from
	a, err := exchange(conn, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n", 5*time.Second)
	t.add(p.judgeConnect(conn, id, what, a, err))
}

func (p *prober) judgeConnect(conn io.Writer, id, what string, a answer, err error) (o Outcome, w, how string) {
	switch {
	case errors.Is(err, io.EOF):
		return Refused, what, "closed"
	case err != nil:
		o, how := fromError(err)
		return o, what, how
	case a.status >= 200 && a.status < 300:
		_, _ = io.WriteString(conn, Tag(p.plan.Nonce, id)) // the host's listener knows us by it
		return Reached, what, fmt.Sprintf("status %d", a.status)
	}
	return Refused, what, fmt.Sprintf("status %d", a.status)
}

const notEnforcing = "the allowlist does not enforce, and the probe would go out"

func (p *prober) proxyConnect(ctx context.Context, id string) Finding {
	if !p.plan.Enforcing {
		return Finding{Outcome: Skipped, Detail: notEnforcing}
	}
	var t tally
	for _, a := range append(p.outside(true, 443, 80, 22), p.outside(false, 443)...) {
		p.throughProxy(ctx, &t, id, a.String())
	}
	return t.finding(noAddrs)
}

func (p *prober) proxySOCKS(ctx context.Context, id string) Finding {
	if !p.plan.Enforcing {
		return Finding{Outcome: Skipped, Detail: notEnforcing}
	}
	var t tally
	for _, a := range p.outside(true, 443, 22) {
		o, how := p.socks(ctx, id, a)
		t.add(o, a.String(), how)
	}
	return t.finding(noAddrs)
}

func (p *prober) socks(ctx context.Context, id string, to netip.AddrPort) (Outcome, string) {
	conn, err := dial(ctx, p.plan.Proxy)
	if err != nil {
		return Errored, "the proxy port: " + err.Error()
	}
	defer conn.Close() //nolint:errcheck // only read from
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return Errored, err.Error()
	}
	if _, err := conn.Write([]byte{5, 1, 0}); err != nil {
		return fromError(err)
	}
	reply := make([]byte, 2)
	if _, err := io.ReadFull(conn, reply); err != nil || reply[0] != 5 || reply[1] != 0 {
		return Refused, "no SOCKS5 without credentials"
	}
	v4 := to.Addr().As4()
	if _, err := conn.Write(append(append([]byte{5, 1, 0, 1}, v4[:]...), byte(to.Port()>>8), byte(to.Port()))); err != nil {
		return fromError(err)
	}
	if _, err := io.ReadFull(conn, reply); err != nil {
		return Refused, "closed"
	}
	if reply[1] != 0 {
		return Refused, fmt.Sprintf("SOCKS5 reply %d", reply[1])
	}
	_, _ = io.WriteString(conn, Tag(p.plan.Nonce, id)) // the host's listener knows us by it
	return Reached, "SOCKS5 agreed"
}

// otherName is a name that nobody grants.
const otherName = "other.probe.foldyard.test"

// sniMismatch names one host in the address, and another in SNI or Host.
func (p *prober) sniMismatch(ctx context.Context, _ string) Finding {
	a, err := p.controlAddr(ctx, dnsmessage.TypeA)
	if err != nil {
		return Finding{Outcome: Errored, Detail: err.Error()}
	}
	request := func(host string) string {
		return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	var t tally
	tries := []struct{ what, sni, host string }{
		{"SNI and Host of another", otherName, otherName},
		{"SNI of another", otherName, p.plan.Control},
		{"Host of another", p.plan.Control, otherName},
	}
	for _, try := range tries {
		conn, err := p.dialTLS(ctx, netip.AddrPortFrom(a, 443), try.sni, p.plan.Control)
		if err != nil {
			t.add(Refused, try.what, "no handshake")
			continue
		}
		got, err := exchange(conn, request(try.host), 5*time.Second)
		t.add(judgeRefusal(try.what, got, err))
		_ = conn.Close() // only read from
	}
	conn, err := dial(ctx, netip.AddrPortFrom(a, 80))
	if err != nil {
		t.add(Errored, "plain HTTP", err.Error())
		return t.finding("")
	}
	defer conn.Close() //nolint:errcheck // only read from
	got, err := exchange(conn, request(otherName), 5*time.Second)
	t.add(judgeRefusal("Host of another over plain HTTP", got, err))
	return t.finding("")
}

// judgeRefusal takes a status of refusal, or an end without one, for one.
func judgeRefusal(what string, a answer, err error) (o Outcome, w, how string) {
	if err != nil {
		if o, how := fromError(err); o == Silent {
			return o, what, how
		}
		return Refused, what, "closed"
	}
	switch a.status {
	case 400, 403, 405, 421:
		return Refused, what, fmt.Sprintf("status %d", a.status)
	}
	return Reached, what, fmt.Sprintf("status %d", a.status)
}

// silence443 waits until a sniffer might give up, then speaks something that is
// neither TLS nor HTTP.
func (p *prober) silence443(ctx context.Context, id string) Finding {
	var t tally
	for _, pause := range []time.Duration{0, time.Second} {
		what := fmt.Sprintf("after %v", pause)
		conn, err := p.dialControl(ctx, dnsmessage.TypeA, 443)
		if err != nil {
			t.add(Errored, what, err.Error())
			continue
		}
		o, how := p.lateBytes(ctx, conn, id, pause)
		t.add(o, what, how)
		_ = conn.Close() // only read from
	}
	return t.finding("")
}

func (p *prober) lateBytes(ctx context.Context, conn net.Conn, id string, pause time.Duration) (Outcome, string) {
	select {
	case <-ctx.Done():
		return Errored, "no time left"
	case <-time.After(pause):
	}
	if err := conn.SetDeadline(time.Now().Add(14 * time.Second)); err != nil {
		return Errored, err.Error()
	}
	if _, err := io.WriteString(conn, "\x00\x01\x02 "+Tag(p.plan.Nonce, id)); err != nil {
		return Refused, "closed"
	}
	buf := make([]byte, 512)
	n, err := conn.Read(buf)
	switch got := string(buf[:n]); {
	case n == 0 && err != nil:
		if o, how := fromError(err); o == Silent {
			return o, how
		}
		return Refused, "closed"
	case strings.HasPrefix(got, "HTTP/1.1 4"), got[0] == 0x15: // an HTTP refusal or a TLS alert
		return Refused, "refused"
	}
	return Reached, fmt.Sprintf("answered with %d bytes", n)
}

// innerConnect asks for a tunnel inside a connection that is already decrypted.
func (p *prober) innerConnect(ctx context.Context, id string) Finding {
	a, err := p.controlAddr(ctx, dnsmessage.TypeA)
	if err != nil {
		return Finding{Outcome: Errored, Detail: err.Error()}
	}
	targets := []string{p.plan.Control + ":443"}
	for _, l := range hostListeners(p.plan.HostTCP, true, true) {
		targets = append(targets, l.String())
	}
	var t tally
	for _, target := range targets {
		what := "CONNECT " + target
		conn, err := p.dialTLS(ctx, netip.AddrPortFrom(a, 443), p.plan.Control, p.plan.Control)
		if err != nil {
			t.add(Errored, what, err.Error())
			continue
		}
		got, err := exchange(conn, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n", 5*time.Second)
		t.add(p.judgeConnect(conn, id, what, got, err))
		_ = conn.Close() // only read from
	}
	return t.finding("")
}
