package probe

import "foldyard/internal/proof"

// Ids of the controls.
const (
	ControlHTTP4 = "control-http4"
	ControlHTTP6 = "control-http6"
	ControlTLS4  = "control-tls4"
	ControlTLS6  = "control-tls6"
	ControlProxy = "control-proxy"
	ControlUDP   = "control-dns-udp"
	ControlTCP   = "control-dns-tcp"
)

// group is rows that are of one ring and expect the same.
type group struct {
	ring   proof.Ring
	expect proof.Expect
	host   bool // the host fills them in, from what it sees itself
	rows   []row
}

type row struct {
	id, title string
	by        control
}

// control is what shows that a row could have failed: rows that must pass, and
// the same in words.
type control struct {
	words string
	needs []string
}

func by(words string, needs ...string) control { return control{words, needs} }

// Specs returns every row of the namespace wall's battery, in the order in
// which they are shown.
func Specs() []Spec {
	var out []Spec
	for _, g := range groups() {
		for _, r := range g.rows {
			out = append(out, Spec{
				ID: r.id, Title: r.title, Ring: g.ring, Expect: g.expect, Control: r.by.words, Needs: r.by.needs, Host: g.host,
			})
		}
	}
	return out
}

func groups() []group {
	var (
		itself   = by("itself")
		tcp4     = by("over the same IPv4 sockets the supervisor answers http://control.foldyard.internal/ before and after", ControlHTTP4)
		tcp6     = by("over the same IPv6 sockets the supervisor answers http://control.foldyard.internal/ before and after", ControlHTTP6)
		udp      = by("a DNS question over UDP is answered before and after", ControlUDP)
		viaProxy = by("the proxy port fetches http://control.foldyard.internal/ before and after", ControlProxy)
		viaTLS   = by("the supervisor answers https://control.foldyard.internal/ before and after", ControlTLS4)

		socket    = by("a TCP socket opens")
		ownSocket = by("a unix socket of the box's own answers")
		readable  = by("the box's own /etc/foldyard/ca.pem can be read")
		proc      = by("the box's /proc can be read")
		writable  = by("the box's own /tmp can be written")
		fork      = by("the same helper's harmless call returns")
	)
	return []group{
		{ring: proof.Capture, expect: proof.ExpectReached, rows: []row{
			{ControlHTTP4, "the supervisor answers HTTP over IPv4", itself},
			{ControlHTTP6, "the supervisor answers HTTP over IPv6", itself},
			{ControlTLS4, "the supervisor answers TLS over IPv4 with our certificate", itself},
			{ControlTLS6, "the supervisor answers TLS over IPv6 with our certificate", itself},
			{ControlProxy, "the supervisor answers through the proxy port", itself},
			{ControlUDP, "our DNS answers over UDP", itself},
			{ControlTCP, "our DNS answers over TCP", itself},
		}},
		{ring: proof.Namespace, expect: proof.ExpectRefused, rows: []row{
			{"tcp4-direct", "TCP to a public IPv4 address", tcp4},
			{"tcp6-direct", "TCP to a public IPv6 address", tcp6},
			{"tcp6-embedded", "TCP to a public IPv4 address in IPv6 clothes (mapped, NAT64, 6to4)", tcp6},
			{"tcp4-fastopen", "data in the SYN (TCP Fast Open)", tcp4},
			{"tcp4-other-transports", "MPTCP, SCTP, DCCP and UDP-Lite to a public address", tcp4},
			{"tcp4-dns", "DNS over TCP by a public or private resolver, IPv4", tcp4},
			{"tcp6-dns", "DNS over TCP by a public or private resolver, IPv6", tcp6},
			{"tcp4-dot", "DNS over TLS (port 853)", tcp4},
			{"udp4-dns", "DNS over UDP by a public or private resolver, IPv4", udp},
			{"udp6-dns", "DNS over UDP by a public or private resolver, IPv6", udp},
			{"udp-multicast", "mDNS, LLMNR and broadcast", udp},
			{"udp443", "QUIC (UDP 443)", udp},
			{"udp-other", "UDP to other ports, DNS over QUIC among them", udp},
			{"dns-data", "data in DNS names", udp},
		}},
		{ring: proof.Namespace, expect: proof.ExpectAbsent, rows: []row{
			{"icmp4", "ICMP echo", socket},
			{"icmp6", "ICMPv6 echo", socket},
			{"raw-socket", "raw IP sockets", socket},
			{"packet-socket", "packet sockets", socket},
			{"vsock", "AF_VSOCK to the hypervisor", socket},
			{"socket-families", "any other socket family or netlink protocol", socket},
		}},
		{ring: proof.Namespace, expect: proof.ExpectRefused, rows: []row{
			{"tcp4-host-loopback", "services on the host's IPv4 loopback", tcp4},
			{"tcp6-host-loopback", "services on the host's IPv6 loopback", tcp6},
			{"tcp4-host-loopback-name", "services on the host's loopback, by name and by the proxy port", viaProxy},
			{"tcp4-host-address", "the host's own addresses, IPv4", tcp4},
			{"tcp6-host-address", "the host's own addresses, IPv6", tcp6},
			{"udp-host", "UDP services of the host", udp},
			{"tcp4-metadata", "cloud metadata addresses, directly and by the proxy port", tcp4},
			{"tcp6-metadata", "cloud metadata addresses, IPv6", tcp6},
			{"tcp4-second-hop", "a second hop through a relay in the box", tcp4},
		}},
		{ring: proof.Namespace, expect: proof.ExpectAbsent, rows: []row{
			{"unix-docker", "the Docker socket", ownSocket},
			{"unix-podman", "the Podman socket", ownSocket},
			{"unix-dbus", "the D-Bus sockets", ownSocket},
			{"unix-ssh-agent", "the ssh and gpg agents", ownSocket},
			{"unix-x11", "the X11 display", ownSocket},
			{"unix-wayland", "the Wayland display, sound", ownSocket},
			{"abstract-unix", "abstract unix sockets of the host", ownSocket},
			{"unix-walk", "every unix socket found by walking the mounts", ownSocket},
			{"control-socket", "the supervisor's control socket", ownSocket},
		}},
		{ring: proof.Allowlist, expect: proof.ExpectRefused, rows: []row{
			{"proxy-connect", "CONNECT to an address nobody granted", viaProxy},
			{"proxy-socks", "SOCKS5 to an address nobody granted", viaProxy},
			{"sni-mismatch", "SNI and Host that name different hosts", viaTLS},
			{"silence-443", "silence on 443, then neither TLS nor HTTP", viaTLS},
			{"inner-connect", "CONNECT inside a decrypted connection", viaTLS},
		}},
		{ring: proof.Namespace, expect: proof.ExpectAbsent, rows: []row{
			{"state-dir", "foldyard's own files", readable},
			{"ca-key", "the CA's key", readable},
			{"secrets", "the operator's secrets", readable},
			{"dotfiles", "the operator's dotfiles and keys", readable},
			{"environment", "the operator's environment", proc},
			{"descriptors", "descriptors of the launcher", by("the probe's own descriptors can be listed")},
			{"launcher-exe", "the launcher's executable", proc},
		}},
		{ring: proof.Allowlist, expect: proof.ExpectNone, rows: []row{
			{"repo-secrets", "real secrets in the repo itself", by("the repo can be read")},
		}},
		{ring: proof.Namespace, expect: proof.ExpectAbsent, rows: []row{
			{"write-outside", "writing outside the repo, home and /tmp", writable},
			{"repo-protected", "writing what the host's own tools execute in the repo", writable},
			{"remount", "making a read-only mount writable, or mounting anew", fork},
			{"mount-api", "the newer mount calls", fork},
			{"proc-sys", "writing the host's sysctls", writable},
			{"core-pattern", "writing core_pattern", writable},
			{"sysrq", "sysrq-trigger", writable},
			{"uevent", "uevent_helper and other helpers that the kernel runs", writable},
			{"proc-memory", "kernel memory and keys in /proc", writable},
			{"sys-absent", "/sys", writable},
			{"devices", "device nodes beside the harmless ones", writable},
			{"setuid-bits", "setuid and setgid bits", by("an ordinary mode can be set")},
			{"privileges", "capabilities, new privileges, core dumps", by("prctl answers")},
			{"net-admin", "changing the box's network", by("netlink answers a harmless question")},
			{"userns", "new user and other namespaces", fork},
			{"clone3", "clone3, whose flags no filter can read", fork},
			{"kernel-doors", "bpf, io_uring, perf, userfaultfd, keys, kexec, modules", fork},
			{"tiocsti", "typing into a terminal (TIOCSTI, TIOCLINUX)", fork},
			{"syscall32", "32-bit system calls", fork},
			{"ptrace-host", "tracing and reading processes of the host", by("a child can be traced")},
			{"processes-host", "processes of the host in /proc", proc},
		}},
		{ring: proof.Namespace, expect: proof.ExpectAbsent, host: true, rows: []row{
			{"netns-single-device", "a network device beside loopback", by("loopback is listed")},
			{"box-processes", "a process of the box in another namespace", by("the box's first process is listed")},
			{"signal-host", "signalling processes of the host", by("the box's process numbers are read")},
			{"host-root", "the host's uid 0 in the box", by("the box's uid map is read")},
			{"construction", "a construction other than the box's", by("the digest is read before and after")},
		}},
	}
}
