package dialer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	udpTries  = 3
	udpTry    = 1500 * time.Millisecond
	lateGrace = 500 * time.Millisecond // for the second family once the first has addresses
	maxChain  = 16                     // CNAMEs followed
	maxUDP    = 1232                   // bytes, DNS flag day 2020
)

var errNoAddress = errors.New("the name has no address")

// ParseResolver reads the address of a resolver, IP[:PORT], port 53 if none.
func ParseResolver(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(a, 53), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("resolver %q is not IP or IP:PORT", s)
	}
	return ap, nil
}

// system asks the host's resolver. The name is rooted: no search domains.
func system(ctx context.Context, name string) ([]netip.Addr, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return nil, errNoAddress
	}
	return addrs, err
}

// stub asks one resolver over UDP, and over TCP when the answer is cut.
type stub struct {
	server netip.AddrPort
	try    time.Duration // for one question over UDP, and TCP after it
	dialer net.Dialer
}

// lookup returns the addresses of both families in the order of the answers,
// IPv6 first. One family may fail as long as the other has addresses.
func (s *stub) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithCancel(ctx)
	type answer struct {
		addrs []netip.Addr
		err   error
	}
	six, four := make(chan answer, 1), make(chan answer, 1)
	ask := func(to chan answer, t dnsmessage.Type) {
		addrs, err := s.query(ctx, name, t)
		to <- answer{addrs, err}
	}
	go ask(six, dnsmessage.TypeAAAA)
	go ask(four, dnsmessage.TypeA)

	var a6, a4 answer
	select {
	case a6 = <-six:
		a4 = late(four, cancel, len(a6.addrs) > 0)
	case a4 = <-four:
		a6 = late(six, cancel, len(a4.addrs) > 0)
	}
	cancel()
	all := append(a6.addrs, a4.addrs...)
	switch {
	case len(all) > 0:
		return all, nil
	case a4.err != nil && !errors.Is(a4.err, errNoAddress):
		return nil, a4.err
	case a6.err != nil && !errors.Is(a6.err, errNoAddress):
		return nil, a6.err
	}
	return nil, errNoAddress
}

// late waits for the other family: a short while only when the first one has
// addresses already. Either way its question has ended when late returns.
func late[T any](c chan T, cancel func(), enough bool) T {
	if enough {
		defer time.AfterFunc(lateGrace, cancel).Stop()
	}
	return <-c
}

func (s *stub) query(ctx context.Context, name string, t dnsmessage.Type) ([]netip.Addr, error) {
	id, msg, err := question(name, t)
	if err != nil {
		return nil, err
	}
	for range udpTries {
		var addrs []netip.Addr
		if addrs, err = s.once(ctx, msg, id, name, t); err == nil || errors.Is(err, errNoAddress) || ctx.Err() != nil {
			return addrs, err
		}
	}
	return nil, fmt.Errorf("ask the resolver %s: %w", s.server, err)
}

func (s *stub) once(ctx context.Context, msg []byte, id uint16, name string, t dnsmessage.Type) ([]netip.Addr, error) {
	try, cancel := context.WithTimeout(ctx, s.try)
	defer cancel()
	b, cut, err := s.udp(try, msg, id, name, t)
	if err == nil && cut {
		b, err = s.tcp(try, msg)
	}
	if err != nil {
		return nil, err
	}
	return addresses(b, id, name, t)
}

// udp returns the first answer that belongs to the question.
func (s *stub) udp(ctx context.Context, msg []byte, id uint16, name string, t dnsmessage.Type) (b []byte, cut bool, err error) {
	c, done, err := s.open(ctx, "udp")
	if err != nil {
		return nil, false, err
	}
	defer done()
	if _, err := c.Write(msg); err != nil {
		return nil, false, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, false, err
		}
		if _, h, err := begin(buf[:n], id, name, t); err == nil {
			return buf[:n], h.Truncated, nil
		}
	}
}

func (s *stub) tcp(ctx context.Context, msg []byte) ([]byte, error) {
	c, done, err := s.open(ctx, "tcp")
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err = io.ReadFull(c, b)
	return b, err
}

// open connects to the resolver; the connection breaks when ctx ends.
func (s *stub) open(ctx context.Context, network string) (net.Conn, func(), error) {
	c, err := s.dialer.DialContext(ctx, network, s.server.String())
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	return c, func() { stop(); c.Close() }, nil
}

func question(name string, t dnsmessage.Type) (uint16, []byte, error) {
	var r [2]byte
	rand.Read(r[:])
	id := binary.BigEndian.Uint16(r[:])
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return 0, nil, fmt.Errorf("ask for %q: %w", name, err)
	}
	var opt dnsmessage.ResourceHeader
	if err := opt.SetEDNS0(maxUDP, dnsmessage.RCodeSuccess, false); err != nil {
		return 0, nil, err
	}
	m := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions:   []dnsmessage.Question{{Name: n, Type: t, Class: dnsmessage.ClassINET}},
		Additionals: []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}},
	}
	b, err := m.Pack()
	return id, b, err
}

// begin parses up to the answers and checks that b answers the question.
func begin(b []byte, id uint16, name string, t dnsmessage.Type) (*dnsmessage.Parser, dnsmessage.Header, error) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil {
		return nil, h, err
	}
	q, err := p.AllQuestions()
	if err != nil {
		return nil, h, err
	}
	if !h.Response || h.ID != id || len(q) != 1 || q[0].Type != t || q[0].Class != dnsmessage.ClassINET || canonical(q[0].Name) != name {
		return nil, h, errors.New("an answer to another question")
	}
	return &p, h, nil
}

func canonical(n dnsmessage.Name) string {
	return strings.ToLower(strings.TrimSuffix(n.String(), "."))
}

// addresses returns the addresses of type t that the answer gives for the
// name, through its CNAMEs.
func addresses(b []byte, id uint16, name string, t dnsmessage.Type) ([]netip.Addr, error) {
	p, h, err := begin(b, id, name, t)
	if err != nil {
		return nil, err
	}
	switch h.RCode {
	case dnsmessage.RCodeSuccess:
	case dnsmessage.RCodeNameError:
		return nil, errNoAddress
	default:
		return nil, fmt.Errorf("the resolver answers %s", strings.TrimPrefix(h.RCode.String(), "RCode"))
	}
	alias, found := map[string]string{}, map[string][]netip.Addr{}
	for {
		rh, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return nil, err
		}
		owner := canonical(rh.Name)
		switch {
		case rh.Class == dnsmessage.ClassINET && rh.Type == dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return nil, err
			}
			alias[owner] = canonical(r.CNAME)
		case rh.Class == dnsmessage.ClassINET && rh.Type == t && t == dnsmessage.TypeA:
			r, err := p.AResource()
			if err != nil {
				return nil, err
			}
			found[owner] = append(found[owner], netip.AddrFrom4(r.A))
		case rh.Class == dnsmessage.ClassINET && rh.Type == t && t == dnsmessage.TypeAAAA:
			r, err := p.AAAAResource()
			if err != nil {
				return nil, err
			}
			found[owner] = append(found[owner], netip.AddrFrom16(r.AAAA))
		default:
			if err := p.SkipAnswer(); err != nil {
				return nil, err
			}
		}
	}
	for range maxChain {
		if a := found[name]; len(a) > 0 {
			return a, nil
		}
		next, ok := alias[name]
		if !ok {
			break
		}
		name = next
	}
	return nil, errNoAddress
}
