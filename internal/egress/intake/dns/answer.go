// Package dns is the resolver that a box sees: every name gets a synthetic address of its own, so that a connection to the
// address is a connection to the name. Open answer.go first.
//
// It answers from its table alone. It may not resolve, forward or dial anything: no question of a box leaves.
package dns

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
)

const (
	ttl        = 60   // seconds
	payload    = 1232 // bytes of a datagram we say we take
	badVersion = dnsmessage.RCode(16)
)

// Server answers the questions of one box. Its functions are called from several goroutines at once.
type Server struct {
	Table   *Table
	Granted func(dest.Host) bool  // whether a grant names the host; nil: none does
	Record  func(*capture.Record) // may be nil
	Box     string
	// OnAssign is called after a name got its address, to save the table. It may be nil, and must not wait.
	OnAssign func()
}

// Answer answers one message. It returns nil for what must not be answered: too short, or itself an answer. No answer is too
// long for a datagram, so that it is the same over TCP.
func (s *Server) Answer(query []byte, _ bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	reply := reply{header: dnsmessage.Header{
		ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, CheckingDisabled: h.CheckingDisabled, RecursionAvailable: true,
	}}
	if h.OpCode != 0 {
		return reply.fail(dnsmessage.RCodeNotImplemented)
	}
	q, err := p.Question()
	if err != nil {
		s.refuse("", "bad_target", "a question that cannot be parsed")
		return reply.fail(dnsmessage.RCodeFormatError)
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone { //nolint:errorlint // the parser returns it bare
		return reply.fail(dnsmessage.RCodeFormatError)
	}
	reply.question = &q
	if reply.edns, err = option(&p); err != nil {
		return reply.fail(dnsmessage.RCodeFormatError)
	}
	if reply.edns != nil && reply.edns.TTL>>16&0xff != 0 {
		return reply.fail(badVersion)
	}
	if q.Class != dnsmessage.ClassINET {
		return reply.fail(dnsmessage.RCodeRefused)
	}
	s.answer(&reply, &q)
	return reply.pack()
}

// option returns the header of the OPT record, nil if there is none.
func option(p *dnsmessage.Parser) (*dnsmessage.ResourceHeader, error) {
	if err := p.SkipAllAnswers(); err != nil {
		return nil, err
	}
	if err := p.SkipAllAuthorities(); err != nil {
		return nil, err
	}
	var opt *dnsmessage.ResourceHeader
	for {
		h, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone { //nolint:errorlint // the parser returns it bare
			return opt, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Type == dnsmessage.TypeOPT {
			if opt != nil || h.Name.String() != "." {
				return nil, dnsmessage.ErrSectionDone // any error: two are malformed
			}
			opt = &h
		}
		if err := p.SkipAdditional(); err != nil {
			return nil, err
		}
	}
}

func (s *Server) answer(r *reply, q *dnsmessage.Question) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if name == "" {
		return // the root has nothing that we tell
	}
	if under(name, "arpa") {
		s.reverse(r, q, name)
		return
	}
	if under(name, "invalid") || under(name, "onion") || name == "use-application-dns.net" {
		// RFC 6761, RFC 7686, and the name by which a browser asks whether it may go round us.
		r.header.RCode = dnsmessage.RCodeNameError
		return
	}
	h, err := dest.ParseHost(name)
	if err != nil || h.IsIP() {
		s.refuse("", "bad_target", "the name "+strconv.QuoteToASCII(name)+" is no host name")
		r.header.RCode = dnsmessage.RCodeNameError
		return
	}
	if q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeAAAA {
		return // HTTPS, SVCB, MX, TXT …: the name is there, and has none
	}
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	if !h.Loopback() {
		var ok bool
		if v4, v6, ok = s.assign(h); !ok {
			r.header.RCode = dnsmessage.RCodeServerFailure
			return
		}
	}
	if q.Type == dnsmessage.TypeA {
		r.body = &dnsmessage.AResource{A: v4.As4()}
	} else {
		r.body = &dnsmessage.AAAAResource{AAAA: v6.As16()}
	}
}

func (s *Server) assign(h dest.Host) (v4, v6 netip.Addr, ok bool) {
	granted := s.Granted != nil && s.Granted(h)
	v4, v6, fresh, ok := s.Table.assign(h, granted)
	switch {
	case !ok:
		s.refuse(h.Name(), "limit", "the box has asked for more names than it may")
	case fresh && !granted:
		// Nobody judged it, and nothing left: what is tried over DNS is seen all the same. A granted name is seen when it is used.
		s.record(&capture.Record{Host: h.Name()})
	}
	if fresh && s.OnAssign != nil {
		s.OnAssign()
	}
	return v4, v6, ok
}

// reverse answers questions about addresses, and denies the rest of arpa: discovery of resolvers and NAT64 among it.
func (s *Server) reverse(r *reply, q *dnsmessage.Question, name string) {
	a, ok := parseReverse(name)
	if !ok {
		r.header.RCode = dnsmessage.RCodeNameError
		return
	}
	host := "localhost"
	if !a.IsLoopback() {
		h, known := s.Table.Lookup(a)
		if !known {
			r.header.RCode = dnsmessage.RCodeNameError
			return
		}
		host = h.Name()
	}
	if q.Type != dnsmessage.TypePTR {
		return
	}
	n, err := dnsmessage.NewName(host + ".")
	if err != nil {
		r.header.RCode = dnsmessage.RCodeServerFailure
		return
	}
	r.body = &dnsmessage.PTRResource{PTR: n}
}

// parseReverse takes a whole address under in-addr.arpa or ip6.arpa, in lower case.
func parseReverse(name string) (netip.Addr, bool) {
	if s, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		l := strings.Split(s, ".")
		if len(l) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(l[3] + "." + l[2] + "." + l[1] + "." + l[0])
		return a, err == nil
	}
	s, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok || len(s) != 63 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i := range 32 {
		c := s[2*i]
		d := strings.IndexByte("0123456789abcdef", c)
		if d < 0 || i < 31 && s[2*i+1] != '.' {
			return netip.Addr{}, false
		}
		b[15-i/2] |= byte(d) << (4 * (i % 2)) //nolint:gosec // one hexadecimal digit
	}
	return netip.AddrFrom16(b), true
}

func under(name, zone string) bool {
	return name == zone || strings.HasSuffix(name, zone) && name[len(name)-len(zone)-1] == '.'
}

func (s *Server) refuse(host, reason, why string) {
	s.record(&capture.Record{Host: host, Verdict: capture.VerdictDeny, Reason: reason, Error: why})
}

func (s *Server) record(r *capture.Record) {
	if s.Record == nil {
		return
	}
	r.Box, r.Via, r.Proto, r.Mode = s.Box, capture.ViaDNS, capture.ProtoDNS, capture.ModeNone
	s.Record(r)
}

// reply is an answer in the making.
type reply struct {
	header   dnsmessage.Header
	question *dnsmessage.Question
	body     dnsmessage.ResourceBody // the one answer; nil: none
	edns     *dnsmessage.ResourceHeader
}

func (r *reply) fail(code dnsmessage.RCode) []byte {
	r.header.RCode = code
	return r.pack()
}

// pack never yields more than 512 bytes: a name, an answer with at most another and an OPT.
func (r *reply) pack() []byte {
	m := dnsmessage.Message{Header: r.header}
	m.RCode &= 0xf
	if r.question != nil {
		m.Questions = []dnsmessage.Question{*r.question}
		if r.body != nil {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: r.question.Name, Class: dnsmessage.ClassINET, TTL: ttl}, Body: r.body}}
		}
	}
	if r.edns != nil {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(payload, r.header.RCode, r.edns.DNSSECAllowed()); err != nil {
			return nil
		}
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
