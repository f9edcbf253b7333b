package probe

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

func (p *prober) outside(v4 bool, ports ...uint16) []netip.AddrPort {
	var to []netip.AddrPort
	for _, a := range p.plan.Addrs {
		if a.Is4() == v4 {
			for _, port := range ports {
				to = append(to, netip.AddrPortFrom(a, port))
			}
		}
	}
	return to
}

func (p *prober) stream(id string, to []netip.AddrPort, nothing string) Finding {
	var t tally
	p.tcp(&t, id, unix.SOCK_STREAM, 0, to...)
	return t.finding(nothing)
}

const (
	noAddrs      = "no address of that family was named in FY_PROBE_ADDRS"
	allPermitted = "not tried: a grant covers what FY_PROBE_ADDRS names (name others), or the allowlist does not enforce (fy enforce on)"
)

func (p *prober) tcp4Direct(_ context.Context, id string) Finding {
	return p.stream(id, p.outside(true, 443, 80, 22, 25, 8443), noAddrs)
}

func (p *prober) tcp6Direct(_ context.Context, id string) Finding {
	return p.stream(id, p.outside(false, 443, 80, 22, 25, 8443), noAddrs)
}

func (p *prober) tcp4DoT(_ context.Context, id string) Finding {
	return p.stream(id, p.outside(true, 853), noAddrs)
}

// tcp6Embedded writes the IPv4 addresses as IPv6: mapped, NAT64, 6to4.
func (p *prober) tcp6Embedded(_ context.Context, id string) Finding {
	var to []netip.AddrPort
	for _, a := range p.plan.Addrs {
		if !a.Is4() {
			continue
		}
		v4 := a.As4()
		mapped := [16]byte{10: 0xff, 11: 0xff, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]}
		nat64 := [16]byte{1: 0x64, 2: 0xff, 3: 0x9b, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]}
		sixto4 := [16]byte{0: 0x20, 1: 0x02, 2: v4[0], 3: v4[1], 4: v4[2], 5: v4[3], 15: 1}
		for _, b := range [][16]byte{mapped, nat64, sixto4} {
			to = append(to, netip.AddrPortFrom(netip.AddrFrom16(b), 443))
		}
	}
	return p.stream(id, to, noAddrs)
}

// tcp4FastOpen sends data with the SYN, before anyone could have refused it.
func (p *prober) tcp4FastOpen(_ context.Context, id string) Finding {
	var t tally
	for _, a := range p.outside(true, 443) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.add(Errored, a.String(), err.Error())
			continue
		}
		_, sa := sockaddr(a)
		err = unix.Sendto(fd, []byte(Tag(p.plan.Nonce, id)), unix.MSG_FASTOPEN, sa)
		if err == nil || err == unix.EINPROGRESS {
			if err = await(fd, unix.POLLOUT, patience); err == nil {
				var soerr int
				if soerr, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && soerr != 0 {
					err = unix.Errno(soerr)
				}
			}
		}
		o, how := fromError(err)
		if o == Reached && p.plan.AnswersAll {
			o, how = p.whoAnswers(fd, id, a.Addr())
		}
		t.add(o, a.String(), how)
		closeFD(fd)
	}
	return t.finding(noAddrs)
}

func (p *prober) otherTransports(_ context.Context, id string) Finding {
	const sockDCCP, protoDCCP, protoMPTCP, protoUDPLite = 6, 33, 262, 136
	var t tally
	to := p.outside(true, 443)
	p.tcp(&t, id, unix.SOCK_STREAM, protoMPTCP, to...)
	p.tcp(&t, id, unix.SOCK_STREAM, unix.IPPROTO_SCTP, to...)
	p.tcp(&t, id, sockDCCP, protoDCCP, to...)
	for _, a := range to {
		o, how := udpLite(a, protoUDPLite, []byte(Tag(p.plan.Nonce, id)))
		t.add(o, a.String()+" UDP-Lite", how)
	}
	return t.finding(noAddrs)
}

func udpLite(a netip.AddrPort, protocol int, payload []byte) (Outcome, string) {
	family, sa := sockaddr(a)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return fromError(err)
	}
	defer closeFD(fd)
	if err := unix.Connect(fd, sa); err != nil {
		return fromError(err)
	}
	for range 3 {
		if _, err := unix.Write(fd, payload); err != nil {
			return fromError(err)
		}
		if await(fd, unix.POLLIN, patience/4) == nil {
			if _, err := unix.Read(fd, make([]byte, 512)); err != nil {
				return fromError(err)
			}
			return Reached, "answered"
		}
	}
	return Silent, "neither refused nor answered"
}

// resolvers returns the named resolvers, the outside addresses and one private
// address of a family.
func (p *prober) resolvers(v4 bool) []netip.AddrPort {
	private := netip.MustParseAddr("fd00::53")
	if v4 {
		private = netip.MustParseAddr("10.0.0.53")
	}
	to := append(p.outside(v4, 53), netip.AddrPortFrom(private, 53))
	for _, a := range p.plan.Resolvers {
		if a.Is4() == v4 {
			to = append(to, netip.AddrPortFrom(a, 53))
		}
	}
	return to
}

func (p *prober) tcp4DNS(ctx context.Context, id string) Finding { return p.streamDNS(ctx, id, true) }
func (p *prober) tcp6DNS(ctx context.Context, id string) Finding { return p.streamDNS(ctx, id, false) }

// streamDNS asks other resolvers over TCP. An answer of our own DNS is a
// refusal: nothing left.
func (p *prober) streamDNS(ctx context.Context, id string, v4 bool) Finding {
	q, err := question(p.plan.Control, dnsmessage.TypeA)
	if err != nil {
		return Finding{Outcome: Errored, Detail: err.Error()}
	}
	var t tally
	for _, a := range p.resolvers(v4) {
		conn, err := dial(ctx, a)
		if err != nil {
			o, how := fromError(err)
			t.add(o, a.String(), how)
			continue
		}
		o, how := Reached, "connected, and not to our DNS"
		if conn.SetDeadline(time.Now().Add(patience)) == nil {
			if reply, err := askStream(conn, q); err == nil {
				o, how = p.judgeDNS(reply)
			} else if o2, how2 := fromError(err); o2 == Refused {
				o, how = o2, how2
			}
		}
		t.add(o, a.String(), how)
		_ = conn.Close() // only read from
	}
	return t.finding("no resolver to try")
}

// judgeDNS says who answered a question for the control's name.
func (p *prober) judgeDNS(reply []byte) (Outcome, string) {
	addrs, other := answers(reply)
	if len(addrs) > 0 && !other && p.allSynthetic(addrs) {
		return Refused, "answered by the box's own DNS with " + addrs[0].String()
	}
	return Reached, fmt.Sprintf("somebody else answered: %v", addrs)
}

// hostListeners returns the host's listeners on its loopback, or on its other
// addresses.
func hostListeners(all []netip.AddrPort, v4, loopback bool) []netip.AddrPort {
	var to []netip.AddrPort
	for _, a := range all {
		if a.Addr().Is4() == v4 && a.Addr().IsLoopback() == loopback {
			to = append(to, a)
		}
	}
	return to
}

func (p *prober) tcp4HostLoopback(_ context.Context, id string) Finding {
	return p.stream(id, hostListeners(p.plan.HostTCP, true, true), "the host has no IPv4 loopback")
}

func (p *prober) tcp6HostLoopback(_ context.Context, id string) Finding {
	return p.stream(id, hostListeners(p.plan.HostTCP, false, true), "the host has no IPv6 loopback")
}

func (p *prober) tcp4HostAddress(_ context.Context, id string) Finding {
	return p.stream(id, hostListeners(p.plan.HostTCP, true, false), "the host has no other IPv4 address")
}

func (p *prober) tcp6HostAddress(_ context.Context, id string) Finding {
	return p.stream(id, hostListeners(p.plan.HostTCP, false, false), "the host has no other IPv6 address")
}

// hostLoopbackName asks the proxy port for the host's loopback in several
// spellings: from the supervisor, which does the dialling, that is near.
func (p *prober) hostLoopbackName(ctx context.Context, id string) Finding {
	var t tally
	for _, a := range p.plan.HostTCP {
		if !a.Addr().IsLoopback() && !a.Addr().Is4() {
			continue
		}
		targets := []string{a.String()}
		if a.Addr().IsLoopback() {
			port := fmt.Sprint(a.Port())
			targets = append(targets, "localhost:"+port, "127.1:"+port, "[::ffff:127.0.0.1]:"+port, "0.0.0.0:"+port)
		}
		for _, target := range targets {
			p.throughProxy(ctx, &t, id, target)
		}
	}
	return t.finding("the host has no listener to try")
}

func metadata(v4 bool) []netip.AddrPort {
	names := []string{"fd00:ec2::254", "fd20:ce::254"}
	if v4 {
		names = []string{"169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"}
	}
	var to []netip.AddrPort
	for _, n := range names {
		to = append(to, netip.AddrPortFrom(netip.MustParseAddr(n), 80))
	}
	return to
}

func (p *prober) tcp4Metadata(ctx context.Context, id string) Finding {
	var t tally
	to := slices.DeleteFunc(metadata(true), func(a netip.AddrPort) bool { return slices.Contains(p.plan.Answered, a.Addr()) })
	p.tcp(&t, id, unix.SOCK_STREAM, 0, to...)
	for _, a := range to {
		p.throughProxy(ctx, &t, id, a.String())
	}
	f := t.finding("")
	for _, a := range p.plan.Answered {
		f.Detail += fmt.Sprintf("; %s is not tried: foldyard answers it itself", a)
	}
	return f
}

func (p *prober) tcp6Metadata(_ context.Context, id string) Finding {
	return p.stream(id, metadata(false), "")
}

// secondHop asks a relay of the box's own for the outside, and for the proxy.
func (p *prober) secondHop(ctx context.Context, id string) Finding {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return Finding{Outcome: Errored, Detail: "open a relay: " + err.Error()}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.relay(ctx, l, id)
	}()
	defer func() {
		_ = l.Close() // ends the relay
		<-done
	}()
	var t tally
	for _, a := range p.outside(true, 443, 80) {
		conn, err := dial(ctx, l.Addr().(*net.TCPAddr).AddrPort())
		if err != nil {
			t.add(Errored, a.String(), err.Error())
			continue
		}
		line := askLine(conn, a.String())
		_ = conn.Close() // only read from
		if line == "refused" {
			t.add(Refused, a.String(), "the relay is refused as well")
		} else {
			t.add(outcomeOf(line), a.String(), line)
		}
	}
	f := t.finding(noAddrs)
	conn, err := dial(ctx, l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		f.Uncontrolled = "the relay does not answer: " + err.Error()
		return f
	}
	if line := askLine(conn, p.plan.Proxy.String()); line != "connected" {
		f.Uncontrolled = "the relay cannot reach the proxy port either: " + line
	}
	_ = conn.Close() // only read from
	return f
}

func outcomeOf(line string) Outcome {
	switch line {
	case "connected":
		return Reached
	case "no answer":
		return Silent
	}
	return Errored
}

func askLine(conn net.Conn, what string) string {
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return err.Error()
	}
	if _, err := fmt.Fprintln(conn, what); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

// relay serves one connection after the other: it reads an address, connects,
// and says what it met.
func (p *prober) relay(ctx context.Context, l net.Listener, id string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(2 * patience)) // the read below fails then
		line, err := bufio.NewReader(conn).ReadString('\n')
		said := "no address"
		if to, perr := netip.ParseAddrPort(strings.TrimSpace(line)); err == nil && perr == nil {
			out, derr := dial(ctx, to)
			switch o, how := fromError(derr); o {
			case Refused, Absent:
				said = "refused"
			case Reached:
				said = "connected"
				switch {
				case to == p.plan.Proxy:
				case p.plan.AnswersAll:
					if p.whoAnswersConn(out, id, to.Addr()) == Refused {
						said = "refused"
					}
				default:
					_, _ = out.Write([]byte(Tag(p.plan.Nonce, id))) // the host's listener knows us by it
				}
				_ = out.Close() // nothing was asked
			default:
				said = how
			}
		}
		_, _ = fmt.Fprintln(conn, said) // the asker tells when it hears nothing
		_ = conn.Close()
	}
}

// whoAnswersConn is whoAnswers over a connection of the net package.
func (p *prober) whoAnswersConn(c net.Conn, id string, to netip.Addr) Outcome {
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return Reached
	}
	defer f.Close()
	o, _ := p.whoAnswers(int(f.Fd()), id, to) //nolint:gosec // G115: descriptors are small
	return o
}
