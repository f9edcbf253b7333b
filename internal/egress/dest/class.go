package dest

import "net/netip"

// Class is the kind of network an address belongs to. The zero Class is
// unknown and refused like every other class that is not public.
type Class uint8

// The classes. Only ClassPublic may be dialled without an internal grant, and
// ClassSynthetic never.
const (
	ClassUnknown     Class = iota // invalid address
	ClassPublic                   // global unicast, documentation ranges included
	ClassLoopback                 // 127.0.0.0/8, ::1
	ClassPrivate                  // RFC 1918, site-local
	ClassLinkLocal                // 169.254.0.0/16, fe80::/10
	ClassCGNAT                    // 100.64.0.0/10, RFC 6598
	ClassULA                      // fc00::/7, RFC 4193
	ClassMulticast                // 224.0.0.0/4, ff00::/8
	ClassBroadcast                // 255.255.255.255
	ClassUnspecified              // 0.0.0.0/8, ::
	ClassReserved                 // 240.0.0.0/4 and all that IANA gave no public use
	ClassMetadata                 // cloud metadata services
	ClassSynthetic                // the addresses that our DNS hands out
	ClassOwn                      // an address of this host
)

// Public reports whether an address of this class may be dialled for any grant.
func (c Class) Public() bool { return c == ClassPublic }

func (c Class) String() string {
	switch c {
	case ClassUnknown:
		return "unknown"
	case ClassPublic:
		return "public"
	case ClassLoopback:
		return "loopback"
	case ClassPrivate:
		return "private"
	case ClassLinkLocal:
		return "link-local"
	case ClassCGNAT:
		return "carrier-grade NAT"
	case ClassULA:
		return "unique local"
	case ClassMulticast:
		return "multicast"
	case ClassBroadcast:
		return "broadcast"
	case ClassUnspecified:
		return "unspecified"
	case ClassReserved:
		return "reserved"
	case ClassMetadata:
		return "cloud metadata"
	case ClassSynthetic:
		return "synthetic"
	case ClassOwn:
		return "this host"
	}
	return "unknown"
}

// SyntheticV4 is the pool our DNS hands out inside a box: RFC 2544's
// benchmarking range, which no real host has.
func SyntheticV4() netip.Prefix { return netip.PrefixFrom(v4(198, 18, 0, 0), 15) }

// SyntheticV6 is the IPv6 pool, a unique local prefix of our own.
func SyntheticV6() netip.Prefix { return netip.PrefixFrom(synthetic6(0), 64) }

// OwnV4 is the synthetic address that foldyard keeps for itself.
func OwnV4() netip.Addr { return v4(198, 18, 0, 1) }

// OwnV6 is its IPv6 twin.
func OwnV6() netip.Addr { return synthetic6(1) }

func synthetic6(last byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0x5b, 0x7d, 0x1e, 0x9c, 0x04, 15: last})
}

func v4(a, b, c, d byte) netip.Addr { return netip.AddrFrom4([4]byte{a, b, c, d}) }

// Classify places an address in the closed table. own tells this host's
// addresses and may be nil. Mapped, NAT64, 6to4, IPv4-compatible,
// IPv4-translated and ISATAP addresses take the class of the IPv4 address that
// they embed; Teredo is reserved as a whole.
func Classify(a netip.Addr, own func(netip.Addr) bool) Class {
	if !a.IsValid() {
		return ClassUnknown
	}
	a = a.WithZone("").Unmap()
	c := table(a)
	if c == ClassPublic || c == ClassPrivate || c == ClassLinkLocal || c == ClassCGNAT || c == ClassULA {
		if own != nil && own(a) {
			return ClassOwn
		}
	}
	if e, ok := embedded(a); ok {
		return Classify(e, own)
	}
	if e, ok := isatap(a); ok && c == ClassPublic {
		return Classify(e, own)
	}
	return c
}

// table is the class by prefix alone; a is unmapped and without a zone.
func table(a netip.Addr) Class {
	if a.Is4() {
		return table4(a.As4())
	}
	return table6(a.As16())
}

func table4(b [4]byte) Class {
	switch b {
	case [4]byte{169, 254, 169, 254}, // AWS, GCP, Azure, OpenStack, …
		[4]byte{169, 254, 170, 2},   // AWS container credentials
		[4]byte{169, 254, 170, 23},  // AWS EKS pod identity
		[4]byte{168, 63, 129, 16},   // Azure wire server
		[4]byte{100, 100, 100, 200}, // Alibaba Cloud
		[4]byte{192, 0, 0, 192}:     // Oracle Cloud, classic
		return ClassMetadata
	case [4]byte{255, 255, 255, 255}:
		return ClassBroadcast
	}
	switch {
	case b[0] == 0:
		return ClassUnspecified
	case b[0] == 10, b[0] == 172 && b[1]&0xf0 == 16, b[0] == 192 && b[1] == 168:
		return ClassPrivate
	case b[0] == 100 && b[1]&0xc0 == 64:
		return ClassCGNAT
	case b[0] == 127:
		return ClassLoopback
	case b[0] == 169 && b[1] == 254:
		return ClassLinkLocal
	case b[0] == 192 && b[1] == 0 && b[2] == 0, // IETF protocol assignments
		b[0] == 192 && b[1] == 88 && b[2] == 99: // 6to4 relay anycast, withdrawn
		return ClassReserved
	case b[0] == 198 && b[1]&0xfe == 18:
		return ClassSynthetic
	case b[0]&0xf0 == 224:
		return ClassMulticast
	case b[0]&0xf0 == 240:
		return ClassReserved
	}
	return ClassPublic
}

func table6(b [16]byte) Class {
	a := netip.AddrFrom16(b)
	switch {
	case a == metadataAWS6(), a == metadataAWSPod6(), a == metadataGCP6():
		return ClassMetadata
	case SyntheticV6().Contains(a):
		return ClassSynthetic
	case a.IsUnspecified():
		return ClassUnspecified
	case a.IsLoopback():
		return ClassLoopback
	case b[0]&0xfe == 0xfc:
		return ClassULA
	case b[0] == 0xfe && b[1]&0xc0 == 0x80:
		return ClassLinkLocal
	case b[0] == 0xfe && b[1]&0xc0 == 0xc0: // site-local, RFC 3879
		return ClassPrivate
	case b[0] == 0xff:
		return ClassMulticast
	case b[0]&0xe0 != 0x20: // outside 2000::/3 nothing is global unicast
		return ClassReserved
	case b[0] == 0x20 && b[1] == 0x01 && b[2]&0xfe == 0: // 2001::/23: Teredo, ORCHID, AMT …
		return ClassReserved
	}
	return ClassPublic
}

// fd00:ec2::254
func metadataAWS6() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x0e, 3: 0xc2, 14: 0x02, 15: 0x54})
}

// fd00:ec2::23, EKS pod identity
func metadataAWSPod6() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x0e, 3: 0xc2, 15: 0x23})
}

// fd20:ce::254
func metadataGCP6() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x20, 3: 0xce, 14: 0x02, 15: 0x54})
}

// embedded returns the IPv4 address inside an IPv6 address of a format whose
// packets end at that IPv4 address: IPv4-compatible ::/96 (but :: and ::1),
// IPv4-translated ::ffff:0:0/96 of RFC 2765, NAT64's 64:ff9b::/96 and 6to4.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	tail := v4(b[12], b[13], b[14], b[15])
	switch [12]byte(b[:12]) {
	case [12]byte{}:
		return tail, !a.IsUnspecified() && !a.IsLoopback()
	case [12]byte{8: 0xff, 9: 0xff}, // ::ffff:0:a.b.c.d
		[12]byte{10: 0xff, 11: 0xff}, // ::ffff:a.b.c.d
		[12]byte{1: 0x64, 2: 0xff, 3: 0x9b}:
		return tail, true
	}
	if b[0] == 0x20 && b[1] == 0x02 {
		return v4(b[2], b[3], b[4], b[5]), true
	}
	return netip.Addr{}, false
}

// isatap returns the IPv4 address in an interface identifier of RFC 5214.
func isatap(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	if b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		return v4(b[12], b[13], b[14], b[15]), true
	}
	return netip.Addr{}, false
}
