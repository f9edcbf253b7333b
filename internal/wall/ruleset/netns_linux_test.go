package ruleset

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleVar makes the test binary one of the actors in a namespace.
const roleVar = "FY_RULESET_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "world":
		world()
		return
	case "probe":
		fmt.Println(probe(os.Args[1], os.Args[2]))
		return
	}
	os.Exit(m.Run())
}

// world answers on every address of its namespace with the port that was reached.
func world() {
	for _, port := range []int{22, 53, 80, 443, 853, 5355, 41000, 41001, 41050, 41099, 41100, 41190} {
		l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%d\n", port)
				c.Close()
			}
		}()
	}
	// Datagrams are answered from the address they were sent to.
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_IP, 15 /* IP_FREEBIND */, 1) })
	}}
	for _, at := range []string{
		"9.9.9.9:53", "192.168.6.3:53", "[2001:db8::9]:53", "192.168.6.9:5355", "1.1.1.1:443", "[2001:db8::1]:443",
		"192.168.5.2:41000", "192.168.5.2:41001",
	} {
		p, err := free.ListenPacket(context.Background(), "udp", at)
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		go func() {
			b := make([]byte, 64)
			for {
				_, from, err := p.ReadFrom(b)
				if err != nil {
					return
				}
				p.WriteTo([]byte(at[strings.LastIndexByte(at, ':')+1:]), from)
			}
		}()
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

// probe tries one address, and says which port answered, or how it failed.
func probe(network, address string) string {
	if network == "ping" {
		return echo(netip.MustParseAddr(address))
	}
	d := net.Dialer{Timeout: 3 * time.Second}
	start := time.Now()
	c, err := d.Dial(network, address)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(3 * time.Second))
		if strings.HasPrefix(network, "udp") || strings.HasPrefix(network, "ip") {
			_, err = c.Write([]byte("?"))
		}
		b := make([]byte, 64)
		var n int
		if err == nil {
			n, err = c.Read(b)
		}
		if n > 0 {
			return strings.TrimSpace(string(b[:n]))
		}
	}
	if time.Since(start) > 2500*time.Millisecond {
		return "silence"
	}
	return "refused"
}

// echo sends an echo request by the unprivileged kind of socket.
func echo(to netip.Addr) string {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, syscall.IPPROTO_ICMP)
	if err != nil {
		return err.Error()
	}
	defer syscall.Close(fd)
	wait := syscall.NsecToTimeval((2 * time.Second).Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return err.Error()
	}
	if err := syscall.Sendto(fd, []byte{8, 0, 0xf7, 0xfe, 0, 0, 0, 1}, 0, &syscall.SockaddrInet4{Addr: to.As4()}); err != nil {
		return err.Error()
	}
	var b [64]byte
	if n, _, err := syscall.Recvfrom(fd, b[:], 0); err != nil || n == 0 || b[0] != 0 {
		return "refused"
	}
	return "answered"
}

// innerVar makes the test binary run a test again, in namespaces of its own, as the one user id that it holds.
const innerVar = "FY_RULESET_INNER"

// inside runs t again in namespaces of its own, for an ordinary user: once as root there, once as the VM's user with what root may do.
// It reports whether this is such a run, or root's own, which goes on.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() == 0 || os.Getenv(innerVar) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"0", "1000"} {
		flags := []string{"--user", "--keep-caps", "--map-user=" + id, "--map-group=" + id, "--net", "--mount"}
		if out, err := exec.CommandContext(t.Context(), "unshare", append(flags, "true")...).CombinedOutput(); err != nil {
			t.Skipf("no namespaces of one's own here: %s", out)
		}
		cmd := exec.CommandContext(t.Context(), "unshare", append(flags, self, "-test.run=^"+t.Name()+"$", "-test.v")...)
		cmd.Env = append(os.Environ(), innerVar+"="+id)
		out, err := cmd.CombinedOutput()
		t.Logf("as uid %s in namespaces of its own:\n%s", id, out)
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) && !strings.Contains(string(out), "--- SKIP: "+t.Name()) {
			t.Errorf("as uid %s in namespaces of its own: %v", id, err)
		}
	}
	return false
}

// able reports whether probes can be made as uid here.
func able(uid int) bool { return os.Getenv(innerVar) == "" || uid == os.Geteuid() }

// as is a command line that runs argv as uid.
func as(uid int, argv ...string) []string {
	if os.Getenv(innerVar) != "" {
		return argv
	}
	id := strconv.Itoa(uid)
	return append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups"}, argv...)
}

// lab is a guest, a container behind it, and the world: three network namespaces.
type lab struct {
	t                         *testing.T
	guest, container, outside string
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv(innerVar) != "" {
		run(t, "mount", "-t", "tmpfs", "none", "/run")
		run(t, "mkdir", "/run/netns")
	}
	for _, tool := range []string{"ip", "nft", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	id := strconv.Itoa(os.Getpid())
	l := &lab{t: t, guest: "fyg" + id, container: "fyc" + id, outside: "fyw" + id}
	for _, ns := range []string{l.guest, l.container, l.outside} {
		if out, err := exec.CommandContext(t.Context(), "ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("cannot make a network namespace here: %s", out)
		}
		t.Cleanup(func() { exec.CommandContext(context.Background(), "ip", "netns", "del", ns).Run() })
		run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	run(t, "ip", "-n", l.guest, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", l.outside)
	run(t, "ip", "-n", l.guest, "link", "add", "br0", "type", "veth", "peer", "name", "eth0", "netns", l.container)
	for _, a := range [][]string{
		{l.guest, "eth0", "192.168.5.15/24", "fd00:5::15/64"}, {l.outside, "eth0", "192.168.5.2/24", "fd00:5::2/64"},
		{l.guest, "br0", "10.88.0.1/16", "fd00:88::1/64"}, {l.container, "eth0", "10.88.0.2/16", "fd00:88::2/64"},
	} {
		run(t, "ip", "-n", a[0], "addr", "add", a[2], "dev", a[1])
		run(t, "ip", "-n", a[0], "addr", "add", a[3], "dev", a[1], "nodad")
		run(t, "ip", "-n", a[0], "link", "set", a[1], "up")
	}
	run(t, "ip", "-n", l.guest, "route", "add", "default", "via", "192.168.5.2")
	run(t, "ip", "-n", l.guest, "-6", "route", "add", "default", "via", "fd00:5::2")
	run(t, "ip", "-n", l.container, "route", "add", "default", "via", "10.88.0.1")
	run(t, "ip", "-n", l.container, "-6", "route", "add", "default", "via", "fd00:88::1")
	run(t, "nsenter", "--net=/run/netns/"+l.guest, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	run(t, "ip", "-n", l.outside, "route", "add", "10.88.0.0/16", "via", "192.168.5.15")
	run(t, "ip", "-n", l.outside, "route", "add", "local", "default", "dev", "lo", "table", "local")
	run(t, "ip", "-n", l.outside, "-6", "route", "add", "fd00:88::/64", "via", "fd00:5::15")
	run(t, "ip", "-n", l.outside, "-6", "route", "add", "local", "default", "dev", "lo", "table", "100")
	run(t, "ip", "-n", l.outside, "-6", "rule", "add", "pref", "40000", "lookup", "100")

	// The probes run as other users: they must be able to run the binary.
	dir, err := os.MkdirTemp("", "fyruleset")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "actor"), self, 0o755); err != nil {
		t.Fatal(err)
	}
	actor = filepath.Join(dir, "actor")

	w := exec.CommandContext(t.Context(), "nsenter", "--net=/run/netns/"+l.outside, actor)
	w.Env = append(os.Environ(), roleVar+"=world")
	in, err := w.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); w.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the world said %q, %v", line, err)
	}
	return l
}

var actor string

func (l *lab) try(ns string, uid int, network, address string) string {
	l.t.Helper()
	cmd := exec.CommandContext(l.t.Context(), "nsenter", append([]string{"--net=/run/netns/" + ns}, as(uid, actor, network, address)...)...)
	cmd.Env = append(os.Environ(), roleVar+"=probe")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "error: " + string(out)
	}
	return strings.TrimSpace(string(out))
}

// settled tries until what is there answers as it will: links that were just made find their neighbours first.
func (l *lab) settled(ns string, uid int, network, address, want string) (got string) {
	for deadline := time.Now().Add(15 * time.Second); got != want && time.Now().Before(deadline); {
		got = l.try(ns, uid, network, address)
	}
	return got
}

func (l *lab) load(ns, text string) {
	l.t.Helper()
	for _, flags := range [][]string{{"-c"}, nil} {
		cmd := exec.CommandContext(l.t.Context(), "nsenter", append([]string{"--net=/run/netns/" + ns, "nft"}, append(flags, "-f", "-")...)...)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			l.t.Fatalf("nft %v: %v\n%s", flags, err, out)
		}
	}
}

func TestGuestTableAgainstBypasses(t *testing.T) {
	if !inside(t) {
		return
	}
	l := newLab(t)
	const (
		user, sub, other = 1000, 524300, 4000 // the VM's user, one of its sub-uids, someone else's account
		root, daemon     = 0, 101
	)
	type attempt struct {
		name             string
		uid              int
		network, address string
		open, walled     string // what answers without the table, and with it
	}
	attempts := []attempt{
		{"the way out", user, "tcp4", "192.168.5.2:41000", "41000", "41000"},
		{"a service at the band's end", user, "tcp4", "192.168.5.2:41099", "41099", "41099"},
		{"the way out, from a container's id", sub, "tcp4", "192.168.5.2:41050", "41050", "41050"},
		{"our DNS", user, "udp4", "192.168.5.2:41001", "41001", "41001"},
		{"a name asked anywhere, UDP", user, "udp4", "9.9.9.9:53", "53", "41001"},
		{"a name asked anywhere, TCP", user, "tcp4", "9.9.9.9:53", "53", "41001"},
		{"a name asked by a container's id", sub, "udp4", "192.168.6.3:53", "53", "41001"},
		{"a name asked by a daemon: not a way to carry data out", daemon, "udp4", "9.9.9.9:53", "53", "41001"},
		{"a name asked over IPv6", user, "udp6", "[2001:db8::9]:53", "53", "refused"},
		{"a name asked over IPv6 by a daemon", daemon, "udp6", "[2001:db8::9]:53", "53", "refused"},
		{"DNS over TLS by a daemon", daemon, "tcp4", "9.9.9.9:853", "853", "refused"},
		{"neighbours' names by a daemon", daemon, "udp4", "192.168.6.9:5355", "5355", "refused"},
		{"an address of the world", user, "tcp4", "1.1.1.1:443", "443", "refused"},
		{"an address of the world, IPv6", user, "tcp6", "[2001:db8::1]:443", "443", "refused"},
		{"by a sub-uid (--network=host)", sub, "tcp4", "1.1.1.1:443", "443", "refused"},
		{"by a sub-uid, IPv6", sub, "tcp6", "[2001:db8::1]:443", "443", "refused"},
		{"by another account", other, "tcp4", "1.1.1.1:443", "443", "refused"},
		{"by nobody", 65534, "tcp4", "1.1.1.1:443", "443", "refused"},
		{"QUIC", user, "udp4", "1.1.1.1:443", "443", "refused"},
		{"QUIC, IPv6", user, "udp6", "[2001:db8::1]:443", "443", "refused"},
		{"the gateway below the band", user, "tcp4", "192.168.5.2:22", "22", "refused"},
		{"the gateway's half of the band", user, "tcp4", "192.168.5.2:41100", "41100", "refused"},
		{"the gateway's ssh", user, "tcp4", "192.168.5.2:41190", "41190", "refused"},
		{"the band by UDP", user, "udp4", "192.168.5.2:41000", "41000", "refused"},
		{"the band at another address", user, "tcp4", "192.168.6.3:41000", "41000", "refused"},
		{"the gateway's IPv6 address", user, "tcp6", "[fd00:5::2]:41000", "41000", "refused"},
		{"root is exempt", root, "tcp4", "1.1.1.1:443", "443", "443"},
		{"a daemon is exempt", daemon, "tcp4", "1.1.1.1:443", "443", "443"},
	}
	forwarded := []attempt{
		{"forwarded to the way out", root, "tcp4", "192.168.5.2:41000", "41000", "41000"},
		{"forwarded to the world", root, "tcp4", "1.1.1.1:443", "443", "refused"},
		{"forwarded to the world, IPv6", root, "tcp6", "[2001:db8::1]:443", "443", "refused"},
		{"forwarded UDP", root, "udp4", "1.1.1.1:443", "443", "refused"},
		{"forwarded DNS", root, "udp4", "9.9.9.9:53", "53", "refused"},
		{"forwarded to the gateway's ssh", root, "tcp4", "192.168.5.2:41190", "41190", "refused"},
	}
	attempts = slices.DeleteFunc(attempts, func(a attempt) bool { return !able(a.uid) })
	forwarded = slices.DeleteFunc(forwarded, func(a attempt) bool { return !able(a.uid) })
	if len(attempts) == 0 {
		t.Fatal("nothing can be tried")
	}
	for _, a := range attempts {
		if got := l.settled(l.guest, a.uid, a.network, a.address, a.open); got != a.open {
			t.Fatalf("control, %s: %s answers %q, want %q", a.name, a.address, got, a.open)
		}
	}
	for _, a := range forwarded {
		if got := l.settled(l.container, a.uid, a.network, a.address, a.open); got != a.open {
			t.Fatalf("control, %s: %s answers %q, want %q", a.name, a.address, got, a.open)
		}
	}
	if able(user) && !l.ping(user, "1.1.1.1") {
		t.Fatal("control: an echo request of the user's is not answered")
	}
	// Someone else's table is left as it is.
	l.load(l.guest, "table inet others {\n\tchain c {\n\t\ttype filter hook output priority 10\n\t\tcounter\n\t}\n}\n")
	table, err := testGuest().Table([]UIDs{{user, user}, Unbound(), {524288, 589823}})
	if err != nil {
		t.Fatal(err)
	}
	l.load(l.guest, table)
	l.load(l.guest, table) // loading it again changes nothing
	run(t, "nsenter", "--net=/run/netns/"+l.guest, "nft", "list", "table", "inet", "others")
	for _, a := range attempts {
		if got := l.try(l.guest, a.uid, a.network, a.address); got != a.walled {
			t.Errorf("%s: uid %d, %s %s answers %q, want %q", a.name, a.uid, a.network, a.address, got, a.walled)
		}
	}
	for _, a := range forwarded {
		if got := l.try(l.container, a.uid, a.network, a.address); got != a.walled {
			t.Errorf("%s: %s %s answers %q, want %q", a.name, a.network, a.address, got, a.walled)
		}
	}
	if able(user) && l.ping(user, "1.1.1.1") {
		t.Error("an echo request of the user's was answered")
	}
}

// ping sends an echo request by the unprivileged kind of socket.
func (l *lab) ping(uid int, addr string) bool {
	groups := "0 4294967294"
	if id := os.Getenv(innerVar); id != "" {
		groups = id + " " + id
	}
	run(l.t, "nsenter", "--net=/run/netns/"+l.guest, "sh", "-c", "echo '"+groups+"' >/proc/sys/net/ipv4/ping_group_range")
	return l.try(l.guest, uid, "ping", addr) == "answered"
}

func TestHostTableLoads(t *testing.T) {
	if !inside(t) {
		return
	}
	l := newLab(t)
	h := testHost()
	text, err := h.Table()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "nsenter", "--net=/run/netns/"+l.guest, "nft", "-c", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(string(out), "cgroupv2 path fails") {
		t.Skip("nft wants the slice to exist, and it does not here")
	}
	if err != nil {
		t.Fatalf("nft -c: %v\n%s", err, out)
	}
}
