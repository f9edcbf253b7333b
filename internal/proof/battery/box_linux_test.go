package battery

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"foldyard/internal/proof"
	"foldyard/internal/proof/probe"
)

const (
	control   = "control.foldyard.internal"
	boxEnv    = "FOLDYARD_TEST_BATTERY_BOX"
	outside4  = "203.0.113.9"
	outside6  = "2001:db8::9"
	boxDir    = "/etc/foldyard"
	readyByte = 'r'
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(boxEnv); mode != "" {
		if err := beBox(mode); err != nil {
			fmt.Fprintln(os.Stderr, "box:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var (
	dns4 = netip.MustParseAddr("198.18.0.1")
	dns6 = netip.MustParseAddr("fd5b:7d1e:9c04::1")
)

// boxListeners are opened in the box's network and served by the test, as the
// supervisor serves the keeper's.
func boxListeners() []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(dns4, 80), netip.AddrPortFrom(dns6, 80), netip.AddrPortFrom(dns4, 443), netip.AddrPortFrom(dns6, 443),
		netip.MustParseAddrPort("127.0.0.1:3128"), netip.AddrPortFrom(dns4, 53), netip.AddrPortFrom(dns6, 53),
	}
}

// beBox is a poor man's keeper: in new namespaces it makes a small root, brings
// loopback up, hands its listeners to the test over descriptor 3, and runs the
// probes. It has no seccomp filter and keeps its capabilities.
func beBox(mode string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addrs := []string{"198.18.0.1/32", "fd5b:7d1e:9c04::1/128"}
	if mode == "leak" {
		addrs = append(addrs, outside4+"/32")
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return fmt.Errorf("add %s: %w", a, err)
		}
		if addr.IP.To4() == nil { // the kernel adds this route itself, but a moment later
			route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: addr.IPNet, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_MAIN}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("make %s local: %w", a, err)
			}
		}
	}
	if mode == "leak" {
		l, err := net.Listen("tcp", outside4+":443") //nolint:noctx // ends with the process
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
	}
	var fds []int
	for _, a := range boxListeners() {
		l, err := net.Listen("tcp", a.String()) //nolint:noctx // ends with the process
		if err != nil {
			return err
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		fds = append(fds, int(f.Fd()))
		_ = l.Close()
	}
	for _, a := range []netip.Addr{dns4, dns6} {
		p, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 53).String()) //nolint:noctx // ends with the process
		if err != nil {
			return err
		}
		f, err := p.(*net.UDPConn).File()
		if err != nil {
			return err
		}
		fds = append(fds, int(f.Fd()))
		_ = p.Close()
	}
	if err := smallRoot(os.Getenv("FOLDYARD_TEST_ROOT"), os.Getenv("FOLDYARD_TEST_SHOW")); err != nil {
		return err
	}
	if err := unix.Sendmsg(3, []byte{readyByte}, unix.UnixRights(fds...), nil, 0); err != nil {
		return err
	}
	var b [1]byte
	if n, err := unix.Read(3, b[:]); n != 1 || err != nil {
		return fmt.Errorf("wait for the test: %w", err)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if code := probe.Main(context.Background(), os.Stdin, os.Stdout); code != 0 {
		return fmt.Errorf("probes ended with %d", code)
	}
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	_, err = unix.Read(3, b[:]) // the box lives until the test ends it
	return err
}

// smallRoot makes a read-only root with /tmp, /proc, /dev and /etc/foldyard.
// show is a file of the host that is mounted in as well.
func smallRoot(root, show string) error {
	if err := unix.Mount("none", root, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	for _, d := range []string{"tmp", "proc", "dev", "etc/foldyard", "repo"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, boxDir, "ca.pem"), []byte("public\n"), 0o444); err != nil {
		return err
	}
	if show != "" {
		inside := filepath.Join(root, "etc/shown")
		if err := os.WriteFile(inside, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(show, inside, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show: %w", err)
		}
	}
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	if err := unix.Mount("none", filepath.Join(root, "tmp"), "tmpfs", 0, "mode=1777"); err != nil {
		return fmt.Errorf("tmp: %w", err)
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("read-only root: %w", err)
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// testBox is a box of beBox and the supervisor that serves it.
type testBox struct {
	cmd     *exec.Cmd
	mode    string
	sock    *os.File
	stdin   io.WriteCloser
	stdout  io.ReadCloser
	stderr  bytes.Buffer
	ca      []byte
	control Control
	devices []string
}

func needNamespaces(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/true")
	cmd.SysProcAttr = boxAttr()
	if err := cmd.Run(); err != nil {
		t.Skipf("this computer makes no user namespaces: %v", err)
	}
}

func boxAttr() *syscall.SysProcAttr {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 { // the host's root is never mapped into a box
		uid, gid = 65534, 65534
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		Pdeathsig:   syscall.SIGKILL,
	}
}

// newTestBox starts a box. mode is good; mute: nobody serves it; or leak: TCP
// to the outside address is answered.
func newTestBox(t *testing.T, mode, show string) *testBox {
	t.Helper()
	needNamespaces(t)
	b := &testBox{mode: mode, devices: []string{"lo"}}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.sock = os.NewFile(uintptr(pair[0]), "box")
	theirs := os.NewFile(uintptr(pair[1]), "test")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The host's root is not mapped, so the box must be able to read both.
	root, err := os.MkdirTemp("/tmp", "foldyard-battery-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.CommandContext(t.Context(), "/proc/self/fd/4")
	b.cmd.Args = []string{"box"}
	exe, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	b.cmd.ExtraFiles = []*os.File{theirs, exe}
	b.cmd.Env = []string{boxEnv + "=" + mode, "FOLDYARD_TEST_ROOT=" + root, "FOLDYARD_TEST_SHOW=" + show}
	b.cmd.SysProcAttr = boxAttr()
	b.cmd.Stderr = &b.stderr
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if b.stdout, err = b.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	t.Cleanup(func() { _ = b.sock.Close(); _ = b.cmd.Process.Kill(); _ = b.cmd.Wait() })
	b.serve(t)
	return b
}

func (b *testBox) serve(t *testing.T) {
	t.Helper()
	buf, oob := make([]byte, 1), make([]byte, 1024)
	_, n, _, _, err := unix.Recvmsg(int(b.sock.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || buf[0] != readyByte {
		t.Fatalf("the box did not start: %v\n%s", err, b.stderr.String())
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	leaf, ca := testLeaf(t)
	b.ca = ca
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "listener")
		if b.mode == "mute" {
			_ = f.Close()
			continue
		}
		if i >= len(boxListeners()) {
			p, err := net.FilePacketConn(f)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.Close() })
			go serveDNSPacket(p)
			_ = f.Close()
			continue
		}
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = l.Close() })
		switch boxListeners()[i].Port() {
		case 53:
			go serveDNSStream(l)
		case 443:
			b.serveHTTP(t, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12}))
		default:
			b.serveHTTP(t, l)
		}
	}
}

// serveHTTP answers as the proxy does, in short.
func (b *testBox) serveHTTP(t *testing.T, l net.Listener) {
	srv := &http.Server{ReadTimeout: time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		switch {
		case r.Method == http.MethodConnect && r.TLS != nil:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case r.Method == http.MethodConnect:
			w.WriteHeader(http.StatusForbidden)
		case host != control || r.TLS != nil && r.TLS.ServerName != control:
			w.WriteHeader(http.StatusMisdirectedRequest)
		default:
			b.control.ServeHTTP(w, r)
		}
	})
	t.Cleanup(func() { _ = srv.Close() })
	go func() { _ = srv.Serve(l) }()
}

func answerDNS(q []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(q) != nil || len(m.Questions) != 1 {
		return nil
	}
	m.Response = true
	m.Additionals = nil
	head := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60}
	switch m.Questions[0].Type {
	case dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: dns4.As4()}}}
	case dnsmessage.TypeAAAA:
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: dns6.As16()}}}
	}
	reply, err := m.Pack()
	if err != nil {
		return nil
	}
	return reply
}

func serveDNSPacket(p net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = p.WriteTo(answerDNS(buf[:n]), from)
	}
}

func serveDNSStream(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		buf := make([]byte, 2048)
		if n, err := c.Read(buf); err == nil && n > 2 {
			reply := answerDNS(buf[2:n])
			_, _ = c.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...))
		}
		_ = c.Close()
	}
}

func testLeaf(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{control}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
}

// run is the box's Runner.
func (b *testBox) run(_ context.Context, plan []byte, _ bool) ([]byte, error) {
	if _, err := b.sock.Write([]byte{'g'}); err != nil {
		return nil, err
	}
	if _, err := b.stdin.Write(plan); err != nil {
		return nil, err
	}
	if err := b.stdin.Close(); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(b.stdout)
	if !json.Valid(out) {
		return nil, errors.Join(err, fmt.Errorf("no report: %.200q\n%s", out, b.stderr.String()))
	}
	return out, err
}

func (b *testBox) options() Options {
	return Options{
		Box: "b1", BootID: "boot", Digest: "d", Run: b.run, Control: &b.control, Now: time.Now,
		Facts: func(context.Context) (Facts, error) {
			return Facts{Digest: "d", Agent: b.cmd.Process.Pid, Keeper: os.Getpid(), Devices: b.devices}, nil
		},
		ControlName: control, DNS4: dns4, DNS6: dns6, CA: b.ca, Proxy: netip.MustParseAddrPort("127.0.0.1:3128"),
		Synthetic: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fd5b:7d1e:9c04::/64")},
		Addrs:     []netip.Addr{netip.MustParseAddr(outside4), netip.MustParseAddr(outside6)},
		Enforcing: true, Repo: "/repo", BoxHome: "/home/x",
	}
}

func rowsByID(r proof.Report) map[string]proof.Row {
	rows := map[string]proof.Row{}
	for _, row := range r.Rows {
		rows[row.ID] = row
	}
	return rows
}

// unfiltered are the rows that only a seccomp filter and dropped capabilities
// shut, of which this test's box has neither.
func unfiltered() []string {
	return []string{
		"raw-socket", "packet-socket", "vsock", "socket-families", "descriptors", "remount", "mount-api", "setuid-bits", "privileges",
		"net-admin", "userns", "clone3", "kernel-doors", "tiocsti", "syscall32", "devices", "launcher-exe", "udp-multicast",
		"environment", "proc-sys", "core-pattern", "sysrq", "uevent", "proc-memory", "ptrace-host",
	}
}

func TestBoxWithLoopbackOnlyPasses(t *testing.T) {
	b := newTestBox(t, "good", "")
	report, err := Run(t.Context(), b.options())
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsByID(report)
	for _, s := range probe.Specs() {
		row := rows[s.ID]
		switch {
		case slices.Contains(unfiltered(), s.ID):
			t.Logf("%-24s %-9s %s", s.ID, row.Result, row.Detail)
		case row.Result == proof.NA:
			t.Logf("%-24s N/A       %s", s.ID, row.Detail)
		case row.Result != proof.Pass:
			t.Errorf("%-24s %-9s %s", s.ID, row.Result, row.Detail)
		}
	}
	// The filter's rows must tell that there is none.
	for _, id := range []string{"socket-families", "clone3", "kernel-doors", "syscall32", "privileges", "setuid-bits", "net-admin"} {
		if id == "syscall32" && rows[id].Result == proof.NA {
			continue
		}
		if rows[id].Result != proof.Fail {
			t.Errorf("%s without a filter: %s %s, want FAIL", id, rows[id].Result, rows[id].Detail)
		}
	}
	if report.Verdict != proof.VerdictFail {
		t.Errorf("verdict %s, want fail: this box has no filter", report.Verdict)
	}
}

func TestRefusalsWithoutControlAreUnproven(t *testing.T) {
	b := newTestBox(t, "mute", "")
	report, err := Run(t.Context(), b.options())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report.Rows {
		if row.Expect == proof.ExpectRefused && row.Result == proof.Pass {
			t.Errorf("%s passed although its control failed: %s", row.ID, row.Detail)
		}
		if strings.HasPrefix(row.ID, "tcp4-direct") && row.Result != proof.Unproven {
			t.Errorf("%s is %s: %s", row.ID, row.Result, row.Detail)
		}
	}
}

func TestHoleFailsWithAndWithoutControl(t *testing.T) {
	b := newTestBox(t, "leak", "")
	report, err := Run(t.Context(), b.options())
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsByID(report)
	if rows["tcp4-direct"].Result != proof.Fail || rows["tcp4-second-hop"].Result != proof.Fail {
		t.Errorf("tcp4-direct %+v, second hop %+v", rows["tcp4-direct"], rows["tcp4-second-hop"])
	}
	if rows["tcp6-direct"].Result != proof.Pass {
		t.Errorf("the allowed neighbour: %+v", rows["tcp6-direct"])
	}
	if report.Verdict != proof.VerdictFail {
		t.Errorf("verdict %s", report.Verdict)
	}
}

func TestFileOfTheHostInTheBoxIsFound(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "foldyard-battery-show-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(dir, "id_canary")
	if err := os.WriteFile(secret, []byte("CANARY"), 0o644); err != nil {
		t.Fatal(err)
	}
	b := newTestBox(t, "good", secret)
	o := b.options()
	o.Files.Secrets = []string{secret}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	row := rowsByID(report)["secrets"]
	if row.Result != proof.Fail || !strings.Contains(row.Detail, "/etc/shown") {
		t.Errorf("secrets: %+v", row)
	}
	if strings.Contains(row.Detail, "CANARY") {
		t.Error("the row tells the secret")
	}
}

func send(ctx context.Context, network, to, text string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, to)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c, text)
	return errors.Join(err, c.Close())
}
