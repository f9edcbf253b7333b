package probe

import (
	"slices"

	"foldyard/internal/proof"
)

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

// Specs returns every row of the namespace wall's battery, in the order in
// which they are shown.
func Specs() []Spec {
	return slices.Concat(controls(), network(), unixSockets(), policy(), secrets(), files(), kernel(), host())
}

// Needs of the rows, and what they are in words.
func tcp4() ([]string, string) {
	return []string{ControlHTTP4}, "over the same IPv4 sockets the supervisor answers http://control.foldyard.internal/ before and after"
}

func tcp6() ([]string, string) {
	return []string{ControlHTTP6}, "over the same IPv6 sockets the supervisor answers http://control.foldyard.internal/ before and after"
}

func udp() ([]string, string) {
	return []string{ControlUDP}, "a DNS question over UDP is answered before and after"
}

func viaProxy() ([]string, string) {
	return []string{ControlProxy}, "the proxy port fetches http://control.foldyard.internal/ before and after"
}

func viaTLS() ([]string, string) {
	return []string{ControlTLS4}, "the supervisor answers https://control.foldyard.internal/ before and after"
}

func refused(ring proof.Ring, id, title string, needs func() ([]string, string)) Spec {
	ids, words := needs()
	return Spec{ID: id, Title: title, Ring: ring, Expect: proof.ExpectRefused, Control: words, Needs: ids}
}

func absent(id, title, control string) Spec {
	return Spec{ID: id, Title: title, Ring: proof.Namespace, Expect: proof.ExpectAbsent, Control: control}
}

func controls() []Spec {
	control := func(id, title string) Spec {
		return Spec{ID: id, Title: title, Ring: proof.Capture, Expect: proof.ExpectReached, Control: "itself"}
	}
	return []Spec{
		control(ControlHTTP4, "the supervisor answers HTTP over IPv4"),
		control(ControlHTTP6, "the supervisor answers HTTP over IPv6"),
		control(ControlTLS4, "the supervisor answers TLS over IPv4 with our certificate"),
		control(ControlTLS6, "the supervisor answers TLS over IPv6 with our certificate"),
		control(ControlProxy, "the supervisor answers through the proxy port"),
		control(ControlUDP, "our DNS answers over UDP"),
		control(ControlTCP, "our DNS answers over TCP"),
	}
}

func network() []Spec {
	r := func(id, title string, needs func() ([]string, string)) Spec {
		return refused(proof.Namespace, id, title, needs)
	}
	const socketControl = "a TCP socket opens"
	return []Spec{
		r("tcp4-direct", "TCP to a public IPv4 address", tcp4),
		r("tcp6-direct", "TCP to a public IPv6 address", tcp6),
		r("tcp6-embedded", "TCP to a public IPv4 address in IPv6 clothes (mapped, NAT64, 6to4)", tcp6),
		r("tcp4-fastopen", "data in the SYN (TCP Fast Open)", tcp4),
		r("tcp4-other-transports", "MPTCP, SCTP, DCCP and UDP-Lite to a public address", tcp4),
		r("tcp4-dns", "DNS over TCP by a public or private resolver, IPv4", tcp4),
		r("tcp6-dns", "DNS over TCP by a public or private resolver, IPv6", tcp6),
		r("tcp4-dot", "DNS over TLS (port 853)", tcp4),
		r("udp4-dns", "DNS over UDP by a public or private resolver, IPv4", udp),
		r("udp6-dns", "DNS over UDP by a public or private resolver, IPv6", udp),
		r("udp-multicast", "mDNS, LLMNR and broadcast", udp),
		r("udp443", "QUIC (UDP 443)", udp),
		r("udp-other", "UDP to other ports, DNS over QUIC among them", udp),
		r("dns-data", "data in DNS names", udp),
		absent("icmp4", "ICMP echo", socketControl),
		absent("icmp6", "ICMPv6 echo", socketControl),
		absent("raw-socket", "raw IP sockets", socketControl),
		absent("packet-socket", "packet sockets", socketControl),
		absent("vsock", "AF_VSOCK to the hypervisor", socketControl),
		absent("socket-families", "any other socket family or netlink protocol", socketControl),
		r("tcp4-host-loopback", "services on the host's IPv4 loopback", tcp4),
		r("tcp6-host-loopback", "services on the host's IPv6 loopback", tcp6),
		r("tcp4-host-loopback-name", "services on the host's loopback, by name and by the proxy port", viaProxy),
		r("tcp4-host-address", "the host's own addresses, IPv4", tcp4),
		r("tcp6-host-address", "the host's own addresses, IPv6", tcp6),
		r("udp-host", "UDP services of the host", udp),
		r("tcp4-metadata", "cloud metadata addresses, directly and by the proxy port", tcp4),
		r("tcp6-metadata", "cloud metadata addresses, IPv6", tcp6),
		r("tcp4-second-hop", "a second hop through a relay in the box", tcp4),
	}
}

func unixSockets() []Spec {
	const own = "a unix socket of the box's own answers"
	return []Spec{
		absent("unix-docker", "the Docker socket", own),
		absent("unix-podman", "the Podman socket", own),
		absent("unix-dbus", "the D-Bus sockets", own),
		absent("unix-ssh-agent", "the ssh and gpg agents", own),
		absent("unix-x11", "the X11 display", own),
		absent("unix-wayland", "the Wayland display, sound", own),
		absent("abstract-unix", "abstract unix sockets of the host", own),
		absent("unix-walk", "every unix socket found by walking the mounts", own),
		absent("control-socket", "the supervisor's control socket", own),
	}
}

func policy() []Spec {
	r := func(id, title string, needs func() ([]string, string)) Spec {
		return refused(proof.Allowlist, id, title, needs)
	}
	return []Spec{
		r("proxy-connect", "CONNECT to an address nobody granted", viaProxy),
		r("proxy-socks", "SOCKS5 to an address nobody granted", viaProxy),
		r("sni-mismatch", "SNI and Host that name different hosts", viaTLS),
		r("silence-443", "silence on 443, then neither TLS nor HTTP", viaTLS),
		r("inner-connect", "CONNECT inside a decrypted connection", viaTLS),
	}
}

func secrets() []Spec {
	const readable = "the box's own /etc/foldyard/ca.pem can be read"
	return []Spec{
		absent("state-dir", "foldyard's own files", readable),
		absent("ca-key", "the CA's key", readable),
		absent("secrets", "the operator's secrets", readable),
		absent("dotfiles", "the operator's dotfiles and keys", readable),
		absent("environment", "the operator's environment", "the box's /proc can be read"),
		absent("descriptors", "descriptors of the launcher", "the probe's own descriptors can be listed"),
		absent("launcher-exe", "the launcher's executable", "the box's /proc can be read"),
		{
			ID: "repo-secrets", Title: "real secrets in the repo itself", Ring: proof.Allowlist, Expect: proof.ExpectNone,
			Control: "the repo can be read",
		},
	}
}

func files() []Spec {
	const writable = "the box's own /tmp can be written"
	const fork = "the same helper's harmless call returns"
	return []Spec{
		absent("write-outside", "writing outside the repo, home and /tmp", writable),
		absent("repo-protected", "writing what the host's own tools execute in the repo", writable),
		absent("remount", "making a read-only mount writable, or mounting anew", fork),
		absent("mount-api", "the newer mount calls", fork),
		absent("proc-sys", "writing the host's sysctls", writable),
		absent("core-pattern", "writing core_pattern", writable),
		absent("sysrq", "sysrq-trigger", writable),
		absent("uevent", "uevent_helper and other helpers that the kernel runs", writable),
		absent("proc-memory", "kernel memory and keys in /proc", writable),
		absent("sys-absent", "/sys", writable),
		absent("devices", "device nodes beside the harmless ones", writable),
		absent("setuid-bits", "setuid and setgid bits", "an ordinary mode can be set"),
	}
}

func kernel() []Spec {
	const fork = "the same helper's harmless call returns"
	return []Spec{
		absent("privileges", "capabilities, new privileges, core dumps", "prctl answers"),
		absent("net-admin", "changing the box's network", "netlink answers a harmless question"),
		absent("userns", "new user and other namespaces", fork),
		absent("clone3", "clone3, whose flags no filter can read", fork),
		absent("kernel-doors", "bpf, io_uring, perf, userfaultfd, keys, kexec, modules", fork),
		absent("tiocsti", "typing into a terminal (TIOCSTI, TIOCLINUX)", fork),
		absent("syscall32", "32-bit system calls", fork),
		absent("ptrace-host", "tracing and reading processes of the host", "a child can be traced"),
		absent("processes-host", "processes of the host in /proc", "the box's /proc can be read"),
	}
}

// host lists the rows that the host fills in from what it sees itself.
func host() []Spec {
	row := func(id, title, control string) Spec {
		return Spec{ID: id, Title: title, Ring: proof.Namespace, Expect: proof.ExpectAbsent, Control: control, Host: true}
	}
	return []Spec{
		row("netns-single-device", "a network device beside loopback", "loopback is listed"),
		row("box-processes", "a process of the box in another namespace", "the box's first process is listed"),
		row("signal-host", "signalling processes of the host", "the box's process numbers are read"),
		row("host-root", "the host's uid 0 in the box", "the box's uid map is read"),
		row("construction", "a construction other than the box's", "the digest is read before and after"),
	}
}
