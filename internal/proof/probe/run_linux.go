package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// prober holds what the probes of one run share.
type prober struct {
	plan        Plan
	descriptors Finding // taken first, before we opened anything
	walked      func() walk
}

// parallel is how many probes run at once.
const parallel = 24

// tryAll runs the controls, then every probe, then the controls again: a
// refusal counts only while the way in was open.
func tryAll(ctx context.Context, plan Plan) ([]Finding, error) {
	p := &prober{plan: plan}
	p.descriptors = p.openDescriptors()
	p.walked = sync.OnceValue(func() walk { return p.walk(ctx) })

	before := p.each(ctx, p.controls())
	if plan.AsRoot {
		p.flush()
	}
	findings := p.each(ctx, p.probes())
	after := p.each(ctx, p.controls())
	return slices.Concat(findings, bothReached(before, after)), nil
}

// bothReached merges the controls of before and after.
func bothReached(before, after []Finding) []Finding {
	merged := slices.Clone(after)
	for i, b := range before {
		if b.Outcome != Reached {
			merged[i] = b
		} else if after[i].Outcome != Reached {
			merged[i].Detail = "answered before the probes but not after them: " + after[i].Detail
		}
	}
	return merged
}

// attempt is one row's probe.
type attempt struct {
	id  string
	try func(ctx context.Context, id string) Finding
}

// each runs attempts side by side and returns their findings in order.
func (p *prober) each(ctx context.Context, attempts []attempt) []Finding {
	findings := make([]Finding, len(attempts))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, a := range attempts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if ctx.Err() != nil {
				findings[i] = Finding{ID: a.id, Outcome: Errored, Detail: "no time left"}
				return
			}
			findings[i] = a.try(ctx, a.id)
			findings[i].ID = a.id
			if f := &findings[i]; f.Outcome == Skipped && f.Detail == noAddrs && p.plan.Permitted {
				f.Outcome, f.Detail = Errored, allPermitted
			}
		})
	}
	wg.Wait()
	return findings
}

func (p *prober) probes() []attempt {
	return []attempt{
		{"unix-walk", p.unixWalk}, // the longest first
		{"silence-443", p.silence443},

		{"tcp4-direct", p.tcp4Direct},
		{"tcp6-direct", p.tcp6Direct},
		{"tcp6-embedded", p.tcp6Embedded},
		{"tcp4-fastopen", p.tcp4FastOpen},
		{"tcp4-other-transports", p.otherTransports},
		{"tcp4-dns", p.tcp4DNS},
		{"tcp6-dns", p.tcp6DNS},
		{"tcp4-dot", p.tcp4DoT},
		{"udp4-dns", p.udp4DNS},
		{"udp6-dns", p.udp6DNS},
		{"udp-multicast", p.udpMulticast},
		{"udp443", p.udp443},
		{"udp-other", p.udpOther},
		{"dns-data", p.dnsData},
		{"icmp4", p.icmp4},
		{"icmp6", p.icmp6},
		{"raw-socket", p.rawSocket},
		{"packet-socket", p.packetSocket},
		{"vsock", p.vsock},
		{"socket-families", p.socketFamilies},
		{"tcp4-host-loopback", p.tcp4HostLoopback},
		{"tcp6-host-loopback", p.tcp6HostLoopback},
		{"tcp4-host-loopback-name", p.hostLoopbackName},
		{"tcp4-host-address", p.tcp4HostAddress},
		{"tcp6-host-address", p.tcp6HostAddress},
		{"udp-host", p.udpHost},
		{"tcp4-metadata", p.tcp4Metadata},
		{"tcp6-metadata", p.tcp6Metadata},
		{"tcp4-second-hop", p.secondHop},

		{"unix-docker", p.unixPaths},
		{"unix-podman", p.unixPaths},
		{"unix-dbus", p.unixPaths},
		{"unix-ssh-agent", p.unixPaths},
		{"unix-x11", p.unixPaths},
		{"unix-wayland", p.unixPaths},
		{"control-socket", p.unixPaths},
		{"abstract-unix", p.abstractUnix},

		{"proxy-connect", p.proxyConnect},
		{"proxy-socks", p.proxySOCKS},
		{"sni-mismatch", p.sniMismatch},
		{"inner-connect", p.innerConnect},

		{"state-dir", p.hostFiles},
		{"ca-key", p.hostFiles},
		{"secrets", p.hostFiles},
		{"dotfiles", p.hostFiles},
		{"environment", p.environment},
		{"descriptors", func(context.Context, string) Finding { return p.descriptors }},
		{"launcher-exe", p.launcherExe},
		{"repo-secrets", p.repoSecrets},

		{"write-outside", p.writeOutside},
		{"repo-protected", p.repoProtected},
		{"remount", p.remount},
		{"mount-api", p.mountAPI},
		{"proc-sys", p.procSys},
		{"core-pattern", p.corePattern},
		{"sysrq", p.sysrq},
		{"uevent", p.uevent},
		{"proc-memory", p.procMemory},
		{"sys-absent", p.sysAbsent},
		{"devices", p.deviceNodes},
		{"setuid-bits", p.setuidBits},

		{"privileges", p.privileges},
		{"net-admin", p.netAdmin},
		{"userns", p.userns},
		{"clone3", p.clone3},
		{"kernel-doors", p.kernelDoors},
		{"tiocsti", p.tiocsti},
		{"syscall32", p.syscall32},
		{"ptrace-host", p.ptraceHost},
		{"processes-host", p.processesHost},
	}
}

// tally sums the tries of one row up: the worst decides, and is told.
type tally struct {
	mu    sync.Mutex // guards all below
	tried int
	mute  int // tries that showed nothing
	worst Outcome
	notes []string // of the worst so far
	peers []Peer
}

// severity orders outcomes: what got out outweighs what could not be tried,
// which outweighs what showed nothing.
func severity(o Outcome) int {
	switch o {
	case Reached:
		return 6
	case Errored:
		return 5
	case Silent:
		return 4
	case Noted:
		return 3
	case Refused:
		return 2
	case Absent, Clean:
		return 1
	case Skipped:
		return 0
	}
	return 5
}

func (t *tally) add(o Outcome, what, how string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tried++
	if o == Silent || o == Errored {
		t.mute++
	}
	if t.worst == "" || severity(o) > severity(t.worst) {
		t.worst, t.notes = o, nil
	}
	if o == t.worst && len(t.notes) < 6 {
		note := what
		if how != "" {
			note += ": " + how
		}
		t.notes = append(t.notes, note)
	}
}

// futile reports whether enough tries showed nothing: the row is lost anyway.
func (t *tally) futile() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mute >= 3
}

// finding returns the row; nothing says why there was nothing to try.
func (t *tally) finding(nothing string) Finding {
	if t.tried == 0 {
		return Finding{Outcome: Skipped, Detail: nothing}
	}
	detail := strings.Join(t.notes, "; ")
	if t.tried > len(t.notes) {
		detail = fmt.Sprintf("%d tried; %s", t.tried, detail)
	}
	if len(detail) > 800 {
		detail = detail[:800] + "…"
	}
	return Finding{Outcome: t.worst, Detail: detail, Peers: t.peers}
}

// fromError sorts the error of a connect, send, open or system call.
func fromError(err error) (Outcome, string) {
	var errno syscall.Errno
	switch {
	case err == nil:
		return Reached, ""
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return Silent, "no answer"
	case !errors.As(err, &errno):
		return Errored, err.Error()
	}
	switch errno {
	case unix.ECONNREFUSED, unix.ECONNRESET, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN,
		unix.EACCES, unix.EPERM, unix.EROFS, unix.EADDRNOTAVAIL, unix.EINVAL, unix.ENOSYS, unix.EPIPE, unix.ETXTBSY,
		unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EPROTOTYPE, unix.EOPNOTSUPP, unix.ENOPROTOOPT,
		unix.ENODEV, unix.ENXIO, unix.ELOOP, unix.ENOTDIR, unix.EISDIR:
		return Refused, errno.Error()
	case unix.ENOENT:
		return Absent, "not there"
	case unix.ETIMEDOUT, unix.EAGAIN:
		return Silent, "no answer"
	}
	return Errored, errno.Error()
}
