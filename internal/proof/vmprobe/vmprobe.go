// Package vmprobe tries to get out of a virtual machine, from wherever it is
// started in there: in the box's container, beside it as the VM's user, in
// containers of other kinds. Start with Main. It reads a plan, tries, and says
// what happened; it judges nothing, and its word is the guest's.
package vmprobe

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Verb is how our own program is told to probe.
const Verb = "__vmprobe"

// Kinds of tries.
const (
	TCP       = "tcp"       // connect to Target, send Nonce, and hold the connection
	UDP       = "udp"       // send Nonce to Target
	ICMP      = "icmp"      // an echo request to Target; to a link-local address, on each link
	Raw       = "raw"       // open a raw socket
	Packet    = "packet"    // open a packet socket
	DNS       = "dns"       // ask Target for Name; Detail is the answer
	LinkLocal = "linklocal" // as TCP, to Target on each link
	Proxied   = "proxied"   // GET http://Name/probe/Nonce/ID by the proxy at Target, an URL; Detail is the status and body
	Run       = "run"       // run Argv; reached is exit status 0
	Write     = "write"     // open the file Target for writing
)

// NoIPv6 is the detail of a try that found no link for it.
const NoIPv6 = "no link has IPv6"

// Outcomes.
const (
	Reached = "reached"
	Refused = "refused" // an error, at once
	Silent  = "silent"  // no answer in time
	Failed  = "failed"  // could not be tried
)

// Try is one attempt.
type Try struct {
	ID     string   `json:"id"`
	Kind   string   `json:"kind"`
	Target string   `json:"target,omitempty"`
	Name   string   `json:"name,omitempty"`
	Nonce  string   `json:"nonce,omitempty"`
	Argv   []string `json:"argv,omitempty"`
}

// Outcome is what came of one.
type Outcome struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// Bounds of one run.
const (
	maxPlan  = 1 << 20
	parallel = 8
	patience = 8 * time.Second        // an emulated guest is slow
	hold     = 700 * time.Millisecond // how long a connection that was made is kept, to be seen
)

// Nested, as the only argument, has the probes made by a process in namespaces of its own, as those of a container in a container are.
const Nested = "nested"

// Main reads a plan, a JSON list of tries, and writes the outcomes: from in to out, or where args name two files from the one to the other.
func Main(ctx context.Context, args []string, in io.Reader, out io.Writer) int {
	switch len(args) {
	case 0:
		return attempt(ctx, in, out)
	case 1:
		if args[0] == Nested {
			return nested(ctx, in, out)
		}
	case 2:
		plan, err := os.Open(args[0])
		if err != nil {
			return 2
		}
		defer plan.Close()
		done, err := os.Create(args[1])
		if err != nil {
			return 2
		}
		code := attempt(ctx, plan, done)
		if done.Close() != nil {
			return 1
		}
		return code
	}
	return 2
}

func attempt(ctx context.Context, in io.Reader, out io.Writer) int {
	var plan []Try
	if err := json.NewDecoder(io.LimitReader(in, maxPlan)).Decode(&plan); err != nil {
		return 2
	}
	done := make([]Outcome, len(plan))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, t := range plan {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			outcome, detail := t.run(ctx)
			done[i] = Outcome{t.ID, outcome, cut(detail)}
		})
	}
	wg.Wait()
	if json.NewEncoder(out).Encode(done) != nil {
		return 1
	}
	return 0
}

func cut(s string) string { return s[:min(len(s), 300)] }

func (t Try) run(ctx context.Context) (outcome, detail string) {
	switch t.Kind {
	case TCP:
		return t.tcp(ctx)
	case UDP:
		return t.udp(ctx)
	case ICMP:
		return t.icmp(ctx)
	case Raw:
		return opened(syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP))
	case Packet:
		return opened(syscall.Socket(17 /* AF_PACKET, which is Linux's */, syscall.SOCK_RAW, 0))
	case LinkLocal:
		return t.linkLocal(ctx)
	case DNS:
		return t.dns(ctx)
	case Proxied:
		return t.proxied(ctx)
	case Run:
		return t.command(ctx)
	case Write:
		f, err := os.OpenFile(t.Target, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return failure(ctx, err)
		}
		return Reached, "opened for writing" + closing(f)
	}
	return Failed, "unknown kind"
}

func closing(c io.Closer) string {
	if err := c.Close(); err != nil {
		return ", and " + err.Error()
	}
	return ""
}

func opened(fd int, err error) (outcome, detail string) {
	if err != nil {
		return Refused, err.Error()
	}
	_ = syscall.Close(fd) // it was there: that is the outcome
	return Reached, "opened"
}

// failure tells an error from silence.
func failure(ctx context.Context, err error) (outcome, detail string) {
	var timeout interface{ Timeout() bool }
	if ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
		return Silent, err.Error()
	}
	return Refused, err.Error()
}

func (t Try) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err == nil {
		deadline, _ := ctx.Deadline()
		_ = c.SetDeadline(deadline) // an error shows in what follows
	}
	return c, err
}

func (t Try) tcp(ctx context.Context) (outcome, detail string) {
	c, err := t.dial(ctx, "tcp", t.Target)
	if err != nil {
		return failure(ctx, err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, t.Nonce) // connected is reached, whatever follows
	select {
	case <-time.After(hold):
	case <-ctx.Done():
	}
	return Reached, "connected from " + c.LocalAddr().String()
}

// linkLocal tries every link but loopback: the address means another neighbour on each.
func (t Try) linkLocal(ctx context.Context) (outcome, detail string) {
	to, err := netip.ParseAddrPort(t.Target)
	links, lerr := net.Interfaces()
	if err != nil || lerr != nil {
		return Failed, fmt.Sprint(errors.Join(err, lerr))
	}
	var names []string
	for _, l := range links {
		if l.Flags&net.FlagLoopback == 0 && l.Flags&net.FlagUp != 0 {
			names = append(names, l.Name)
		}
	}
	return onLinks(names, func(name string) (outcome, detail string) {
		on := t
		on.Target = netip.AddrPortFrom(to.Addr().WithZone(name), to.Port()).String()
		return on.tcp(ctx)
	})
}

// onLinks tries each link, and tells of the one where most came of it: reached before silent before refused. One without IPv6 says nothing
// of the others.
func onLinks(names []string, try func(name string) (outcome, detail string)) (outcome, detail string) {
	outcome, detail = Refused, NoIPv6
	none := true
	for _, name := range names {
		o, d := try(name)
		switch {
		case o == Reached:
			return o, name + ": " + d
		case NoWay(d):
		case none || o == Silent && outcome == Refused:
			outcome, detail, none = o, name+": "+d, false
		}
	}
	return outcome, detail
}

// NoWay tells from a try's detail that there was no way to send anything: no firewall refused it.
func NoWay(detail string) bool {
	for _, s := range []string{"network is unreachable", "no route to host", "cannot assign requested address", NoIPv6} {
		if strings.Contains(detail, s) {
			return true
		}
	}
	return false
}

func (t Try) udp(ctx context.Context) (outcome, detail string) {
	c, err := t.dial(ctx, "udp", t.Target)
	if err != nil {
		return failure(ctx, err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, t.Nonce); err != nil {
		return failure(ctx, err)
	}
	var b [512]byte
	n, err := c.Read(b[:])
	if err != nil {
		return failure(ctx, err)
	}
	return Reached, fmt.Sprintf("%d bytes came back", n)
}

func (t Try) icmp(ctx context.Context) (outcome, detail string) {
	a, err := netip.ParseAddr(t.Target)
	switch {
	case err != nil:
		return Failed, "want an address"
	case a.Is4():
		return echo(syscall.AF_INET, syscall.IPPROTO_ICMP, 8, 0, &syscall.SockaddrInet4{Addr: a.As4()})
	case !a.IsLinkLocalUnicast():
		return echo(syscall.AF_INET6, syscall.IPPROTO_ICMPV6, 128, 129, &syscall.SockaddrInet6{Addr: a.As16()})
	}
	links, err := net.Interfaces()
	if err != nil {
		return Failed, err.Error()
	}
	outcome, detail = Refused, NoIPv6
	for _, l := range links {
		if ctx.Err() != nil || l.Flags&net.FlagLoopback != 0 || l.Flags&net.FlagUp == 0 {
			continue
		}
		outcome, detail = echo(syscall.AF_INET6, syscall.IPPROTO_ICMPV6, 128, 129, &syscall.SockaddrInet6{Addr: a.As16(), ZoneId: uint32(l.Index)}) //nolint:gosec // G115: a link's number
		if outcome == Reached {
			return outcome, l.Name + ": " + detail
		}
	}
	return outcome, detail
}

// echo sends an echo request from a socket that needs no privilege, and waits for its answer.
func echo(family, protocol int, request, reply byte, to syscall.Sockaddr) (outcome, detail string) {
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM, protocol)
	if err != nil {
		return Refused, err.Error()
	}
	defer syscall.Close(fd)
	wait := syscall.NsecToTimeval((patience / 2).Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return Failed, err.Error()
	}
	// The kernel fills in the identifier, and on Linux the checksum: this one is an echo request's over IPv4.
	if err := syscall.Sendto(fd, []byte{request, 0, 0xf7, 0xfe, 0, 0, 0, 1}, 0, to); err != nil {
		return Refused, err.Error()
	}
	var b [64]byte
	n, _, err := syscall.Recvfrom(fd, b[:], 0)
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return Silent, "no answer"
	case err != nil:
		return Refused, err.Error()
	case n > 0 && b[0] == reply:
		return Reached, "answered"
	}
	return Silent, "no answer"
}

func (t Try) dns(ctx context.Context) (outcome, detail string) {
	name, err := dnsmessage.NewName(t.Name + ".")
	if err != nil {
		return Failed, err.Error()
	}
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(id[0])<<8 | uint16(id[1]), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	q, err := m.Pack()
	if err != nil {
		return Failed, err.Error()
	}
	c, err := t.dial(ctx, "udp", t.Target)
	if err != nil {
		return failure(ctx, err)
	}
	defer c.Close()
	if _, err := c.Write(q); err != nil {
		return failure(ctx, err)
	}
	var b [1500]byte
	n, err := c.Read(b[:])
	if err != nil {
		return failure(ctx, err)
	}
	var a dnsmessage.Message
	if err := a.Unpack(b[:n]); err != nil || a.ID != m.ID {
		return Reached, "an answer that is none"
	}
	var got []string
	for _, r := range a.Answers {
		if v, ok := r.Body.(*dnsmessage.AResource); ok {
			got = append(got, netip.AddrFrom4(v.A).String())
		}
	}
	return Reached, strings.Join(got, " ")
}

func (t Try) proxied(ctx context.Context) (outcome, detail string) {
	u, err := url.Parse(t.Target)
	if err != nil {
		return Failed, "no proxy"
	}
	c, err := t.dial(ctx, "tcp", u.Host)
	if err != nil {
		return failure(ctx, err)
	}
	defer c.Close()
	show := ""
	if u.User != nil {
		show = "Proxy-Authorization: Basic " + basic(u.User) + "\r\n"
	}
	if _, err := fmt.Fprintf(c, "GET http://%s/probe/%s/%s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", t.Name, t.Nonce, t.ID, t.Name, show); err != nil {
		return failure(ctx, err)
	}
	b, err := io.ReadAll(io.LimitReader(c, 4096))
	if len(b) == 0 {
		return failure(ctx, errors.Join(err, io.ErrUnexpectedEOF))
	}
	head, body, _ := strings.Cut(string(b), "\r\n\r\n")
	status, _, _ := strings.Cut(head, "\r\n")
	return Reached, status + " " + strings.TrimSpace(body)
}

func (t Try) command(ctx context.Context) (outcome, detail string) {
	if len(t.Argv) == 0 {
		return Failed, "no command"
	}
	out, err := exec.CommandContext(ctx, t.Argv[0], t.Argv[1:]...).CombinedOutput()
	if err != nil {
		return Refused, err.Error() + ": " + string(out)
	}
	return Reached, string(out)
}
