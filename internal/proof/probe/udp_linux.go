package probe

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

func (p *prober) udp4DNS(_ context.Context, _ string) Finding { return p.datagramDNS(true) }
func (p *prober) udp6DNS(_ context.Context, _ string) Finding { return p.datagramDNS(false) }

func (p *prober) datagramDNS(v4 bool) Finding {
	q, err := question(p.plan.Control, dnsmessage.TypeA)
	if err != nil {
		return Finding{Outcome: Errored, Detail: err.Error()}
	}
	var t tally
	p.udp(&t, q, p.judgeDNS, p.resolvers(v4)...)
	return t.finding("no resolver to try")
}

// udpMulticast speaks to everyone nearby, where others would answer.
func (p *prober) udpMulticast(_ context.Context, id string) Finding {
	to := []netip.AddrPort{
		netip.MustParseAddrPort("224.0.0.251:5353"),
		netip.MustParseAddrPort("224.0.0.252:5355"),
		netip.MustParseAddrPort("239.255.255.250:1900"),
		netip.MustParseAddrPort("255.255.255.255:9"),
		netip.MustParseAddrPort("[ff02::fb%lo]:5353"),
		netip.MustParseAddrPort("[ff02::1:3%lo]:5355"),
	}
	var t tally
	p.udp(&t, []byte(Tag(p.plan.Nonce, id)), nil, to...)
	return t.finding("")
}

// udp443 sends a QUIC packet of a version that no server has, so that every
// server answers.
func (p *prober) udp443(_ context.Context, id string) Finding {
	packet := make([]byte, 1200)
	copy(packet, []byte{0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1})
	copy(packet[64:], Tag(p.plan.Nonce, id))
	var t tally
	p.udp(&t, packet, nil, slices.Concat(p.outside(true, 443), p.outside(false, 443))...)
	return t.finding(noAddrs)
}

func (p *prober) udpOther(_ context.Context, id string) Finding {
	ports := []uint16{123, 500, 853, 3478, 51820}
	payload := make([]byte, 48) // a question about the time, to NTP
	payload[0] = 0x1b
	payload = append(payload, Tag(p.plan.Nonce, id)...)
	var t tally
	p.udp(&t, payload, nil, slices.Concat(p.outside(true, ports...), p.outside(false, ports...))...)
	return t.finding(noAddrs)
}

func (p *prober) udpHost(_ context.Context, id string) Finding {
	var t tally
	p.udp(&t, []byte(Tag(p.plan.Nonce, id)), nil, p.plan.HostUDP...)
	return t.finding("the host has no listener to try")
}

// dnsData puts data into a name nobody granted. Our DNS may make up an address
// for it; a true answer, or any data, came from outside.
func (p *prober) dnsData(ctx context.Context, _ string) Finding {
	name := hex.EncodeToString([]byte(p.plan.Nonce)[:16]) + ".data.probe.foldyard.test"
	var t tally
	for _, network := range []string{"udp", "tcp"} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeMX, 65, 10} {
			what := fmt.Sprintf("%s type %d", network, kind)
			reply, err := p.ask(ctx, network, p.plan.DNS4, name, kind)
			if err != nil {
				t.add(Errored, what, err.Error())
				continue
			}
			switch addrs, other := answers(reply); {
			case other || !p.allSynthetic(addrs):
				t.add(Reached, what, fmt.Sprintf("answered with %v", addrs))
			case len(addrs) > 0:
				t.add(Refused, what, "a synthetic address")
			default:
				t.add(Refused, what, "no data")
			}
		}
	}
	return t.finding("")
}

// pingRequest is an echo request; the kernel fills the checksum in.
func pingRequest(kind byte, tag string) []byte {
	return append([]byte{kind, 0, 0, 0, 0, 1, 0, 1}, tag...)
}

func (p *prober) icmp4(_ context.Context, id string) Finding {
	return p.ping(id, true, unix.IPPROTO_ICMP, 8)
}

func (p *prober) icmp6(_ context.Context, id string) Finding {
	return p.ping(id, false, unix.IPPROTO_ICMPV6, 128)
}

func (p *prober) ping(id string, v4 bool, protocol int, kind byte) Finding {
	var t tally
	for _, a := range p.outside(v4, 0) {
		family, sa := sockaddr(a)
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			t.add(Absent, "no such socket", err.Error())
			continue
		}
		o, how := Silent, "neither refused nor answered"
		if err := unix.Connect(fd, sa); err != nil {
			o, how = fromError(err)
		} else if _, err := unix.Write(fd, pingRequest(kind, Tag(p.plan.Nonce, id))); err != nil {
			o, how = fromError(err)
		} else if await(fd, unix.POLLIN, patience/2) == nil {
			_, err := unix.Read(fd, make([]byte, 512))
			o, how = fromError(err)
		}
		closeFD(fd)
		t.add(o, a.Addr().String(), how)
	}
	return t.sockets(noAddrs)
}

// sockets is the finding of a row about sockets that must not open.
func (t *tally) sockets(none string) Finding {
	f := t.finding(none)
	f.Uncontrolled = tcpSocketOpens()
	return f
}

// tcpSocketOpens is the control of rows about sockets that must not open.
func tcpSocketOpens() string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "no TCP socket opens either: " + err.Error()
	}
	closeFD(fd)
	return ""
}

// noSocket tries to open sockets of which none may.
func noSocket(t *tally, what string, family, kind, protocol int) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		t.add(Absent, what, err.Error())
		return
	}
	closeFD(fd)
	t.add(Reached, what, "the socket opened")
}

func (p *prober) rawSocket(context.Context, string) Finding {
	var t tally
	for _, protocol := range []int{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_RAW} {
		noSocket(&t, "IPv4", unix.AF_INET, unix.SOCK_RAW, protocol)
		noSocket(&t, "IPv6", unix.AF_INET6, unix.SOCK_RAW, protocol)
	}
	return t.sockets("")
}

func (p *prober) packetSocket(context.Context, string) Finding {
	var t tally
	noSocket(&t, "raw", unix.AF_PACKET, unix.SOCK_RAW, 0)
	noSocket(&t, "datagram", unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	noSocket(&t, "old", unix.AF_INET, unix.SOCK_PACKET, 0x300)
	return t.sockets("")
}

func (p *prober) vsock(context.Context, string) Finding {
	var t tally
	noSocket(&t, "stream", unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	noSocket(&t, "datagram", unix.AF_VSOCK, unix.SOCK_DGRAM, 0)
	return t.sockets("")
}

// socketFamilies tries every family but UNIX, INET, INET6 and NETLINK, and
// every netlink protocol but ROUTE.
func (p *prober) socketFamilies(context.Context, string) Finding {
	var t tally
	for family := range 47 {
		switch family {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
			continue
		}
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET, unix.SOCK_RAW} {
			noSocket(&t, fmt.Sprintf("family %d", family), family, kind, 0)
		}
	}
	for protocol := 1; protocol < 23; protocol++ {
		noSocket(&t, fmt.Sprintf("netlink %d", protocol), unix.AF_NETLINK, unix.SOCK_RAW, protocol)
	}
	return t.sockets("")
}
