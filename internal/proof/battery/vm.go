package battery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"strings"
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
	Dir                 string // that the machine's own processes on this computer name on their command lines; "" if there is none
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
	watched bool           // the host would see a socket of the machine's toward it: for TCP alone, user-mode networks do not connect others
	ear     netip.AddrPort // where the host listens for it; zero: nowhere
	own     bool           // only where the socket stack is the machine's own
	warn    bool           // worth knowing; no matter of the wall
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
	report.Rows = append(report.Rows, proof.Row{
		ID: "vm-root", Title: "root in the VM", Ring: proof.VMFirewall, Expect: proof.ExpectReached, Control: "-", Result: proof.NA, SeenBy: proof.SeenByHost,
		Detail: "not held by this ring: whoever is root in the VM takes its firewall away",
	})
	report.Verdict = proof.Judge(report.Rows)
	return report, nil
}

// tries are what is attempted from each place.
func (o VMOptions) tries(nonce string, ears []netip.AddrPort) []vmTry {
	at := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	const outside = "the host's loopback outside what the VM may reach"
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
		add(vmTry{Try: vmprobe.Try{ID: "udp" + f + "-443", Kind: vmprobe.UDP, Target: at(a, 443)}, title: "QUIC to an address of the world"})
		if a.Is4() {
			add(vmTry{Try: vmprobe.Try{ID: "icmp4", Kind: vmprobe.ICMP, Target: a.String()}, title: "an echo request to an address of the world"})
		}
	}
	band := 0
	for i, ear := range ears {
		switch {
		case i == 0: // any port of the host
			add(vmTry{Try: vmprobe.Try{ID: "gateway-loopback", Kind: vmprobe.TCP, Target: at(o.Gateway, ear.Port()), Nonce: nonce}, title: outside, ear: ear})
		case ear.Addr().Is4(): // of the project's own, and not for the machine
			band++
			add(vmTry{Try: vmprobe.Try{ID: fmt.Sprintf("gateway-band-%d", band), Kind: vmprobe.TCP, Target: at(o.Gateway, ear.Port()), Nonce: nonce}, title: outside, ear: ear})
		default:
			add(vmTry{Try: vmprobe.Try{ID: "gateway-loopback6", Kind: vmprobe.TCP, Target: at(gateway6(), ear.Port()), Nonce: nonce}, title: "the host's loopback over IPv6", ear: ear})
			add(vmTry{Try: vmprobe.Try{ID: "link-local6", Kind: vmprobe.LinkLocal, Target: at(router6(), ear.Port()), Nonce: nonce}, title: "the router's link-local address", ear: ear})
		}
	}
	for _, port := range o.Closed {
		add(vmTry{Try: vmprobe.Try{ID: "gateway-ssh", Kind: vmprobe.TCP, Target: at(o.Gateway, port)}, title: "a service of the host's own at the gateway"})
	}
	add(vmTry{Try: vmprobe.Try{ID: "metadata", Kind: vmprobe.TCP, Target: "169.254.169.254:80"}, title: "a cloud's metadata service", watched: true})
	add(vmTry{Try: vmprobe.Try{ID: "link-local-icmp6", Kind: vmprobe.ICMP, Target: router6().String()}, title: "an echo request to the router's link-local address", own: true}) // a container's own link has such a router too
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
	tries := slices.DeleteFunc(o.tries(nonce, ears.at), func(t vmTry) bool { return t.own && !p.Direct })
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
	watch := watchSockets(o.watchedAddrs(), o.Dir)
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
	default: // it need not see one: see watched
		names.Ring, names.SeenBy = proof.Capture, proof.SeenByBox
	}
	rows = append(rows, tokenless, names)
	for _, t := range tries {
		g, ok := by[t.ID]
		r := row(t.ID, t.title, proof.Unproven, proof.SeenByHost, g.Detail)
		if !t.ear.IsValid() && !(t.watched && watching) {
			// Only the guest can tell: it is said, and a way out counts, but nothing rests on it.
			r.Ring, r.SeenBy = proof.Capture, proof.SeenByBox
		}
		inside := t.Kind == vmprobe.Run || t.Kind == vmprobe.Write || t.Kind == vmprobe.Raw || t.Kind == vmprobe.Packet
		switch {
		case !ok || g.Outcome == vmprobe.Failed:
		case g.Outcome == vmprobe.Reached, ears.heard(t.ear), t.watched && seen[hostOf(t.Target)]:
			r.Result = proof.Fail
			if g.Outcome != vmprobe.Reached {
				r.Detail = "the host saw it arrive, whatever the guest says: " + r.Detail
			}
		case nowayIPv6(t.Try, g):
			r.Result, r.Detail = proof.NA, "nothing was refused: the machine has no way there over IPv6: "+g.Detail
		case !control && !inside:
			r.Detail = "the control did not arrive: " + r.Detail
		default:
			r.Result = proof.Pass
		}
		rows = append(rows, r)
	}
	return rows
}

// nowayIPv6 reports whether a try over IPv6 ended before any firewall: in a machine without IPv6 nothing is refused, and nothing shown.
// A guest that says so without its being so gains nothing: the row counts for nothing, and what arrives was judged before.
func nowayIPv6(t vmprobe.Try, g vmprobe.Outcome) bool {
	to, err := netip.ParseAddr(t.Target)
	if err != nil {
		to = hostOf(t.Target)
	}
	if !to.Is6() || g.Outcome == vmprobe.Reached {
		return false
	}
	return vmprobe.NoWay(g.Detail)
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

// gateway6 is the host's loopback as QEMU's user-mode network shows it over IPv6, and router6 that network's router, on every link.
func gateway6() netip.Addr { return netip.MustParseAddr("fec0::2") }

func router6() netip.Addr { return netip.MustParseAddr("fe80::2") }

// nowhere is an address where no resolver is: a documentation address.
func nowhere() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, 53}) }

func hostOf(target string) netip.Addr {
	ap, err := netip.ParseAddrPort(target)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr()
}
