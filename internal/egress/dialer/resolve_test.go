package dialer

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

func stubFor(t testing.TB, n *nameserver) *Dialer {
	t.Helper()
	d := New(Config{Own: none})
	d.lookup = (&stub{server: netip.MustParseAddrPort(n.addr), try: 200 * time.Millisecond}).lookup
	return d
}

func TestParseResolver(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:53", "127.0.0.1:5353": "127.0.0.1:5353", "::1": "[::1]:53", "[::1]": "[::1]:53", "[::1]:5353": "[::1]:5353",
		"": "", "a.test": "", "a.test:53": "", "127.0.0.1:0": "", "127.0.0.1:70000": "", "127.0.0.1:": "",
	} {
		got, err := ParseResolver(in)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("ParseResolver(%q) = %v, %v; want %q", in, got, err, want)
		}
	}
	d := New(Config{Resolver: "not an address"})
	_, _, err := d.Dial(t.Context(), target(t, "a.test:443"), false)
	if e := wantKind(t, err, KindNoName); !strings.Contains(e.Error(), "not an address") {
		t.Error(e)
	}
}

// chain leads from a.test by n aliases to an address.
func chain(n int) []string {
	var out []string
	from := "a.test"
	for i := range n {
		to := fmt.Sprintf("a%d.test", i)
		out = append(out, from+" CNAME "+to)
		from = to
	}
	return append(out, from+" A 192.0.2.1")
}

func TestResolve(t *testing.T) {
	for name, tt := range map[string]struct {
		records []string
		want    []string
	}{
		"both families":      {[]string{"a.test A 192.0.2.1", "a.test AAAA 2001:db8::1", "a.test A 192.0.2.2"}, []string{"2001:db8::1", "192.0.2.1", "192.0.2.2"}},
		"IPv4 only":          {[]string{"a.test A 192.0.2.1"}, []string{"192.0.2.1"}},
		"IPv6 only":          {[]string{"a.test AAAA 2001:db8::1"}, []string{"2001:db8::1"}},
		"letter case":        {[]string{"A.Test A 192.0.2.1"}, []string{"192.0.2.1"}},
		"chain":              {[]string{"a.test CNAME b.test", "b.test CNAME c.test", "c.test A 192.0.2.1"}, []string{"192.0.2.1"}},
		"chain out of turn":  {[]string{"c.test A 192.0.2.1", "b.test CNAME c.test", "a.test CNAME b.test"}, []string{"192.0.2.1"}},
		"other types":        {[]string{"a.test TXT x", "a.test A 192.0.2.1"}, []string{"192.0.2.1"}},
		"nothing":            {nil, nil},
		"another's address":  {[]string{"evil.test A 192.0.2.1"}, nil},
		"loop":               {[]string{"a.test CNAME b.test", "b.test CNAME a.test"}, nil},
		"chain to nowhere":   {[]string{"a.test CNAME b.test"}, nil},
		"chain, the longest": {chain(maxChain - 1), []string{"192.0.2.1"}},
		"chain without end":  {chain(maxChain), nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := serveDNS(t, func(_ string, q dnsmessage.Message) []byte {
				return packed(q, dnsmessage.RCodeSuccess, false, ofType(q, tt.records...)...)
			})
			got, err := stubFor(t, n).resolve(t.Context(), target(t, "a.test:443"))
			if (err == nil) != (tt.want != nil) {
				t.Fatalf("%v, %v", got, err)
			}
			if err != nil {
				wantKind(t, err, KindNoName)
			}
			var texts []string
			for _, a := range got {
				texts = append(texts, a.String())
			}
			if diff := cmp.Diff(tt.want, texts); diff != "" {
				t.Error(diff)
			}
			seen := n.log()
			slices.Sort(seen)
			if diff := cmp.Diff([]string{"udp A a.test", "udp AAAA a.test"}, seen); diff != "" {
				t.Errorf("asked: %s", diff)
			}
		})
	}
}

// A19: a chain of names that ends on loopback.
func TestChainToLoopbackIsRefused(t *testing.T) {
	n := serveDNS(t, func(_ string, q dnsmessage.Message) []byte {
		end := "127.0.0.1"
		if strings.HasPrefix(q.Questions[0].Name.String(), "good") {
			end = "192.0.2.1"
		}
		name := canonical(q.Questions[0].Name)
		return packed(q, dnsmessage.RCodeSuccess, false, ofType(q, name+" CNAME b.test", "b.test CNAME c.test", "c.test A "+end)...)
	})
	d := stubFor(t, n)
	i := &internet{to: listen(t, func(net.Conn) {})}
	d.connect = i.connect
	c, _, err := d.Dial(t.Context(), target(t, "good.test:80"), false)
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	c.Close()
	_, _, err = d.Dial(t.Context(), target(t, "evil.test:80"), false)
	wantKind(t, err, KindClass)
	if len(i.dialed) != 1 {
		t.Errorf("dialled %v", i.dialed)
	}
}

func TestTruncatedAnswerIsAskedAgainOverTCP(t *testing.T) {
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("a.test A 192.0.2.%d", i+1))
	}
	n := serveDNS(t, func(network string, q dnsmessage.Message) []byte {
		if network == "udp" && q.Questions[0].Type == dnsmessage.TypeA {
			return packed(q, dnsmessage.RCodeSuccess, true, many[:2]...)
		}
		return packed(q, dnsmessage.RCodeSuccess, false, ofType(q, many...)...)
	})
	got, err := stubFor(t, n).resolve(t.Context(), target(t, "a.test:443"))
	if err != nil || len(got) != 200 {
		t.Errorf("%d addresses, %v", len(got), err)
	}
	if !slices.Contains(n.log(), "tcp A a.test") || slices.Contains(n.log(), "tcp AAAA a.test") {
		t.Errorf("asked %v", n.log())
	}
}

// Somebody else's datagrams do not become the answer.
func TestForgedAnswersAreIgnored(t *testing.T) {
	for name, forge := range map[string]func(dnsmessage.Message) []byte{
		"another id": func(q dnsmessage.Message) []byte {
			q.ID++
			return packed(q, dnsmessage.RCodeSuccess, false, "a.test A 192.0.2.66")
		},
		"another name": func(q dnsmessage.Message) []byte {
			q.Questions[0].Name = dnsmessage.MustNewName("evil.test.")
			return packed(q, dnsmessage.RCodeSuccess, false, "a.test A 192.0.2.66")
		},
		"another type": func(q dnsmessage.Message) []byte {
			q.Questions[0].Type = dnsmessage.TypeTXT
			return packed(q, dnsmessage.RCodeSuccess, false, "a.test A 192.0.2.66")
		},
		"no question": func(q dnsmessage.Message) []byte {
			q.Questions = nil
			return packed(q, dnsmessage.RCodeSuccess, false, "a.test A 192.0.2.66")
		},
		"a question": func(q dnsmessage.Message) []byte {
			b := packed(q, dnsmessage.RCodeSuccess, false, "a.test A 192.0.2.66")
			b[2] &^= 0x80
			return b
		},
		"rubbish": func(dnsmessage.Message) []byte { return []byte("hello") },
		"nothing": func(dnsmessage.Message) []byte { return []byte{} },
	} {
		t.Run(name, func(t *testing.T) {
			tries := map[dnsmessage.Type]int{}
			n := serveDNS(t, func(_ string, q dnsmessage.Message) []byte {
				tries[q.Questions[0].Type]++
				if q.Questions[0].Type == dnsmessage.TypeA && tries[dnsmessage.TypeA] == 1 {
					return forge(q) // and the true one only to the next try
				}
				return packed(q, dnsmessage.RCodeSuccess, false, ofType(q, "a.test A 192.0.2.1")...)
			})
			got, err := stubFor(t, n).resolve(t.Context(), target(t, "a.test:443"))
			if err != nil || len(got) != 1 || got[0] != netip.MustParseAddr("192.0.2.1") {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestOneFamilyMayFail(t *testing.T) {
	for name, fail := range map[string]func(dnsmessage.Message) []byte{
		"SERVFAIL": func(q dnsmessage.Message) []byte { return packed(q, dnsmessage.RCodeServerFailure, false) },
		"NXDOMAIN": func(q dnsmessage.Message) []byte { return packed(q, dnsmessage.RCodeNameError, false) },
		"silence":  func(dnsmessage.Message) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := serveDNS(t, func(_ string, q dnsmessage.Message) []byte {
				if q.Questions[0].Type == dnsmessage.TypeAAAA {
					return fail(q)
				}
				return packed(q, dnsmessage.RCodeSuccess, false, "a.test A 192.0.2.1")
			})
			start := time.Now()
			got, err := stubFor(t, n).resolve(t.Context(), target(t, "a.test:443"))
			if err != nil || len(got) != 1 {
				t.Errorf("%v, %v", got, err)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	n := serveDNS(t, func(_ string, q dnsmessage.Message) []byte { return packed(q, dnsmessage.RCodeServerFailure, false) })
	_, err := stubFor(t, n).resolve(t.Context(), target(t, "a.test:443"))
	if e := wantKind(t, err, KindNoName); !strings.Contains(e.Error(), "ServerFailure") {
		t.Error(e)
	}
}

func TestConfiguredResolver(t *testing.T) {
	n := serveDNS(t, func(_ string, q dnsmessage.Message) []byte {
		return packed(q, dnsmessage.RCodeSuccess, false, ofType(q, "a.test A 127.0.0.1")...)
	})
	_, _, err := New(Config{Own: none, Resolver: n.addr}).Dial(t.Context(), target(t, "a.test:443"), false)
	if wantKind(t, err, KindClass); len(n.log()) != 2 {
		t.Errorf("asked %v", n.log())
	}
}

func TestResolverThatIsNotThere(t *testing.T) {
	d := New(Config{Own: none, Resolver: closedPort(t)})
	_, _, err := d.Dial(t.Context(), target(t, "a.test:443"), false)
	wantKind(t, err, KindNoName)
}

// FuzzAnswer: no answer panics, and every address was in it as a record of the
// type that was asked for.
func FuzzAnswer(f *testing.F) {
	q := func(t dnsmessage.Type) dnsmessage.Message {
		return dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.test."), Type: t, Class: dnsmessage.ClassINET}}}
	}
	f.Add(packed(q(dnsmessage.TypeA), 0, false, "a.test A 192.0.2.1"))
	f.Add(packed(q(dnsmessage.TypeAAAA), 0, false, "a.test CNAME b.test", "b.test AAAA 2001:db8::1"))
	f.Add(packed(q(dnsmessage.TypeA), 0, false, "a.test CNAME a.test"))
	f.Add(packed(q(dnsmessage.TypeA), 3, true))
	f.Add(binary.BigEndian.AppendUint16(nil, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			got, err := addresses(b, 7, "a.test", typ)
			if err != nil {
				if got != nil {
					t.Fatal("addresses beside an error")
				}
				continue
			}
			if len(got) == 0 {
				t.Fatal("neither addresses nor an error")
			}
			for _, a := range got {
				if a.Is4() != (typ == dnsmessage.TypeA) || !strings.Contains(string(b), string(a.AsSlice())) {
					t.Fatalf("%v comes from nowhere", a)
				}
			}
		}
	})
}
