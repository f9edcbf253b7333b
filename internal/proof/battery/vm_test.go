package battery

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/proof"
	"foldyard/internal/proof/vmprobe"
)

// guest plays a machine that behaves as f says.
func guest(c *Control, f func(vmprobe.Try) vmprobe.Outcome) func(context.Context, []byte) ([]byte, error) {
	return func(_ context.Context, plan []byte) ([]byte, error) {
		var tries []vmprobe.Try
		if err := json.Unmarshal(plan, &tries); err != nil {
			return nil, err
		}
		var out []vmprobe.Outcome
		for _, t := range tries {
			o := f(t)
			o.ID = t.ID
			if t.Kind == vmprobe.Proxied && o.Outcome == "" { // by the way out, which knows the token
				if strings.Contains(t.Target, "@") {
					w := httptest.NewRecorder()
					c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://control/probe/"+t.Nonce+"/"+t.ID, nil))
					o.Outcome, o.Detail = vmprobe.Reached, "HTTP/1.1 200 OK "+strings.TrimSpace(w.Body.String())
				} else {
					o.Outcome, o.Detail = vmprobe.Reached, "HTTP/1.1 407 Proxy Authentication Required"
				}
			}
			out = append(out, o)
		}
		return json.Marshal(out)
	}
}

// held is a machine that everything is refused to.
func held(t vmprobe.Try) vmprobe.Outcome {
	switch t.Kind {
	case vmprobe.Proxied:
		return vmprobe.Outcome{}
	case vmprobe.DNS:
		return vmprobe.Outcome{Outcome: vmprobe.Reached, Detail: "198.18.0.7"}
	}
	return vmprobe.Outcome{Outcome: vmprobe.Refused, Detail: "connection refused"}
}

func vmOptions(c *Control, run func(context.Context, []byte) ([]byte, error)) VMOptions {
	return VMOptions{
		Box: "b1", BootID: "boot", Digest: "d", Control: c, ControlName: "control.test", Now: time.Now,
		Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Gateway: netip.MustParseAddr("127.0.0.1"),
		Proxy: "http://box:token@127.0.0.1:1", BareProxy: "http://127.0.0.1:1", Closed: []uint16{9},
		Synthetic: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
		Places:    []VMPlace{{Name: "user", Title: "as the user", Direct: true, Run: run}, {Name: "box", Title: "from the box", Run: run}},
	}
}

func TestMachineThatHoldsPasses(t *testing.T) {
	c := &Control{}
	store := proof.Store{Dir: t.TempDir()}
	r, err := VerifyVM(t.Context(), vmOptions(c, guest(c, held)), store)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != proof.VerdictPass || r.Ring != proof.VMFirewall {
		t.Errorf("verdict %s: %+v", r.Verdict, r.Rows)
	}
	rings := proof.Rings(proof.Subject{Backend: "lima", Box: "b1", BootID: "boot", Digest: "d"}, proof.Policy{Enforces: true}, []proof.Report{r})
	if label, boundary, why := proof.Label(rings, proof.Policy{Enforces: true}); label != proof.Locked || boundary != "the VM's user and containers, not VM root" {
		t.Errorf("label %s, %s, %s", label, boundary, why)
	}
	// The same evidence says nothing of a machine that is built otherwise, or of one whose firewall is off.
	for _, s := range []proof.Subject{
		{Backend: "lima", Box: "b1", BootID: "boot", Digest: "other"}, {Backend: "lima", Box: "b2", BootID: "boot", Digest: "d"},
		{Backend: "lima", Box: "b1", BootID: "boot", Digest: "d", NoFirewall: true}, {Backend: "podman", Box: "b1", BootID: "boot", Digest: "d"},
	} {
		if label, _, _ := proof.Label(proof.Rings(s, proof.Policy{Enforces: true}, []proof.Report{r}), proof.Policy{Enforces: true}); label != proof.Cooperative {
			t.Errorf("%+v is %s", s, label)
		}
	}
}

func TestEveryWayOutOfAMachineFails(t *testing.T) {
	like := func(id string, o vmprobe.Outcome) func(vmprobe.Try) vmprobe.Outcome {
		return func(t vmprobe.Try) vmprobe.Outcome {
			if t.ID == id {
				return o
			}
			return held(t)
		}
	}
	out := vmprobe.Outcome{Outcome: vmprobe.Reached, Detail: "connected"}
	for _, tt := range []struct {
		name string
		f    func(vmprobe.Try) vmprobe.Outcome
		row  string
		want proof.Result
	}{
		{"a connection to the world", like("tcp4-443", out), "box-tcp4-443", proof.Fail},
		{"over IPv6", like("tcp6-443", out), "box-tcp6-443", proof.Fail},
		{"an echo", like("icmp4", out), "user-icmp4", proof.Fail},
		{"an echo to the router", like("link-local-icmp6", out), "user-link-local-icmp6", proof.Fail},
		{"sudo", like("sudo", out), "user-sudo", proof.Fail},
		{"a way out without the token", like("no-token", vmprobe.Outcome{Outcome: vmprobe.Reached, Detail: "HTTP/1.1 200 OK"}), "box-no-token", proof.Unproven},
		{"a name that a resolver outside answered", like("control-dns", vmprobe.Outcome{Outcome: vmprobe.Reached, Detail: "93.184.216.34"}), "user-dns", proof.Fail},
		{"no name at all, where we redirect them", like("control-dns", vmprobe.Outcome{Outcome: vmprobe.Silent}), "user-dns", proof.Unproven},
		{"a try that was not made", like("udp4-443", vmprobe.Outcome{Outcome: vmprobe.Failed}), "box-udp4-443", proof.Unproven},
		{"a control that did not arrive", func(t vmprobe.Try) vmprobe.Outcome {
			if t.Kind == vmprobe.Proxied {
				return vmprobe.Outcome{Outcome: vmprobe.Refused}
			}
			return held(t)
		}, "box-tcp4-443", proof.Unproven},
		{"a guest that claims the control arrived", func(t vmprobe.Try) vmprobe.Outcome {
			if t.Kind == vmprobe.Proxied {
				return vmprobe.Outcome{Outcome: vmprobe.Reached, Detail: "HTTP/1.1 200 OK"}
			}
			return held(t)
		}, "box-control", proof.Unproven},
		{"a guest that lies about the host's loopback", func(t vmprobe.Try) vmprobe.Outcome {
			if t.ID == "gateway-loopback" {
				if conn, err := net.Dial("tcp", t.Target); err == nil {
					_, _ = io.WriteString(conn, t.Nonce+"\n")
					_, _ = io.ReadAll(conn)
					_ = conn.Close()
				}
			}
			return held(t)
		}, "box-gateway-loopback", proof.Fail},
	} {
		c := &Control{}
		r, err := RunVM(t.Context(), vmOptions(c, guest(c, tt.f)))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, row := range r.Rows {
			if row.ID == tt.row {
				found = true
				if row.Result != tt.want {
					t.Errorf("%s: %s is %s (%s), want %s", tt.name, row.ID, row.Result, row.Detail, tt.want)
				}
			}
		}
		if !found || r.Verdict == proof.VerdictPass {
			t.Errorf("%s: verdict %s, row found %v", tt.name, r.Verdict, found)
		}
	}
}

func TestPlaceThatCannotBeHadIsUnproven(t *testing.T) {
	c := &Control{}
	o := vmOptions(c, guest(c, held))
	o.Places = append(o.Places, VMPlace{Name: "gone", Run: func(context.Context, []byte) ([]byte, error) { return nil, errors.New("no such place") }})
	r, err := RunVM(t.Context(), o)
	if err != nil || r.Verdict != proof.VerdictUnproven {
		t.Errorf("verdict %s, %v", r.Verdict, err)
	}
}

// A socket of this computer toward an address is seen, one toward another is not, and neither is one that was there before.
func TestSocketsAreSeen(t *testing.T) {
	dial := func(host string) net.Conn {
		l, err := net.Listen("tcp4", host+":0")
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { l.Close() })
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	fresh, old, other := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("127.0.0.4")
	dial(old.String())
	w := watchSockets([]netip.Addr{fresh, old, other}, "/no/machine")
	dial(fresh.String())
	seen, ok := w.end()
	if !ok {
		t.Skip("no /proc/net here")
	}
	if !seen[fresh] || seen[old] || seen[other] {
		t.Errorf("saw %v, want the connection to %s alone", seen, fresh)
	}
	// This process takes the machine's part: what it holds since before is a way out.
	self, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		t.Skip(err)
	}
	program, _, _ := strings.Cut(string(self), "\x00")
	seen, _ = watchSockets([]netip.Addr{fresh, old, other}, filepath.Dir(program)).end()
	if !seen[fresh] || !seen[old] || seen[other] {
		t.Errorf("of the machine's own sockets saw %v, want those to %s and %s", seen, fresh, old)
	}
}

// A machine's datagrams leave by sockets that are connected to nothing, so that what is said of them is the guest's word.
func TestNothingOfDatagramsIsSeenByTheHost(t *testing.T) {
	w := watchSockets([]netip.Addr{netip.MustParseAddr("127.0.0.2")}, "")
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.2:9"))); err != nil {
		t.Fatal(err)
	}
	if seen, _ := w.end(); len(seen) > 0 {
		t.Errorf("saw %v: these rows may be the host's", seen)
	}
	control := &Control{}
	r, err := RunVM(t.Context(), vmOptions(control, guest(control, held)))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, row := range r.Rows {
		if strings.Contains(row.ID, "-udp") || strings.HasSuffix(row.ID, "-dns") {
			rows++
			if row.SeenBy != proof.SeenByBox || row.Ring == proof.VMFirewall {
				t.Errorf("%s: ring %s, seen by the %s", row.ID, row.Ring, row.SeenBy)
			}
		}
	}
	if rows < 4 {
		t.Errorf("%d rows of datagrams", rows)
	}
}

// Root in the machine is named, and neither passes nor counts.
func TestRootInTheMachineIsNoPass(t *testing.T) {
	c := &Control{}
	r, err := RunVM(t.Context(), vmOptions(c, guest(c, held)))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if row.ID == "vm-root" {
			if row.Result != proof.NA || !strings.Contains(row.Detail, "not held by this ring") {
				t.Errorf("got %+v", row)
			}
			return
		}
	}
	t.Error("no row for it")
}

// A guest that reaches the host's IPv6 loopback is heard there, whatever it says.
func TestGuestThatLiesAboutIPv6IsHeard(t *testing.T) {
	c := &Control{}
	tried := false
	r, err := RunVM(t.Context(), vmOptions(c, guest(c, func(t vmprobe.Try) vmprobe.Outcome {
		if t.ID == "gateway-loopback6" {
			at := netip.MustParseAddrPort(t.Target) // of the gateway, which leads to loopback
			if conn, err := net.Dial("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), at.Port()).String()); err == nil {
				tried = true
				_, _ = io.WriteString(conn, t.Nonce+"\n")
				_, _ = io.ReadAll(conn)
				_ = conn.Close()
			}
		}
		return held(t)
	})))
	if err != nil {
		t.Fatal(err)
	}
	if !tried {
		t.Skip("no IPv6 here")
	}
	found := false
	for _, row := range r.Rows {
		if row.ID == "box-gateway-loopback6" {
			found = row.Result == proof.Fail && row.SeenBy == proof.SeenByHost
		}
	}
	if !found || r.Verdict != proof.VerdictFail {
		t.Errorf("verdict %s, want a fail that the host saw", r.Verdict)
	}
}

// In a machine without IPv6 nothing is refused over it, so those rows count for nothing; where something arrives all the same, they fail.
func TestMachineWithoutIPv6ShowsNothingOfIt(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	six := func(row string) bool {
		return strings.Contains(row, "tcp6-") || strings.Contains(row, "udp6-") || strings.HasSuffix(row, "6")
	}
	for detail, want := range map[string]proof.Result{
		"dial tcp [2001:db8::1]:443: connect: network is unreachable": proof.NA,
		"dial tcp [fe80::2%eth0]:9: connect: no route to host":        proof.NA,
		vmprobe.NoIPv6: proof.NA,
		"dial tcp [2001:db8::1]:443: connect: connection refused": proof.Pass,
	} {
		c := &Control{}
		o := vmOptions(c, guest(c, func(t vmprobe.Try) vmprobe.Outcome {
			to, err := netip.ParseAddr(t.Target)
			if err != nil {
				to = hostOf(t.Target)
			}
			if to.Is6() {
				return vmprobe.Outcome{Outcome: vmprobe.Refused, Detail: detail}
			}
			return held(t)
		}))
		o.Addrs = addrs
		r, err := RunVM(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, row := range r.Rows {
			if six(row.ID) {
				seen++
				if row.Result != want {
					t.Errorf("%s: %s is %s", detail, row.ID, row.Result)
				}
			} else if row.Result == proof.NA && row.ID != "vm-root" {
				t.Errorf("%s is %s", row.ID, row.Result)
			}
		}
		if seen < 10 || r.Verdict != proof.VerdictPass {
			t.Errorf("%s: %d rows, verdict %s", detail, seen, r.Verdict)
		}
	}
	// A guest that says so of IPv4 gets no row out of it.
	c := &Control{}
	r, err := RunVM(t.Context(), vmOptions(c, guest(c, func(t vmprobe.Try) vmprobe.Outcome {
		if t.ID == "tcp4-443" {
			return vmprobe.Outcome{Outcome: vmprobe.Refused, Detail: "network is unreachable"}
		}
		return held(t)
	})))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if row.ID == "user-tcp4-443" && row.Result != proof.Pass {
			t.Errorf("IPv4: %+v", row)
		}
	}
}
