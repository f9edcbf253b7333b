package proof

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"foldyard/docs"
)

// Claim is one thing that foldyard says of a ring, and what it rests on. No
// text of ours says more of a ring than its claims do.
type Claim struct {
	ID        string   `json:"id"`
	Ring      Ring     `json:"ring"`
	Text      string   `json:"claim"`
	Boundary  string   `json:"boundary"`
	As        As       `json:"as"` // the power with which it must be shown
	Platforms []string `json:"platforms"`
	Rows      []string `json:"rows"`  // of the battery, all of which must pass
	Tests     []string `json:"tests"` // file: the test that shows it without a box of yours
}

// Shown is one verify as it is kept in docs/evidence: what passed, where and
// when. It names no path, address or box of the computer that it ran on.
type Shown struct {
	Ring     Ring      `json:"ring"`
	As       As        `json:"as"`
	Verdict  Verdict   `json:"verdict"`
	At       time.Time `json:"at"`
	Platform string    `json:"platform"`
	Kernel   string    `json:"kernel"`
	Version  string    `json:"version"` // of foldyard
	Passed   []string  `json:"passed"`  // rows
	Open     []string  `json:"open"`    // rows that failed or showed nothing
}

// Show returns the part of a report that may be published.
func Show(r Report) Shown {
	s := Shown{Ring: r.Ring, As: r.As, Verdict: r.Verdict, At: r.At, Platform: r.Platform, Kernel: r.Kernel, Version: r.Version, Passed: []string{}, Open: []string{}}
	for _, row := range r.Rows {
		switch row.Result {
		case Pass:
			if row.SeenBy == SeenByHost {
				s.Passed = append(s.Passed, row.ID)
			}
		case NA, Warn:
		default:
			s.Open = append(s.Open, row.ID)
		}
	}
	return s
}

// ReadShown reads evidence/*.json of a tree. A file that cannot be read is an
// error: evidence that is not understood is none.
func ReadShown(tree fs.FS) ([]Shown, error) {
	names, err := fs.Glob(tree, "evidence/*.json")
	if err != nil {
		return nil, fmt.Errorf("list evidence: %w", err)
	}
	var all []Shown
	for _, name := range names {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, fmt.Errorf("read evidence: %w", err)
		}
		var s Shown
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("evidence %s: %w", path.Base(name), err)
		}
		all = append(all, s)
	}
	return all, nil
}

// Published returns the evidence that this binary was built with.
func Published() ([]Shown, error) { return ReadShown(docs.Evidence) }

// Fresh is how long evidence of a release counts.
const Fresh = 180 * 24 * time.Hour

// ClaimState is a claim with what shows it.
type ClaimState struct {
	Claim
	Shown []Shown `json:"shown"` // newest of each platform
	Lacks string  `json:"lacks"` // what this computer's platform lacks; "" is nothing
}

// Hold holds claims against evidence. Evidence older than Fresh at now does not
// count; a zero now counts all.
func Hold(claims []Claim, evidence []Shown, now time.Time) []ClaimState {
	states := make([]ClaimState, 0, len(claims))
	own := runtime.GOOS + "/" + runtime.GOARCH
	for _, c := range claims {
		st := ClaimState{Claim: c, Shown: []Shown{}}
		for _, platform := range c.Platforms {
			if s, ok := c.shownOn(platform, evidence, now); ok {
				st.Shown = append(st.Shown, s)
			}
		}
		switch {
		case len(c.Tests) == 0 || len(c.Rows) == 0:
			st.Lacks = "nothing tests it"
		case slices.Contains(c.Platforms, own) && !slices.ContainsFunc(st.Shown, func(s Shown) bool { return s.Platform == own }):
			st.Lacks = "built, not yet shown on " + own
		}
		states = append(states, st)
	}
	return states
}

// shownOn returns the newest evidence on a platform, if that bears the claim
// out: an older pass does not outlive a newer verify that shows less.
func (c Claim) shownOn(platform string, evidence []Shown, now time.Time) (Shown, bool) {
	var newest Shown
	found := false
	for _, s := range evidence {
		if s.Ring != c.shownBy() || s.As != c.As || s.Platform != platform || found && !s.At.After(newest.At) {
			continue
		}
		newest, found = s, true
	}
	if !found || newest.Verdict != VerdictPass || !now.IsZero() && now.Sub(newest.At) > Fresh {
		return Shown{}, false
	}
	for _, row := range c.Rows {
		if !slices.Contains(newest.Passed, row) {
			return Shown{}, false
		}
	}
	return newest, true
}

// shownBy is the ring whose battery bears the claim out. The allowlist's is tried with the namespace wall's.
func (c Claim) shownBy() Ring {
	if c.Ring == VMFirewall {
		return VMFirewall
	}
	return Namespace
}

// By says in words what shows a claim on each of its platforms.
func (s ClaimState) By() string {
	var words []string
	for _, p := range s.Platforms {
		i := slices.IndexFunc(s.Shown, func(e Shown) bool { return e.Platform == p })
		if i < 0 {
			words = append(words, "built, not yet shown on "+p)
			continue
		}
		e := s.Shown[i]
		words = append(words, fmt.Sprintf("shown on %s, Linux %s, %s", p, e.Kernel, e.At.UTC().Format("2006-01-02")))
	}
	return strings.Join(words, "; ")
}

// ClaimsTable renders the claims for docs/claims.md.
func ClaimsTable(states []ClaimState) string {
	var b strings.Builder
	b.WriteString("| ring | claim | holds against | shown | tests |\n| --- | --- | --- | --- | --- |\n")
	for _, s := range states {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.Ring, s.Text, s.Boundary, s.By(), "`"+strings.Join(s.Tests, "`, `")+"`")
	}
	return b.String()
}

// Claims returns what foldyard claims.
func Claims() []Claim {
	linux := []string{"linux/amd64", "linux/arm64"}
	wall := func(id, text string, as As, tests []string, rows ...string) Claim {
		return Claim{ID: id, Ring: Namespace, Text: text, Boundary: boundary(Namespace, as), As: as, Platforms: linux, Rows: rows, Tests: tests}
	}
	const battery = "internal/proof/battery: TestBoxWithLoopbackOnlyPasses"
	const hole = "internal/proof/battery: TestHoleFailsWithAndWithoutControl"
	network := []string{
		"tcp4-direct", "tcp6-direct", "tcp6-embedded", "tcp4-fastopen", "tcp4-other-transports", "tcp4-second-hop", "tcp4-metadata", "tcp6-metadata",
		"netns-single-device", "box-processes",
	}
	places := func(rows ...string) []string {
		var out []string
		for _, place := range []string{"box", "user", "host-net", "privileged", "sub-uid", "keep-id"} {
			for _, row := range append([]string{"control"}, rows...) {
				out = append(out, place+"-"+row)
			}
		}
		return out
	}
	vm := func(id, text string, tests []string, rows ...string) Claim {
		return Claim{ID: id, Ring: VMFirewall, Text: text, Boundary: boundary(VMFirewall, AsUser), As: AsUser, Platforms: []string{"linux/amd64"}, Rows: places(rows...), Tests: tests}
	}
	const table = "internal/wall/ruleset: TestGuestTableAgainstBypasses"
	return []Claim{
		vm("vm-out", "No TCP connection leaves the VM by itself, from the box, its VM's user, or a container with the host's network or privileges.",
			[]string{table, "internal/proof/battery: TestEveryWayOutOfAMachineFails"}, "tcp4-443", "tcp4-80", "tcp4-22", "tcp4-853", "metadata"),
		vm("vm-host", "Of the host's loopback, which a VM's gateway opens whole, only foldyard's own ports are reached, and nothing on them without the box's token.",
			[]string{table, "internal/egress/proxy: TestTokenOfTheBoxOrNothing"}, "gateway-loopback", "gateway-band-1", "gateway-band-2", "no-token"),
		wall("tcp", "Every TCP connection that the box opens ends in foldyard or is refused; IPv6 as well as IPv4.", AsUser, []string{hole, "internal/wall/namespace: TestRefusedTrafficEndsAtOnceAndIsTold"}, network...),
		wall("udp", "No datagram and no echo request leaves the box, QUIC included.", AsUser, []string{battery},
			"udp443", "udp-other", "udp-multicast", "icmp4", "icmp6", "raw-socket", "packet-socket", "socket-families", "vsock"),
		wall("dns", "No DNS question of the box leaves this computer, whatever server it is put to.", AsUser, []string{battery},
			"udp4-dns", "udp6-dns", "tcp4-dns", "tcp6-dns", "tcp4-dot", "dns-data"),
		wall("host", "The box reaches no service of the host: not on its loopback, its addresses, or a unix socket.", AsUser, []string{battery, "internal/proof/battery: TestHostHearsTheNonce"},
			"tcp4-host-loopback", "tcp4-host-loopback-name", "udp-host", "abstract-unix", "unix-walk", "control-socket"),
		wall("files", "The box sees neither foldyard's files nor the operator's dotfiles, environment and descriptors, and writes nothing outside the repo, its home and its temporary directories.", AsUser,
			[]string{"internal/proof/battery: TestFileOfTheHostInTheBoxIsFound"},
			"state-dir", "ca-key", "secrets", "dotfiles", "environment", "descriptors", "launcher-exe", "write-outside", "sys-absent", "devices"),
		wall("kernel", "The box makes no namespaces, and the kernel's doors that it does not need are shut to it.", AsUser, []string{"internal/wall/namespace: TestKernelDoorsAreShut", "internal/wall/namespace: TestSetuidBitsCannotBeMade"},
			"userns", "clone3", "kernel-doors", "mount-api", "tiocsti", "syscall32", "setuid-bits", "privileges"),
		wall("processes", "The box sees, traces and signals no process of the host, and the host's root is nobody in it.", AsUser, []string{battery},
			"ptrace-host", "processes-host", "signal-host", "host-root"),
		wall("root", "All of this holds for root in the box too: its capabilities give no power over its network or its mounts.", AsRoot, []string{"internal/wall/namespace: TestRootOfTheBoxHasNoPowerOverItsWalls"},
			slices.Concat(network, []string{"net-admin", "remount", "udp443", "udp4-dns", "proc-sys", "core-pattern", "sysrq", "write-outside"})...),
		{
			ID: "allowlist", Ring: Allowlist, Boundary: "nobody alone: cooperative", As: AsUser, Platforms: linux,
			Text: "What is not granted is refused, by whatever way it comes: CONNECT, SOCKS5, a misaligned name, silence, a tunnel in a tunnel.",
			Rows: []string{"proxy-connect", "proxy-socks", "sni-mismatch", "silence-443", "inner-connect"}, Tests: []string{
				"internal/egress/proxy: TestEveryWayRefusesAlike", "internal/egress/proxy: TestMisalignedRequestIs421", "internal/egress/proxy: TestSilenceOpensNothing",
			},
		},
	}
}
