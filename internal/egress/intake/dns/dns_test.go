package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func host(t testing.TB, s string) dest.Host {
	t.Helper()
	h, err := dest.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// world is a server with all it was told.
type world struct {
	*Server
	records  []capture.Record
	assigned int
}

func newWorld(limit int, granted ...string) *world {
	w := &world{}
	w.Server = &Server{
		Table:    NewTable(limit),
		Granted:  func(h dest.Host) bool { return strings.Contains(" "+strings.Join(granted, " ")+" ", " "+h.Name()+" ") },
		Record:   func(r *capture.Record) { w.records = append(w.records, *r) },
		Box:      "b1",
		OnAssign: func() { w.assigned++ },
	}
	return w
}

func query(t testing.TB, name string, typ dnsmessage.Type, change ...func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 0xbeef, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET}},
	}
	for _, f := range change {
		f(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t testing.TB, b []byte) *dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("%v in %x", err, b)
	}
	return &m
}

// ask returns what a stub resolver would make of the answer: the code and the data of each record.
func (w *world) ask(t testing.TB, name string, typ dnsmessage.Type) string {
	t.Helper()
	m := parse(t, w.Answer(query(t, name, typ), false))
	if !m.Response || m.ID != 0xbeef || !m.RecursionDesired || !m.RecursionAvailable || m.Truncated || len(m.Questions) != 1 || m.Questions[0].Name.String() != name {
		t.Errorf("header of the answer to %s: %+v", name, m)
	}
	out := strings.TrimPrefix(m.RCode.String(), "RCode")
	for _, a := range m.Answers {
		if a.Header.TTL != 60 || a.Header.Name.String() != name || a.Header.Class != dnsmessage.ClassINET {
			t.Errorf("answer %+v", a.Header)
		}
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			out += " " + netip.AddrFrom4(b.A).String()
		case *dnsmessage.AAAAResource:
			out += " " + netip.AddrFrom16(b.AAAA).String()
		case *dnsmessage.PTRResource:
			out += " " + b.PTR.String()
		default:
			out += fmt.Sprintf(" %T", b)
		}
	}
	return out
}

func TestAnswers(t *testing.T) {
	w := newWorld(0, "a.test")
	long := strings.Repeat(strings.Repeat("x", 62)+".", 4)
	for _, row := range []struct {
		name string
		typ  dnsmessage.Type
		want string
	}{
		{"a.test.", dnsmessage.TypeA, "Success 198.18.0.2"},
		{"a.test.", dnsmessage.TypeAAAA, "Success fd5b:7d1e:9c04::2"},
		{"A.TeSt.", dnsmessage.TypeA, "Success 198.18.0.2"},
		{"evil.test.", dnsmessage.TypeA, "Success 198.18.0.3"},
		{"c2VjcmV0LWRhdGEx.evil.test.", dnsmessage.TypeA, "Success 198.18.0.4"},
		{"_x._tcp.a.test.", dnsmessage.TypeA, "Success 198.18.0.5"},
		{"db.", dnsmessage.TypeA, "Success 198.18.0.6"},
		{long, dnsmessage.TypeAAAA, "Success fd5b:7d1e:9c04::7"},
		{"a.test.", dnsmessage.Type(65), "Success"},
		{"a.test.", dnsmessage.Type(64), "Success"},
		{"a.test.", dnsmessage.TypeMX, "Success"},
		{"a.test.", dnsmessage.TypeTXT, "Success"},
		{"a.test.", dnsmessage.TypeALL, "Success"},
		{"secret.evil.test.", dnsmessage.TypeTXT, "Success"},
		{".", dnsmessage.TypeNS, "Success"},
		{"localhost.", dnsmessage.TypeA, "Success 127.0.0.1"},
		{"x.localhost.", dnsmessage.TypeAAAA, "Success ::1"},
		{"localhost.", dnsmessage.TypeTXT, "Success"},
		{"control.foldyard.internal.", dnsmessage.TypeA, "Success 198.18.0.1"},
		{"control.foldyard.internal.", dnsmessage.TypeAAAA, "Success fd5b:7d1e:9c04::1"},
		{"2.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, "Success a.test."},
		{"2.0.18.198.in-addr.arpa.", dnsmessage.TypeTXT, "Success"},
		{"2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.4.0.c.9.e.1.d.7.b.5.d.f.IP6.ARPA.", dnsmessage.TypePTR, "Success a.test."},
		{"1.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, "Success control.foldyard.internal."},
		{"1.0.0.127.in-addr.arpa.", dnsmessage.TypePTR, "Success localhost."},
		{"9.9.18.198.in-addr.arpa.", dnsmessage.TypePTR, "NameError"},
		{"1.1.1.1.in-addr.arpa.", dnsmessage.TypePTR, "NameError"},
		{"x.1.1.1.in-addr.arpa.", dnsmessage.TypePTR, "NameError"},
		{"2.0.18.in-addr.arpa.", dnsmessage.TypePTR, "NameError"},
		{"2.0.ip6.arpa.", dnsmessage.TypePTR, "NameError"},
		{"_dns.resolver.arpa.", dnsmessage.Type(64), "NameError"},
		{"ipv4only.arpa.", dnsmessage.TypeAAAA, "NameError"},
		{"use-application-dns.net.", dnsmessage.TypeA, "NameError"},
		{"x.invalid.", dnsmessage.TypeA, "NameError"},
		{"x.onion.", dnsmessage.TypeA, "NameError"},
		{"notarpa.", dnsmessage.TypeA, "Success 198.18.0.8"},
		{"1.2.3.4.", dnsmessage.TypeA, "NameError"},
		{"0x7f.1.", dnsmessage.TypeA, "NameError"},
		{"a b.test.", dnsmessage.TypeA, "NameError"},
		{"a\x00.test.", dnsmessage.TypeA, "NameError"},
		{"a\x1b[31m.test.", dnsmessage.TypeA, "NameError"},
		{"a@b.test.", dnsmessage.TypeA, "NameError"},
		{"a/b.test.", dnsmessage.TypeA, "NameError"},
	} {
		if got := w.ask(t, row.name, row.typ); got != row.want {
			t.Errorf("%q %v: %s, want %s", row.name, row.typ, got, row.want)
		}
	}
	if w.assigned != w.Table.Len() || w.assigned != 7 {
		t.Errorf("OnAssign was called %d times for %d names", w.assigned, w.Table.Len())
	}
}

func TestMalformed(t *testing.T) {
	w := newWorld(0)
	good := query(t, "a.test.", dnsmessage.TypeA)
	change := func(f func(m *dnsmessage.Message)) []byte { return query(t, "a.test.", dnsmessage.TypeA, f) }
	opt := func(version uint32, name string) dnsmessage.Resource {
		return dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeOPT, Class: 4096, TTL: version << 16},
			Body:   &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 10, Data: []byte("cookie01")}}},
		}
	}
	for _, row := range []struct {
		name string
		in   []byte
		want string // "" means no answer
	}{
		{"control", good, "Success 1"},
		{"empty", nil, ""},
		{"short", good[:11], ""},
		{"an answer", change(func(m *dnsmessage.Message) { m.Response = true }), ""},
		{"cut name", good[:15], "FormatError 0"},
		{"no question", change(func(m *dnsmessage.Message) { m.Questions = nil }), "FormatError 0"},
		{"two questions", change(func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), "FormatError 0"},
		{"pointer loop", append(append([]byte(nil), good[:12]...), 0xc0, 12, 0, 1, 0, 1), "FormatError 0"},
		{"update", change(func(m *dnsmessage.Message) { m.OpCode = 5 }), "NotImplemented 0"},
		{"chaos", change(func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), "Refused 0"},
		{"EDNS", change(func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(0, ".")} }), "Success 1 EDNS"},
		{"EDNS version 1", change(func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(1, ".")} }), "BADVERS 0 EDNS"},
		{"two OPT", change(func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(0, "."), opt(0, ".")} }), "FormatError 0"},
		{"OPT with a name", change(func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(0, "x.")} }), "FormatError 0"},
	} {
		b := w.Answer(row.in, false)
		if row.want == "" {
			if b != nil {
				t.Errorf("%s: answered", row.name)
			}
			continue
		}
		m := parse(t, b)
		got := fmt.Sprintf("%s %d", strings.TrimPrefix(m.RCode.String(), "RCode"), len(m.Answers))
		if len(m.Additionals) == 1 && m.Additionals[0].Header.Type == dnsmessage.TypeOPT {
			got += " EDNS"
			if m.Additionals[0].Header.ExtendedRCode(m.RCode) == 16 {
				got = strings.Replace(got, "Success", "BADVERS", 1)
			}
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

func TestRecords(t *testing.T) {
	w := newWorld(2, "granted.test", "late.test")
	for range 2 {
		for _, n := range []string{"a.test.", "granted.test.", "late.test.", "full.test.", "b@d.test."} {
			w.ask(t, n, dnsmessage.TypeA)
			w.ask(t, n, dnsmessage.TypeTXT)
		}
	}
	if got := w.ask(t, "full.test.", dnsmessage.TypeA); got != "ServerFailure" {
		t.Errorf("a name beyond the limit: %s", got)
	}
	if got := w.ask(t, "late.test.", dnsmessage.TypeA); got != "Success 198.18.0.4" {
		t.Errorf("a granted name beyond the limit: %s", got)
	}
	seen := map[string]int{}
	for _, r := range w.records {
		if r.Box != "b1" || r.Via != capture.ViaDNS || r.Proto != capture.ProtoDNS || r.Mode != capture.ModeNone {
			t.Errorf("%+v", r)
		}
		seen[fmt.Sprintf("%s %s %s", r.Host, r.Verdict, r.Reason)]++
	}
	want := map[string]int{"a.test  ": 1, "full.test deny limit": 3, " deny bad_target": 4}
	if d := cmp.Diff(want, seen); d != "" {
		t.Error(d)
	}
}

func TestTable(t *testing.T) {
	tb := NewTable(3)
	for i, n := range []string{"a.test", "b.test", "c.test"} {
		v4, v6, ok := tb.Assign(host(t, n), false)
		if !ok {
			t.Fatal(n)
		}
		for _, a := range []netip.Addr{v4, v6, netip.AddrFrom16(v4.As16())} {
			if h, ok := tb.Lookup(a); !ok || h.Name() != n {
				t.Errorf("%v: %v %v", a, h, ok)
			}
			if c := dest.Classify(a, nil); c != dest.ClassSynthetic {
				t.Errorf("%v is %v", a, c)
			}
		}
		if want := netip.AddrFrom4([4]byte{198, 18, 0, byte(2 + i)}); v4 != want {
			t.Errorf("%v, want %v", v4, want)
		}
	}
	if _, _, ok := tb.Assign(host(t, "d.test"), false); ok {
		t.Error("a fourth name of three")
	}
	if _, _, ok := tb.Assign(host(t, "a.test"), false); !ok {
		t.Error("a known name of a full table")
	}
	if _, _, ok := tb.Assign(host(t, "d.test"), true); !ok {
		t.Error("a granted name of a full table")
	}
	if _, _, ok := tb.Assign(host(t, "192.0.2.1"), true); ok {
		t.Error("an address is no name")
	}
	for _, s := range []string{"198.18.0.0", "198.18.0.6", "198.19.255.255", "198.17.255.255", "192.0.2.1", "fd5b:7d1e:9c04::", "fd5b:7d1e:9c04::6", "fd5b:7d1e:9c04::1:0:0:2", "fd5b:7d1e:9c04:1::2", "::1", "fd5b:7d1e:9c04:0:8000::2", "fd5b:7d1e:9c04:0:ffff:ffff:ffff:ffff"} {
		if h, ok := tb.Lookup(netip.MustParseAddr(s)); ok {
			t.Errorf("%s was never given, but is %v", s, h)
		}
	}
	if _, ok := tb.Lookup(netip.Addr{}); ok {
		t.Error("the zero address has a name")
	}
	for _, a := range []netip.Addr{dest.OwnV4(), dest.OwnV6()} {
		if h, ok := tb.Lookup(a); !ok || h.Name() != dest.ControlName {
			t.Errorf("%v: %v", a, h)
		}
	}
}

func TestRestore(t *testing.T) {
	tb := NewTable(0)
	for i := range 300 {
		tb.Assign(host(t, fmt.Sprintf("n%d.test", i)), false)
	}
	names := tb.Export()
	again := NewTable(0)
	if err := again.Restore(names); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		h := host(t, fmt.Sprintf("n%d.test", i))
		a, _, _ := tb.Assign(h, false)
		b, b6, _ := again.Assign(h, false)
		if a != b {
			t.Errorf("%v moved from %v to %v", h, a, b)
		}
		if got, ok := again.Lookup(b6); !ok || got != h {
			t.Errorf("%v is %v", b6, got)
		}
	}
	for why, bad := range map[string][]string{
		"twice":     {"a.test", "A.test"},
		"address":   {"a.test", "192.0.2.1"},
		"no name":   {"a..test"},
		"control":   {dest.ControlName},
		"too many":  make([]string, 1<<17),
		"empty one": {""},
	} {
		tb := NewTable(0)
		if err := tb.Restore(bad); err == nil || tb.Len() > 0 {
			t.Errorf("%s: %v, %d names", why, err, tb.Len())
		}
	}
	if err := again.Restore([]string{"a.test"}); err == nil {
		t.Error("a table with names was restored over")
	}
}

func TestPoolEnds(t *testing.T) {
	tb := NewTable(0)
	n := 0
	for ; n < 1<<18; n++ {
		if _, _, ok := tb.Assign(host(t, fmt.Sprintf("n%d.test", n)), true); !ok {
			break
		}
	}
	if n != 1<<17-3 {
		t.Errorf("%d names", n)
	}
	v4, _, _ := tb.Assign(host(t, fmt.Sprintf("n%d.test", n-1)), true)
	if v4 != netip.MustParseAddr("198.19.255.254") {
		t.Errorf("the last is %v", v4)
	}
}

func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	return pc, l
}

// The standard library's own resolver, over both transports.
func TestServe(t *testing.T) {
	w := newWorld(0, "a.test")
	w.Record, w.OnAssign = nil, nil
	pc, l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- w.ServeUDP(ctx, pc) }()
	go func() { done <- w.ServeTCP(ctx, l) }()
	for network, addr := range map[string]string{"udp": pc.LocalAddr().String(), "tcp": l.Addr().String()} {
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}}
		got, err := r.LookupNetIP(t.Context(), "ip", "a.test.")
		if err != nil || len(got) != 2 {
			t.Errorf("%s: %v %v", network, got, err)
		}
		if names, err := r.LookupAddr(t.Context(), "198.18.0.2"); err != nil || len(names) != 1 || names[0] != "a.test." {
			t.Errorf("%s: %v %v", network, names, err)
		}
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTCPPipelining(t *testing.T) {
	w := newWorld(0)
	_, l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.ServeTCP(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var out []byte
	for i := range 20 {
		q := query(t, fmt.Sprintf("n%d.test.", i), dnsmessage.TypeA)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(q))), q...)
	}
	for _, part := range [][]byte{out[:1], out[1:33], out[33:]} {
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		var n [2]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(n[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if m := parse(t, b); m.Questions[0].Name.String() != fmt.Sprintf("n%d.test.", i) || len(m.Answers) != 1 {
			t.Errorf("answer %d: %+v", i, m)
		}
	}
	if _, err := c.Write([]byte{0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
		t.Error("an oversized message is waited for")
	}
}

func TestTCPIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(0)
		client, server := net.Pipe()
		defer client.Close()
		go w.serveConn(t.Context(), server)
		start := time.Now()
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("read something")
		}
		if d := time.Since(start); d != idleAfter {
			t.Errorf("closed after %v", d)
		}
	})
}

func TestTCPConnectionsAreBounded(t *testing.T) {
	w := newWorld(0)
	_, l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.ServeTCP(ctx, l) }()
	q := query(t, "a.test.", dnsmessage.TypeA)
	q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	answered := func() bool {
		c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // a test
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Write(q); err != nil {
			return false
		}
		_, err = io.ReadFull(c, make([]byte, 2))
		return err == nil
	}
	for i := range maxConns {
		if !answered() {
			t.Fatalf("control: connection %d is not served", i)
		}
	}
	if answered() {
		t.Error("one connection too many is served")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r := w.records[len(w.records)-1]; r.Reason != "limit" {
		t.Errorf("%+v", r)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(query(f, "a.test.", dnsmessage.TypeA))
	f.Add(query(f, "2.0.18.198.in-addr.arpa.", dnsmessage.TypePTR))
	f.Add(query(f, "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.4.0.c.9.e.1.d.7.b.5.d.f.ip6.arpa.", dnsmessage.TypePTR))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10c2VjcmV0LWRhdGEx\x04evil\x04test\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x01a\x00\x00\x01\x00\x01\x00\x00\x29\x04\xd0\x00\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, q []byte) {
		w := newWorld(1, "a.test")
		w.Table.Assign(host(t, "a.test"), true)
		b := w.Answer(q, false)
		if b == nil {
			if len(q) >= 12 && q[2]&0x80 == 0 {
				t.Fatal("a question without an answer")
			}
			return
		}
		if len(b) > 512 {
			t.Errorf("an answer of %d bytes", len(b))
		}
		m := parse(t, b)
		if !m.Response || b[0] != q[0] || b[1] != q[1] {
			t.Errorf("header %+v", m.Header)
		}
		for _, a := range m.Answers {
			var got netip.Addr
			switch b := a.Body.(type) {
			case *dnsmessage.AResource:
				got = netip.AddrFrom4(b.A)
			case *dnsmessage.AAAAResource:
				got = netip.AddrFrom16(b.AAAA)
			case *dnsmessage.PTRResource:
				continue
			default:
				t.Fatalf("%T", b)
			}
			name := strings.ToLower(strings.TrimSuffix(m.Questions[0].Name.String(), "."))
			h, ok := w.Table.Lookup(got)
			asked, err := dest.ParseHost(name)
			if !got.IsLoopback() && (!ok || err != nil || h != asked) {
				t.Errorf("%q is at %v, which is %v", name, got, h)
			}
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	w := newWorld(0)
	w.Record, w.OnAssign = nil, nil
	q := query(b, "registry.packages.test.", dnsmessage.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		w.Answer(q, false)
	}
}
