package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

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
	mu       sync.Mutex // guards what follows
	records  []capture.Record
	assigned int
}

func newWorld(limit int, granted ...string) *world {
	w := &world{}
	w.Server = &Server{
		Table:   NewTable(limit),
		Granted: func(h dest.Host) bool { return strings.Contains(" "+strings.Join(granted, " ")+" ", " "+h.Name()+" ") },
		Record: func(r *capture.Record) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.records = append(w.records, *r)
		},
		Box: "b1",
		OnAssign: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.assigned++
		},
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
