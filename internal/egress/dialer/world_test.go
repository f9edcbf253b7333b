package dialer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"foldyard/internal/egress/dest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func target(t testing.TB, s string) dest.Target {
	t.Helper()
	x, err := dest.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func none(netip.Addr) bool { return false }

// names is a resolver that gives each name its answers in turn, the last one
// for ever, and remembers what it was asked.
type names struct {
	mu      sync.Mutex
	answers map[string][][]netip.Addr
	asked   []string
}

func (n *names) lookup(_ context.Context, name string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, name)
	a := n.answers[name]
	if len(a) == 0 {
		return nil, errNoAddress
	}
	if len(a) > 1 {
		n.answers[name] = a[1:]
	}
	return a[0], nil
}

// internet stands in for connect: every address leads to one loopback
// listener, after the check that connectTCP makes.
type internet struct {
	to     string
	mu     sync.Mutex
	dialed []netip.AddrPort
}

func (i *internet) connect(ctx context.Context, a netip.AddrPort, check func(netip.Addr) error) (*net.TCPConn, error) {
	i.mu.Lock()
	i.dialed = append(i.dialed, a)
	i.mu.Unlock()
	if err := check(a.Addr()); err != nil {
		return nil, err
	}
	return connectTCP(ctx, netip.MustParseAddrPort(i.to), func(netip.Addr) error { return nil })
}

// world returns a dialer whose names and addresses are made up.
func world(t *testing.T, cfg Config, answers map[string][][]netip.Addr) (*Dialer, *names, *internet) {
	t.Helper()
	n, i := &names{answers: answers}, &internet{to: listen(t, func(c net.Conn) { io.WriteString(c, "hello") })}
	if cfg.Own == nil {
		cfg.Own = none
	}
	d := New(cfg)
	d.lookup, d.connect = n.lookup, i.connect
	return d, n, i
}

// listen serves each connection with f, closes it, and ends with the test.
func listen(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	g.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			g.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		g.Wait()
	})
	return l.Addr().String()
}

// closedPort is a loopback address nobody listens at.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func readAll(t testing.TB, c net.Conn) string {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func wantKind(t testing.TB, err error, want Kind) *Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%T %v, want *Error of kind %v", err, err, want)
	}
	if e.Kind != want {
		t.Fatalf("kind %v, want %v: %v", e.Kind, want, err)
	}
	return e
}

// nameserver answers DNS on one loopback port over UDP and TCP.
type nameserver struct {
	addr string
	mu   sync.Mutex
	seen []string // "udp A a.test"
}

func (n *nameserver) log() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.seen)
}

// serveDNS runs answer for each question; nil means silence.
func serveDNS(t testing.TB, answer func(network string, q dnsmessage.Message) []byte) *nameserver {
	t.Helper()
	var l net.Listener
	var p net.PacketConn
	for range 20 {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if p, err = net.ListenPacket("udp", l.Addr().String()); err == nil {
			break
		}
		l.Close()
	}
	n := &nameserver{addr: l.Addr().String()}
	reply := func(network string, b []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(b) != nil || len(m.Questions) != 1 {
			return nil
		}
		q := m.Questions[0]
		n.mu.Lock()
		n.seen = append(n.seen, network+" "+strings.TrimPrefix(q.Type.String(), "Type")+" "+canonical(q.Name))
		n.mu.Unlock()
		return answer(network, m)
	}
	var g sync.WaitGroup
	g.Go(func() {
		b := make([]byte, 4096)
		for {
			k, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			if r := reply("udp", b[:k]); r != nil {
				p.WriteTo(r, from)
			}
		}
	})
	g.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				var size [2]byte
				if _, err := io.ReadFull(r, size[:]); err != nil {
					return
				}
				b := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(r, b); err != nil {
					return
				}
				if a := reply("tcp", b); a != nil {
					c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
				}
			})
		}
	})
	t.Cleanup(func() {
		p.Close()
		l.Close()
		g.Wait()
	})
	return n
}

// rr is a record "name A 192.0.2.1", "name AAAA …" or "name CNAME other".
func rr(s string) dnsmessage.Resource {
	f := strings.Fields(s)
	h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(f[0] + "."), Class: dnsmessage.ClassINET, TTL: 1}
	switch f[1] {
	case "A":
		return dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: netip.MustParseAddr(f[2]).As4()}}
	case "AAAA":
		return dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(f[2]).As16()}}
	case "CNAME":
		return dnsmessage.Resource{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(f[2] + ".")}}
	}
	return dnsmessage.Resource{Header: h, Body: &dnsmessage.TXTResource{TXT: []string{f[2]}}}
}

// packed answers q with the records of its type and all aliases.
func packed(q dnsmessage.Message, code dnsmessage.RCode, cut bool, records ...string) []byte {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true, RCode: code, Truncated: cut},
		Questions: q.Questions,
	}
	for _, s := range records {
		m.Answers = append(m.Answers, rr(s))
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func ofType(q dnsmessage.Message, records ...string) []string {
	var out []string
	want := " " + strings.TrimPrefix(q.Questions[0].Type.String(), "Type") + " "
	for _, s := range records {
		if strings.Contains(s, want) || strings.Contains(s, " CNAME ") {
			out = append(out, s)
		}
	}
	return out
}
