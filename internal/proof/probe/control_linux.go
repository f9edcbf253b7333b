package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func (p *prober) controls() []attempt {
	return []attempt{
		{ControlHTTP4, p.controlHTTP(dnsmessage.TypeA)},
		{ControlHTTP6, p.controlHTTP(dnsmessage.TypeAAAA)},
		{ControlTLS4, p.controlTLS(dnsmessage.TypeA)},
		{ControlTLS6, p.controlTLS(dnsmessage.TypeAAAA)},
		{ControlProxy, p.controlProxy},
		{ControlUDP, p.controlDNS("udp")},
		{ControlTCP, p.controlDNS("tcp")},
	}
}

// controlPath is what the supervisor answers with a token that only the host
// knows.
func (p *prober) controlPath(id string) string { return "/probe/" + p.plan.Nonce + "/" + id }

func (p *prober) controlRequest(id, target string) string {
	return "GET " + target + p.controlPath(id) + " HTTP/1.1\r\nHost: " + p.plan.Control + "\r\nUser-Agent: fy-probe\r\nConnection: close\r\n\r\n"
}

func controlFinding(a answer, err error) Finding {
	switch {
	case err != nil:
		return Finding{Outcome: Errored, Detail: err.Error()}
	case a.status != 200:
		return Finding{Outcome: Errored, Detail: fmt.Sprintf("answered with status %d", a.status)}
	}
	return Finding{Outcome: Reached, Detail: "answered", Token: strings.TrimSpace(a.body)}
}

func (p *prober) controlHTTP(kind dnsmessage.Type) func(context.Context, string) Finding {
	return func(ctx context.Context, id string) Finding {
		conn, err := p.dialControl(ctx, kind, 80)
		if err != nil {
			return controlFinding(answer{}, err)
		}
		defer conn.Close() //nolint:errcheck // only read from
		return controlFinding(exchange(conn, p.controlRequest(id, ""), 2*patience))
	}
}

func (p *prober) controlTLS(kind dnsmessage.Type) func(context.Context, string) Finding {
	return func(ctx context.Context, id string) Finding {
		a, err := p.controlAddr(ctx, kind)
		if err != nil {
			return controlFinding(answer{}, err)
		}
		conn, err := p.dialTLS(ctx, netip.AddrPortFrom(a, 443), p.plan.Control, p.plan.Control)
		if err != nil {
			return controlFinding(answer{}, err)
		}
		defer conn.Close() //nolint:errcheck // only read from
		return controlFinding(exchange(conn, p.controlRequest(id, ""), 2*patience))
	}
}

func (p *prober) controlProxy(ctx context.Context, id string) Finding {
	conn, err := dial(ctx, p.plan.Proxy)
	if err != nil {
		return controlFinding(answer{}, err)
	}
	defer conn.Close() //nolint:errcheck // only read from
	return controlFinding(exchange(conn, p.controlRequest(id, "http://"+p.plan.Control), 2*patience))
}

func (p *prober) controlDNS(network string) func(context.Context, string) Finding {
	return func(ctx context.Context, _ string) Finding {
		for _, server := range []netip.Addr{p.plan.DNS4, p.plan.DNS6} {
			if !server.IsValid() {
				continue
			}
			for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
				reply, err := p.ask(ctx, network, server, p.plan.Control, kind)
				if err != nil {
					return Finding{Outcome: Errored, Detail: fmt.Sprintf("%s: %v", server, err)}
				}
				addrs, _ := answers(reply)
				if len(addrs) == 0 || !p.allSynthetic(addrs) {
					return Finding{Outcome: Errored, Detail: fmt.Sprintf("%s answers %v for %s", server, addrs, p.plan.Control)}
				}
			}
		}
		return Finding{Outcome: Reached, Detail: "answered"}
	}
}

// controlAddr returns the control's synthetic address.
func (p *prober) controlAddr(ctx context.Context, kind dnsmessage.Type) (netip.Addr, error) {
	var faults []error
	for _, network := range []string{"udp", "tcp"} {
		reply, err := p.ask(ctx, network, p.plan.DNS4, p.plan.Control, kind)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if addrs, _ := answers(reply); len(addrs) > 0 {
			return addrs[0], nil
		}
		faults = append(faults, fmt.Errorf("%s: no address for %s", network, p.plan.Control))
	}
	return netip.Addr{}, errors.Join(faults...)
}

func (p *prober) dialControl(ctx context.Context, kind dnsmessage.Type, port uint16) (net.Conn, error) {
	a, err := p.controlAddr(ctx, kind)
	if err != nil {
		return nil, err
	}
	return dial(ctx, netip.AddrPortFrom(a, port))
}

// question returns a DNS query.
func question(name string, kind dnsmessage.Type) ([]byte, error) {
	n, err := dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err != nil {
		return nil, err
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 0x6679, RecursionDesired: true})
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(dnsmessage.Question{Name: n, Type: kind, Class: dnsmessage.ClassINET}); err != nil {
		return nil, err
	}
	return b.Finish()
}

// ask puts one question to a server and returns the raw reply.
func (p *prober) ask(ctx context.Context, network string, server netip.Addr, name string, kind dnsmessage.Type) ([]byte, error) {
	if !server.IsValid() {
		return nil, errors.New("the plan has no resolver")
	}
	q, err := question(name, kind)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: patience}
	conn, err := d.DialContext(ctx, network, netip.AddrPortFrom(server, 53).String())
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // only read from
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if network == "tcp" {
		return askStream(conn, q)
	}
	if _, err := conn.Write(q); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	return buf[:n], err
}

func askStream(conn io.ReadWriter, q []byte) ([]byte, error) {
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	reply := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(conn, reply)
	return reply, err
}

// answers returns the addresses of a reply, and whether it is a reply with any
// other data.
func answers(reply []byte) (addrs []netip.Addr, other bool) {
	var m dnsmessage.Message
	if m.Unpack(reply) != nil || !m.Response {
		return nil, len(reply) > 0
	}
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			addrs = append(addrs, netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			addrs = append(addrs, netip.AddrFrom16(body.AAAA))
		default:
			other = true
		}
	}
	return addrs, other
}

func (p *prober) allSynthetic(addrs []netip.Addr) bool {
	for _, a := range addrs {
		if !slices.ContainsFunc(p.plan.Synthetic, func(x netip.Prefix) bool { return x.Contains(a) }) {
			return false
		}
	}
	return true
}
