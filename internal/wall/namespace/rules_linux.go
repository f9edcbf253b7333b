package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"foldyard/internal/egress/dest"
)

// The rules of the box's network namespace. They are no wall: there is no device but loopback, so no packet has anywhere to go, and
// flushing them all opens nothing. They decide where a connection by name ends (our listeners) and how a refusal feels (at once).
// testdata/rules.nft is what the kernel lists after load.
const tableName = "foldyard"

// Offsets of the destination address in an IPv4 (RFC 791) and an IPv6 (RFC 8200) header.
const (
	v4Destination = 16
	v6Destination = 24
)

// firstRegister is NFT_REG32_00: concatenated keys are laid out in consecutive 32-bit registers from here (nf_tables.h).
const firstRegister = 8

// rules holds a connection to the kernel's nf_tables of one network namespace.
type rules struct {
	mu               sync.Mutex // one conversation at a time: what is queued on conn is sent by the next Flush, whoever's it is
	conn             *nftables.Conn
	granted, refused [2]*nftables.Set // [0] IPv4, [1] IPv6
}

type match []expr.Any

func cmp(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func family(proto byte) match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, cmp(proto)}
}

func layer4(proto byte) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, cmp(proto)}
}

// to matches a destination prefix whose length is a whole number of bytes, or 15.
func to(p netip.Prefix) match {
	proto, offset := byte(unix.NFPROTO_IPV4), uint32(v4Destination)
	if p.Addr().Is6() {
		proto, offset = unix.NFPROTO_IPV6, v6Destination
	}
	n := (p.Bits() + 7) / 8
	m := append(family(proto), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)})
	if odd := p.Bits() % 8; odd != 0 {
		mask := make([]byte, n)
		for i := range mask {
			mask[i] = 0xff
		}
		mask[n-1] = byte(0xff << (8 - odd))
		m = append(m, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(n), Mask: mask, Xor: make([]byte, n)})
	}
	return append(m, cmp(p.Masked().Addr().AsSlice()[:n]...))
}

func inSet(proto byte, offset, length uint32, s *nftables.Set) match {
	return append(family(proto),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID})
}

func destinationPort(port uint16) match {
	return match{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, cmp(binaryutil.BigEndian.PutUint16(port)...)}
}

// opening matches a TCP segment with SYN and without ACK: the RST that refuses one must not be caught too.
func opening() match {
	const syn, ack = 0x02, 0x10
	return append(layer4(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}}, cmp(syn))
}

// followUp matches what belongs to a connection that was let through.
func followUp() match {
	states := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return match{&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: states, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
}

func icmpType(proto, typ byte) match {
	return append(layer4(proto), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, cmp(typ))
}

func accept() match { return match{&expr.Verdict{Kind: expr.VerdictAccept}} }

func redirectTo(port uint16) match {
	return match{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)}, &expr.Redir{RegisterProtoMin: 1}}
}

func reset() match { return match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

func unreachable(code uint8) match {
	return match{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: code}}
}

// remember puts destination, protocol and port of the packet into the set of refusals.
func (r *rules) remember(v6, ports bool) match {
	set, offset, length, next := r.refused[0], uint32(v4Destination), uint32(4), uint32(firstRegister+1)
	if v6 {
		set, offset, length, next = r.refused[1], v6Destination, 16, firstRegister+4
	}
	m := match{
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
	}
	if ports {
		m = append(m, &expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	} else {
		m = append(m, &expr.Immediate{Register: next + 1, Data: []byte{0, 0}})
	}
	return append(m, &expr.Dynset{SrcRegKey: firstRegister, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}})
}

// loadRules loads the whole table in one transaction into the network namespace of the calling thread.
func loadRules() (*rules, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	r := &rules{conn: conn}
	t := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	for i, v := range []struct {
		suffix string
		addr   nftables.SetDatatype
	}{{"4", nftables.TypeIPAddr}, {"6", nftables.TypeIP6Addr}} {
		r.granted[i] = &nftables.Set{Table: t, Name: "granted" + v.suffix, KeyType: v.addr, Interval: true}
		r.refused[i] = &nftables.Set{Table: t, Name: "refused" + v.suffix, Dynamic: true, HasTimeout: true, Timeout: time.Minute, Size: 4096, Concatenation: true,
			KeyType: nftables.MustConcatSetType(v.addr, nftables.TypeInetProto, nftables.TypeInetService)}
		for _, s := range []*nftables.Set{r.granted[i], r.refused[i]} {
			if err := conn.AddSet(s, nil); err != nil {
				conn.CloseLasting()
				return nil, fmt.Errorf("add set %s: %w", s.Name, err)
			}
		}
	}
	loopback4, loopback6 := netip.MustParsePrefix("127.0.0.0/8"), netip.PrefixFrom(netip.IPv6Loopback(), 128)
	chain := func(name string, typ nftables.ChainType, prio *nftables.ChainPriority, rules ...[]match) {
		policy := nftables.ChainPolicyAccept
		c := conn.AddChain(&nftables.Chain{Name: name, Table: t, Type: typ, Hooknum: nftables.ChainHookOutput, Priority: prio, Policy: &policy})
		for _, parts := range rules {
			conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: slices.Concat(parts...)})
		}
	}
	type rule = []match
	tcp, udp := layer4(unix.IPPROTO_TCP), layer4(unix.IPPROTO_UDP)
	chain("way", nftables.ChainTypeNAT, nftables.ChainPriorityNATDest,
		rule{to(loopback4), accept()},
		rule{to(loopback6), accept()},
		rule{udp, destinationPort(53), redirectTo(PortDNS)},
		rule{tcp, destinationPort(53), redirectTo(PortDNS)},
		rule{to(dest.SyntheticV4()), tcp, redirectTo(PortRedirect)},
		rule{to(dest.SyntheticV6()), tcp, redirectTo(PortRedirect)},
		rule{inSet(unix.NFPROTO_IPV4, v4Destination, 4, r.granted[0]), tcp, redirectTo(PortRedirect)},
		rule{inSet(unix.NFPROTO_IPV6, v6Destination, 16, r.granted[1]), tcp, redirectTo(PortRedirect)},
	)
	const unreachablePort, prohibited = unix.NFT_REJECT_ICMPX_PORT_UNREACH, unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED
	v4, v6 := family(unix.NFPROTO_IPV4), family(unix.NFPROTO_IPV6)
	chain("refuse", nftables.ChainTypeFilter, nftables.ChainPriorityFilter,
		rule{to(loopback4), accept()},
		rule{to(loopback6), accept()},
		rule{followUp(), accept()},
		rule{v4, opening(), r.remember(false, true), reset()},
		rule{v6, opening(), r.remember(true, true), reset()},
		rule{tcp, accept()},
		rule{icmpType(unix.IPPROTO_ICMP, 3), accept()},   // destination unreachable, RFC 792: how the kernel says no
		rule{icmpType(unix.IPPROTO_ICMPV6, 1), accept()}, // the same, RFC 4443
		rule{v4, udp, r.remember(false, true), unreachable(unreachablePort)},
		rule{v6, udp, r.remember(true, true), unreachable(unreachablePort)},
		rule{v4, r.remember(false, false), unreachable(prohibited)},
		rule{v6, r.remember(true, false), unreachable(prohibited)},
	)
	if err := conn.Flush(); err != nil {
		conn.CloseLasting()
		return nil, fmt.Errorf("load the rules: %w", err)
	}
	return r, nil
}

// setGranted replaces the addresses that are redirected to us, in one transaction.
func (r *rules) setGranted(prefixes []netip.Prefix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var elements [2][]nftables.SetElement
	for _, p := range merge(prefixes) {
		i := 0
		if p.Addr().Is6() {
			i = 1
		}
		elements[i] = append(elements[i], nftables.SetElement{Key: p.Addr().AsSlice()})
		if end := last(p).Next(); end.IsValid() {
			elements[i] = append(elements[i], nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	for i, s := range r.granted {
		r.conn.FlushSet(s)
		if len(elements[i]) > 0 {
			if err := r.conn.SetAddElements(s, elements[i]); err != nil {
				return fmt.Errorf("set granted addresses: %w", err)
			}
		}
	}
	if err := r.conn.Flush(); err != nil {
		return fmt.Errorf("set granted addresses: %w", err)
	}
	return nil
}

// merge sorts prefixes and drops those inside others: an interval set takes no overlap.
func merge(in []netip.Prefix) []netip.Prefix {
	ps := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		if p.IsValid() && p.Addr().Zone() == "" {
			ps = append(ps, p.Masked())
		}
	}
	slices.SortFunc(ps, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range ps {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue
		}
		out = append(out, p)
	}
	return out
}

func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// takeRefused returns what was refused since the last call, and forgets it.
func (r *rules) takeRefused() ([]Refusal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Refusal
	for i, s := range r.refused {
		els, err := r.conn.GetSetElements(s)
		if err != nil {
			return out, fmt.Errorf("read refusals: %w", err)
		}
		if len(els) == 0 {
			continue
		}
		n := 4 + 12*i
		gone := make([]nftables.SetElement, 0, len(els))
		for _, e := range els {
			if len(e.Key) < n+8 {
				continue
			}
			addr, _ := netip.AddrFromSlice(e.Key[:n])
			f := Refusal{Addr: addr, Port: binary.BigEndian.Uint16(e.Key[n+4:]), Count: 1}
			switch e.Key[n] {
			case unix.IPPROTO_TCP:
				f.Proto = "tcp"
			case unix.IPPROTO_UDP:
				f.Proto = "udp"
			default:
				f.Proto = "icmp"
			}
			if e.Counter != nil && e.Counter.Packets > 0 {
				f.Count = e.Counter.Packets
			}
			out = append(out, f)
			gone = append(gone, nftables.SetElement{Key: e.Key})
		}
		// An element that ended by itself meanwhile fails the whole deletion; then it is read again, and counted twice at most.
		if err := r.conn.SetDeleteElements(s, gone); err != nil {
			return out, fmt.Errorf("forget refusals: %w", err)
		}
		if err := r.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return out, fmt.Errorf("forget refusals: %w", err)
		}
	}
	return out, nil
}
