package probe

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// loopback is the index of a namespace's loopback device.
const loopback = 1

// netAdmin tries to change the box's network by rtnetlink.
func (p *prober) netAdmin(context.Context, string) Finding {
	var t tally
	addr := [4]byte{203, 0, 113, 77}
	t.add(netlinkMet("add an address", unix.RTM_NEWADDR, unix.NLM_F_CREATE, addAddress(addr)))
	t.add(netlinkMet("add a device", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, addDummy()))
	t.add(netlinkMet("add a route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE, route(addr, 32, unix.RT_TABLE_MAIN, unix.RTN_UNICAST)))
	f := t.finding("")
	if o, what, how := netlinkMet("ask for loopback", unix.RTM_GETLINK, 0, linkMessage(loopback)); o != Reached {
		f.Uncontrolled = what + ": " + how
	}
	return f
}

// flush tries to take the wall down, as root of the box would: routes, rules,
// addresses. All of it ought to fail; the controls and rows that follow tell.
func (p *prober) flush() {
	everything := route([4]byte{}, 0, unix.RT_TABLE_LOCAL, unix.RTN_LOCAL) // what sends all to loopback
	for _, m := range []struct {
		kind uint16
		body []byte
	}{
		{unix.RTM_DELROUTE, everything},
		{unix.RTM_DELRULE, make([]byte, 12)},
		{unix.RTM_DELADDR, addAddress([4]byte{198, 18, 0, 1})},
	} {
		_, _, _ = netlinkMet("flush", m.kind, 0, m.body)
	}
	// The packet rules go by another protocol, whose socket ought not to open;
	// socket-families tells when it does.
}

func linkMessage(index int32) []byte {
	m := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	return m
}

func addAddress(a [4]byte) []byte {
	m := []byte{unix.AF_INET, 32, 0, unix.RT_SCOPE_UNIVERSE, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(m[4:], loopback)
	m = append(m, attribute(unix.IFA_LOCAL, a[:])...)
	return append(m, attribute(unix.IFA_ADDRESS, a[:])...)
}

func addDummy() []byte {
	kind := attribute(unix.IFLA_INFO_KIND, []byte("dummy\x00"))
	return append(linkMessage(0), attribute(unix.IFLA_LINKINFO, kind)...)
}

func route(a [4]byte, bits, table, kind byte) []byte {
	m := []byte{unix.AF_INET, bits, 0, 0, table, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, kind, 0, 0, 0, 0}
	if bits > 0 {
		m = append(m, attribute(unix.RTA_DST, a[:])...)
	}
	return append(m, attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loopback))...)
}
func attribute(kind uint16, value []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	a = binary.NativeEndian.AppendUint16(a, kind)
	a = append(a, value...)
	for len(a)%4 != 0 {
		a = append(a, 0)
	}
	return a
}

// netlinkMet sends one rtnetlink message and returns what the kernel said.
func netlinkMet(what string, kind, flags uint16, body []byte) (o Outcome, w, how string) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return Errored, what, err.Error()
	}
	defer closeFD(fd)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	m = append(m, make([]byte, 8)...)
	if err := unix.Sendto(fd, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		o, how := fromError(err)
		return o, what, how
	}
	if err := await(fd, unix.POLLIN, patience); err != nil {
		return Errored, what, "no answer"
	}
	buf := make([]byte, 8192)
	n, err := unix.Read(fd, buf)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return Errored, what, "no answer"
	}
	if binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return Reached, what, "answered"
	}
	if code := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); code != 0 {
		o, how := fromError(unix.Errno(-code))
		return o, what, how
	}
	return Reached, what, "done"
}
