package dest

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// Every prefix of the table with its first and last address and the neighbours
// outside.
func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		addr string
		want Class
	}{
		{"8.8.8.8", ClassPublic},
		{"93.184.216.34", ClassPublic},
		{"2606:4700::1111", ClassPublic},

		{"0.0.0.0", ClassUnspecified}, {"0.255.255.255", ClassUnspecified}, {"1.0.0.0", ClassPublic},
		{"9.255.255.255", ClassPublic}, {"10.0.0.0", ClassPrivate}, {"10.255.255.255", ClassPrivate}, {"11.0.0.0", ClassPublic},
		{"100.63.255.255", ClassPublic}, {"100.64.0.0", ClassCGNAT}, {"100.127.255.255", ClassCGNAT}, {"100.128.0.0", ClassPublic},
		{"126.255.255.255", ClassPublic}, {"127.0.0.0", ClassLoopback}, {"127.255.255.255", ClassLoopback}, {"128.0.0.0", ClassPublic},
		{"169.253.255.255", ClassPublic}, {"169.254.0.0", ClassLinkLocal}, {"169.254.255.255", ClassLinkLocal}, {"169.255.0.0", ClassPublic},
		{"172.15.255.255", ClassPublic}, {"172.16.0.0", ClassPrivate}, {"172.31.255.255", ClassPrivate}, {"172.32.0.0", ClassPublic},
		{"191.255.255.255", ClassPublic}, {"192.0.0.0", ClassReserved}, {"192.0.0.255", ClassReserved}, {"192.0.1.0", ClassPublic},
		{"192.88.98.255", ClassPublic}, {"192.88.99.0", ClassReserved}, {"192.88.99.255", ClassReserved}, {"192.88.100.0", ClassPublic},
		{"192.167.255.255", ClassPublic}, {"192.168.0.0", ClassPrivate}, {"192.168.255.255", ClassPrivate}, {"192.169.0.0", ClassPublic},
		{"198.17.255.255", ClassPublic}, {"198.18.0.0", ClassSynthetic}, {"198.19.255.255", ClassSynthetic}, {"198.20.0.0", ClassPublic},
		{"223.255.255.255", ClassPublic}, {"224.0.0.0", ClassMulticast}, {"239.255.255.255", ClassMulticast},
		{"240.0.0.0", ClassReserved}, {"255.255.255.254", ClassReserved}, {"255.255.255.255", ClassBroadcast},

		// Documentation ranges are ordinary addresses.
		{"192.0.2.1", ClassPublic}, {"198.51.100.1", ClassPublic}, {"203.0.113.1", ClassPublic}, {"2001:db8::1", ClassPublic},

		// A18: metadata services, also outside link-local.
		{"169.254.169.254", ClassMetadata}, {"169.254.170.2", ClassMetadata}, {"168.63.129.16", ClassMetadata},
		{"100.100.100.200", ClassMetadata}, {"192.0.0.192", ClassMetadata}, {"fd00:ec2::254", ClassMetadata}, {"fd20:ce::254", ClassMetadata},
		{"168.63.129.17", ClassPublic}, {"100.100.100.201", ClassCGNAT}, {"fd00:ec2::255", ClassULA}, {"fd20:ce::253", ClassULA},

		{"::", ClassUnspecified}, {"::1", ClassLoopback}, {"::2", ClassUnspecified}, // ::0.0.0.2
		{"100::1", ClassReserved}, {"1fff::", ClassReserved}, {"2000::", ClassPublic}, {"3fff:ffff::", ClassPublic}, {"4000::", ClassReserved},
		{"5f00::1", ClassReserved}, {"64:ff9b:1::1", ClassReserved}, {"64:ff9a::1", ClassReserved},
		{"2001::1", ClassReserved}, {"2001:1ff:ffff::", ClassReserved}, {"2001:200::", ClassPublic}, // Teredo and 2001::/23
		{"fbff::", ClassReserved}, {"fc00::", ClassULA}, {"fdff:ffff::", ClassULA}, {"fe00::", ClassReserved},
		{"fe80::1", ClassLinkLocal}, {"febf::1", ClassLinkLocal}, {"fec0::1", ClassPrivate}, {"feff::1", ClassPrivate}, {"ff02::1", ClassMulticast},
		{"fd5b:7d1e:9c04::", ClassSynthetic}, {"fd5b:7d1e:9c04:0:ffff::", ClassSynthetic}, {"fd5b:7d1e:9c04:1::", ClassULA},

		// A15: zones hide nothing.
		{"fe80::1%eth0", ClassLinkLocal}, {"::1%lo", ClassLoopback}, {"2606:4700::1111%1", ClassPublic},

		// A16: decoded, then classified.
		{"::ffff:8.8.8.8", ClassPublic}, {"::ffff:169.254.169.254", ClassMetadata}, {"::ffff:127.0.0.1", ClassLoopback},
		{"::ffff:0:8.8.8.8", ClassPublic}, {"::ffff:0:10.0.0.1", ClassPrivate},
		{"64:ff9b::8.8.8.8", ClassPublic}, {"64:ff9b::127.0.0.1", ClassLoopback}, {"64:ff9b::198.18.0.5", ClassSynthetic},
		{"2002:808:808::1", ClassPublic}, {"2002:7f00:1::", ClassLoopback}, {"2002:c0a8:101::1", ClassPrivate},
		{"::8.8.8.8", ClassPublic}, {"::127.0.0.1", ClassLoopback}, {"::a9fe:a9fe", ClassMetadata},
		{"2001:db8::5efe:8.8.8.8", ClassPublic}, {"2001:db8::5efe:127.0.0.1", ClassLoopback}, {"2001:db8::200:5efe:10.0.0.1", ClassPrivate},
		{"fe80::5efe:8.8.8.8", ClassLinkLocal},
	} {
		if got := Classify(netip.MustParseAddr(tt.addr), nil); got != tt.want {
			t.Errorf("Classify(%s) = %v, want %v", tt.addr, got, tt.want)
		}
	}
	if got := Classify(netip.Addr{}, nil); got != ClassUnknown || got.Public() {
		t.Errorf("no address is %v", got)
	}
}

// A20: the host's own addresses, in whatever spelling.
func TestClassifyOwn(t *testing.T) {
	own := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("198.51.100.7") || a == netip.MustParseAddr("192.168.1.5") || a == netip.MustParseAddr("2001:db8::7")
	}
	for _, tt := range []struct {
		addr string
		want Class
	}{
		{"198.51.100.8", ClassPublic},
		{"198.51.100.7", ClassOwn},
		{"192.168.1.5", ClassOwn},
		{"192.168.1.6", ClassPrivate},
		{"2001:db8::7", ClassOwn},
		{"2001:db8::8", ClassPublic},
		{"::ffff:198.51.100.7", ClassOwn},
		{"64:ff9b::198.51.100.7", ClassOwn},
		{"2002:c633:6407::1", ClassOwn},
		{"2001:db8::7%eth0", ClassOwn},
	} {
		if got := Classify(netip.MustParseAddr(tt.addr), own); got != tt.want {
			t.Errorf("Classify(%s) = %v, want %v", tt.addr, got, tt.want)
		}
	}
}

// Only one class is public, and the zero class is not.
func TestOnlyPublicIsPublic(t *testing.T) {
	for c := ClassUnknown; c <= ClassOwn+1; c++ {
		if c.Public() != (c == ClassPublic) {
			t.Errorf("%v is public", c)
		}
		if c != ClassUnknown && c <= ClassOwn && c.String() == "unknown" {
			t.Errorf("class %d has no name", c)
		}
	}
}

// Putting an IPv4 address into any IPv6 form never makes it public.
func TestEmbeddingNeverLaunders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint32().Draw(t, "v4")
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], n)
		in := netip.AddrFrom4(b)
		want := Classify(in, nil)
		for _, form := range [][]byte{
			{10: 0xff, 11: 0xff, 15: 0}, {8: 0xff, 9: 0xff, 15: 0}, {1: 0x64, 2: 0xff, 3: 0x9b, 15: 0}, {15: 0},
		} {
			copy(form[12:], b[:])
			a := netip.AddrFrom16([16]byte(form))
			if n <= 1 && form[1] == 0 && form[8] == 0 && form[10] == 0 {
				continue // :: and ::1
			}
			if got := Classify(a, nil); got != want {
				t.Fatalf("%v is %v, %v is %v", in, want, a, got)
			}
			if h := HostFromAddr(a); h.Addr() != in {
				t.Fatalf("%v is dialled as %v, not as %v", a, h, in)
			}
		}
	})
}

func TestSyntheticPools(t *testing.T) {
	for _, a := range []netip.Addr{OwnV4(), OwnV6()} {
		if Classify(a, nil) != ClassSynthetic {
			t.Errorf("%v is %v", a, Classify(a, nil))
		}
	}
	if OwnV4().String() != "198.18.0.1" || OwnV6().String() != "fd5b:7d1e:9c04::1" || SyntheticV4().String() != "198.18.0.0/15" || SyntheticV6().String() != "fd5b:7d1e:9c04::/64" {
		t.Errorf("pools %v %v %v %v", OwnV4(), OwnV6(), SyntheticV4(), SyntheticV6())
	}
}

func BenchmarkClassify(b *testing.B) {
	a := netip.MustParseAddr("2606:4700::1111")
	own := func(netip.Addr) bool { return false }
	b.ReportAllocs()
	for b.Loop() {
		Classify(a, own)
	}
}
