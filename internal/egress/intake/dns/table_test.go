package dns

import (
	"fmt"
	"net/netip"
	"testing"

	"foldyard/internal/egress/dest"
)

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
		"twice":    {"a.test", "A.test"},
		"address":  {"a.test", "192.0.2.1"},
		"no name":  {"a..test"},
		"control":  {dest.ControlName},
		"too many": make([]string, 1<<17),
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

func TestAddressOfALostNameIsNeverAnothers(t *testing.T) {
	tb := NewTable(0)
	kept, _, _ := tb.Assign(host(t, "kept.test"), false)
	saved := tb.Export()
	lost, _, _ := tb.Assign(host(t, "lost.test"), false) // handed out, and the supervisor died before it was saved
	for range 2 {
		again := NewTable(0)
		if err := again.Restore(saved); err != nil {
			t.Fatal(err)
		}
		if h, ok := again.Lookup(lost); ok {
			t.Fatalf("the address of a lost name is %v", h)
		}
		if fresh, _, ok := again.Assign(host(t, "next.test"), false); !ok || fresh == lost || fresh == kept {
			t.Fatalf("the next name has %v, want an address that nobody had", fresh)
		}
		if h, ok := again.Lookup(lost); ok {
			t.Fatalf("the address of a lost name is %v", h)
		}
		if h, ok := again.Lookup(kept); !ok || h.Name() != "kept.test" {
			t.Fatalf("control: the kept name is %v %v", h, ok)
		}
		saved = again.Export()
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
