package battery

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"foldyard/internal/proof"
	"foldyard/internal/proof/vmprobe"
)

// VMPlace is somewhere in the machine that probes start from.
type VMPlace struct {
	Name  string // as rows name it
	Title string
	// Run runs vmprobe.Main there with the plan, and returns what it wrote. An error is a place that could not be had.
	Run func(ctx context.Context, plan []byte) ([]byte, error)
	// Direct is a place whose own socket stack is the machine's: names are asked for anywhere, and sent to us.
	Direct bool
}

// VMOptions say what to probe in a machine, and what it must not reach.
type VMOptions struct {
	Box, BootID, Digest string
	Places              []VMPlace
	Control             *Control
	ControlName         string
	Now                 func() time.Time
	Addrs               []netip.Addr // outside addresses to try raw
	Gateway             netip.Addr   // the host, as the machine sees it
	Proxy               string       // the box's way out, an URL with its token
	BareProxy           string       // the same without
	Closed              []uint16     // the port of the host's loopback where the machine's own ssh is forwarded
	Free                []uint16     // ports to listen on for the time of the run: likewise, of the project's band
	Synthetic           []netip.Prefix
	Repo                string
	Version             string
	Kernel              string // the guest's
}

// VerifyVM runs the machine's battery and stores its report as the box's evidence.
func VerifyVM(ctx context.Context, o VMOptions, store proof.Store) (proof.Report, error) {
	if err := store.Drop(o.Box, proof.AsUser); err != nil {
		return proof.Report{}, err
	}
	report, err := RunVM(ctx, o)
	if err != nil {
		return proof.Report{}, err
	}
	return report, store.Put(report)
}

// vmTry is a try and how it is judged.
type vmTry struct {
	vmprobe.Try
	title   string
	watched bool // the host would see a socket of the machine's toward it
	heard   bool // the host listens there
	own     bool // only where the socket stack is the machine's own
	warn    bool // worth knowing; no matter of the wall
}

// RunVM runs the machine's battery.
func RunVM(ctx context.Context, o VMOptions) (proof.Report, error) {
	report := proof.Report{
		Box: o.Box, As: proof.AsUser, Ring: proof.VMFirewall, At: o.Now().UTC(), BootID: o.BootID, Digest: o.Digest,
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Kernel: o.Kernel, Version: o.Version, Residuals: proof.Residuals("lima"),
	}
	nonce := newNonce()
	answer := o.Control.expect(nonce)
	defer o.Control.forget(nonce)
	ears, err := listenVM(o.Free, nonce)
	if err != nil {
		return proof.Report{}, err
	}
	defer ears.close()
	for _, p := range o.Places {
		if ctx.Err() != nil {
			return proof.Report{}, ctx.Err()
		}
		report.Rows = append(report.Rows, o.place(ctx, p, nonce, answer, ears)...)
	}
	report.Verdict = proof.Judge(report.Rows)
	return report, nil
}

// tries are what is attempted from each place.
func (o VMOptions) tries(nonce string, open []uint16) []vmTry {
	at := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	var out []vmTry
	add := func(t vmTry) { out = append(out, t) }
	for _, a := range o.Addrs {
		f := "4"
		if a.Is6() {
			f = "6"
		}
		for _, port := range []uint16{443, 80, 22, 853} {
			add(vmTry{Try: vmprobe.Try{ID: fmt.Sprintf("tcp%s-%d", f, port), Kind: vmprobe.TCP, Target: at(a, port)}, title: fmt.Sprintf("TCP to an address of the world, port %d", port), watched: true})
		}
		add(vmTry{Try: vmprobe.Try{ID: "udp" + f + "-443", Kind: vmprobe.UDP, Target: at(a, 443)}, title: "QUIC to an address of the world", watched: true})
		if a.Is4() {
			add(vmTry{Try: vmprobe.Try{ID: "icmp4", Kind: vmprobe.ICMP, Target: a.String()}, title: "an echo request to an address of the world"})
		}
	}
	for i, port := range open {
		id := "gateway-loopback" // any port of the host
		if i > 0 {
			id = fmt.Sprintf("gateway-band-%d", i) // of the project's own, and not for the machine
		}
		add(vmTry{Try: vmprobe.Try{ID: id, Kind: vmprobe.TCP, Target: at(o.Gateway, port), Nonce: nonce}, title: "the host's loopback outside what the VM may reach", heard: true})
	}
	for _, port := range o.Closed {
		add(vmTry{Try: vmprobe.Try{ID: "gateway-ssh", Kind: vmprobe.TCP, Target: at(o.Gateway, port)}, title: "a service of the host's own at the gateway"})
	}
	add(vmTry{Try: vmprobe.Try{ID: "metadata", Kind: vmprobe.TCP, Target: "169.254.169.254:80"}, title: "a cloud's metadata service", watched: true})
	add(vmTry{Try: vmprobe.Try{ID: "neighbour", Kind: vmprobe.TCP, Target: "192.168.5.3:443"}, title: "a neighbour on the VM's network"})
	add(vmTry{Try: vmprobe.Try{ID: "multicast", Kind: vmprobe.UDP, Target: "224.0.0.251:5353"}, title: "neighbours by multicast"})
	add(vmTry{Try: vmprobe.Try{ID: "dhcp", Kind: vmprobe.UDP, Target: "192.168.5.2:67"}, title: "the network's DHCP server"})
	add(vmTry{Try: vmprobe.Try{ID: "raw-socket", Kind: vmprobe.Raw}, title: "a raw socket", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "packet-socket", Kind: vmprobe.Packet}, title: "a packet socket (ARP)", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "sudo", Kind: vmprobe.Run, Argv: []string{"sudo", "-n", "true"}}, title: "root by sudo", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "rootful-engine", Kind: vmprobe.Run, Argv: []string{"test", "-e", "/run/podman/podman.sock"}}, title: "the rootful engine's socket", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "boot-script", Kind: vmprobe.Run, Argv: []string{"ls", "/mnt/lima-cidata"}}, title: "the disk that holds the boot script", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "firewall-file", Kind: vmprobe.Write, Target: "/etc/foldyard/firewall.nft"}, title: "writing the firewall's file", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "ca-file", Kind: vmprobe.Write, Target: "/etc/foldyard/ca.pem"}, title: "writing the CA", own: true})
	add(vmTry{Try: vmprobe.Try{ID: "own-program", Kind: vmprobe.Write, Target: "/opt/foldyard/planted"}, title: "writing our own program", own: true})
	return out
}

// place runs everything from one place and judges it.
func (o VMOptions) place(ctx context.Context, p VMPlace, nonce, answer string, ears *vmEars) []proof.Row {
	tries := slices.DeleteFunc(o.tries(nonce, ears.ports), func(t vmTry) bool { return t.own && !p.Direct })
	plan := []vmprobe.Try{
		{ID: p.Name + "-control-tcp", Kind: vmprobe.Proxied, Target: o.Proxy, Name: o.ControlName, Nonce: nonce},
		{ID: "no-token", Kind: vmprobe.Proxied, Target: o.BareProxy, Name: o.ControlName, Nonce: nonce},
		{ID: "control-dns", Kind: vmprobe.DNS, Target: netip.AddrPortFrom(nowhere(), 53).String(), Name: o.ControlName},
	}
	for _, t := range tries {
		plan = append(plan, t.Try)
	}
	row := func(id, title string, result proof.Result, seen proof.SeenBy, detail string) proof.Row {
		return proof.Row{ID: p.Name + "-" + id, Title: title + ", " + p.Title, Ring: proof.VMFirewall, Expect: proof.ExpectRefused, Control: "the way out answers from there", Result: result, SeenBy: seen, Detail: detail}
	}
	input, err := json.Marshal(plan)
	if err != nil {
		return []proof.Row{row("plan", "the plan", proof.Unproven, proof.SeenByHost, err.Error())}
	}
	watch := watchSockets(o.watchedAddrs())
	out, err := p.Run(ctx, input)
	seen, watching := watch.end()
	var got []vmprobe.Outcome
	if err == nil {
		err = json.NewDecoder(io.LimitReader(bytes.NewReader(out), 4<<20)).Decode(&got)
	}
	if err != nil {
		return []proof.Row{row("place", "probes", proof.Unproven, proof.SeenByHost, "they could not be run there: "+err.Error())}
	}
	by := map[string]vmprobe.Outcome{}
	for _, g := range got {
		by[g.ID] = g
	}
	// The control counts when it arrived here, whatever the guest says of it.
	control := o.Control.hits(nonce)[p.Name+"-control-tcp"] > 0
	rows := []proof.Row{{
		ID: p.Name + "-control", Title: "the box's way out answers, " + p.Title, Ring: proof.VMFirewall, Expect: proof.ExpectReached,
		Control: "-", Result: map[bool]proof.Result{true: proof.Pass, false: proof.Unproven}[control && strings.Contains(by[p.Name+"-control-tcp"].Detail, answer)],
		SeenBy: proof.SeenByHost, Detail: by[p.Name+"-control-tcp"].Detail,
	}}
	tokenless := row("no-token", "the way out without the box's token", proof.Fail, proof.SeenByHost, by["no-token"].Detail)
	switch {
	case o.Control.hits(nonce)["no-token"] == 0 && strings.Contains(by["no-token"].Detail, " 407 "):
		tokenless.Result = proof.Pass
	case o.Control.hits(nonce)["no-token"] == 0:
		tokenless.Result = proof.Unproven
	}
	names := o.names(p, row, by["control-dns"])
	switch {
	case seen[nowhere()]:
		names.Result, names.Detail = proof.Fail, "the host saw the question leave: "+names.Detail
	case !watching:
		names.Ring, names.SeenBy = proof.Capture, proof.SeenByBox
	}
	rows = append(rows, tokenless, names)
	for _, t := range tries {
		g, ok := by[t.ID]
		r := row(t.ID, t.title, proof.Unproven, proof.SeenByHost, g.Detail)
		if !t.heard && !(t.watched && watching) {
			// Only the guest can tell: it is said, and a way out counts, but nothing rests on it.
			r.Ring, r.SeenBy = proof.Capture, proof.SeenByBox
		}
		inside := t.Kind == vmprobe.Run || t.Kind == vmprobe.Write || t.Kind == vmprobe.Raw || t.Kind == vmprobe.Packet
		switch {
		case !ok || g.Outcome == vmprobe.Failed:
		case g.Outcome == vmprobe.Reached, t.heard && ears.heard(t.Target), t.watched && seen[hostOf(t.Target)]:
			r.Result = proof.Fail
			if g.Outcome != vmprobe.Reached {
				r.Detail = "the host saw it arrive, whatever the guest says: " + r.Detail
			}
		case !control && !inside:
			r.Detail = "the control did not arrive: " + r.Detail
		default:
			r.Result = proof.Pass
		}
		rows = append(rows, r)
	}
	return rows
}

// names judges a question put to an address that has no resolver: only our own answer may come back.
func (o VMOptions) names(p VMPlace, row func(id, title string, result proof.Result, seen proof.SeenBy, detail string) proof.Row, g vmprobe.Outcome) proof.Row {
	r := row("dns", "a question to a resolver outside gets our answer or none", proof.Fail, proof.SeenByHost, g.Detail)
	switch {
	case g.Outcome == vmprobe.Refused || g.Outcome == vmprobe.Silent:
		r.Result = proof.Pass
		if p.Direct { // there we redirect it
			r.Result = proof.Unproven
		}
	case g.Outcome == vmprobe.Reached && g.Detail != "":
		ours := true
		for _, f := range strings.Fields(g.Detail) {
			a, err := netip.ParseAddr(f)
			ours = ours && err == nil && slices.ContainsFunc(o.Synthetic, func(n netip.Prefix) bool { return n.Contains(a) })
		}
		if ours {
			r.Result = proof.Pass
		}
	case g.Outcome != vmprobe.Reached:
		r.Result = proof.Unproven
	}
	return r
}

func (o VMOptions) watchedAddrs() []netip.Addr {
	return append(slices.Clone(o.Addrs), netip.AddrFrom4([4]byte{169, 254, 169, 254}), nowhere())
}

// nowhere is an address where no resolver is: a documentation address.
func nowhere() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, 53}) }

func hostOf(target string) netip.Addr {
	ap, err := netip.ParseAddrPort(target)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr()
}

// vmEars listen on ports of the host's loopback that the machine must not reach, and know what came.
type vmEars struct {
	ports []uint16
	ls    []net.Listener
	mu    sync.Mutex // guards got
	got   map[uint16]bool
}

func listenVM(ports []uint16, nonce string) (*vmEars, error) {
	e := &vmEars{got: map[uint16]bool{}}
	for _, port := range append([]uint16{0}, ports...) {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			e.close()
			return nil, fmt.Errorf("listen for what must not come: %w", err)
		}
		at, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			e.close()
			return nil, errors.New("listen for what must not come: no TCP address")
		}
		n := uint16(at.Port)
		e.ports, e.ls = append(e.ports, n), append(e.ls, l)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // the read shows it
					line, _ := bufio.NewReader(io.LimitReader(c, 256)).ReadString('\n')
					if strings.Contains(line, nonce) {
						e.mu.Lock()
						e.got[n] = true
						e.mu.Unlock()
					}
				}()
			}
		}()
	}
	return e, nil
}

func (e *vmEars) heard(target string) bool {
	ap, err := netip.ParseAddrPort(target)
	e.mu.Lock()
	defer e.mu.Unlock()
	return err == nil && e.got[ap.Port()]
}

func (e *vmEars) close() {
	for _, l := range e.ls {
		_ = l.Close() // ends its loop
	}
}

// socketWatch looks at this computer's own sockets while probes run: the machine's packets leave as sockets of its process.
type socketWatch struct {
	stop, done chan struct{}
	seen       map[netip.Addr]bool
	ok         bool
}

func watchSockets(addrs []netip.Addr) *socketWatch {
	w := &socketWatch{stop: make(chan struct{}), done: make(chan struct{}), seen: map[netip.Addr]bool{}}
	want := map[string]netip.Addr{}
	for _, a := range addrs {
		want[procAddr(a)] = a
	}
	go func() {
		defer close(w.done)
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		for {
			w.ok = w.look(want)
			select {
			case <-w.stop:
				return
			case <-t.C:
			}
		}
	}()
	return w
}

// look reads the kernel's tables, and reports whether it could.
func (w *socketWatch) look(want map[string]netip.Addr) bool {
	read := 0
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		b, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue
		}
		read++
		for line := range strings.Lines(string(b)) {
			col := strings.Fields(line)
			if len(col) < 4 {
				continue
			}
			remote, _, _ := strings.Cut(col[2], ":")
			if a, ok := want[remote]; ok {
				w.seen[a] = true
			}
		}
	}
	return read > 0
}

// end stops looking. It returns the addresses that a socket was seen toward, and whether anything could be seen.
func (w *socketWatch) end() (seen map[netip.Addr]bool, ok bool) {
	close(w.stop)
	<-w.done
	return w.seen, w.ok
}

// procAddr writes an address as /proc/net does: words of four bytes, each backwards.
func procAddr(a netip.Addr) string {
	b := a.AsSlice()
	var s strings.Builder
	for i := 0; i+4 <= len(b); i += 4 {
		fmt.Fprintf(&s, "%02X%02X%02X%02X", b[i+3], b[i+2], b[i+1], b[i])
	}
	return s.String()
}
