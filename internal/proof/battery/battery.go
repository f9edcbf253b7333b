// Package battery is the host's side of a verify: it prepares what must not be
// reached, has the probes run in the box, and judges each row by what the host
// saw itself. Start with Verify. It may not start processes or join namespaces
// (its Runner does), decide requests, or take the box's word for anything.
package battery

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"foldyard/internal/proof"
	"foldyard/internal/proof/probe"
)

// Runner runs package probe's Main in the box's namespaces, with a plan on its
// standard input, and returns what it wrote.
type Runner func(ctx context.Context, plan []byte, asRoot bool) ([]byte, error)

// Facts are what the host knows of a box without asking it.
type Facts struct {
	Digest     string   // of the construction
	Agent      int      // the box's first process, by the host's number
	Keeper     int      // the keeper, by the host's number
	Devices    []string // network devices of the box, loopback among them
	Strangers  []int    // processes of the box that are in another network namespace
	AnswersAll bool     // no nf_tables: the wall accepts TCP to any address, and answers it
}

// Options say what to probe, and what the host has that must not be reached.
type Options struct {
	Box    string // id of the box that the evidence is for
	BootID string
	Digest string // of that box's construction
	AsRoot bool
	Twin   bool // Run and Facts are those of a twin of the box

	Run     Runner
	Facts   func(ctx context.Context) (Facts, error)
	Control *Control // the handler that answers the control's name
	Now     func() time.Time

	ControlName string
	DNS4, DNS6  netip.Addr // our resolver, as the box sees it
	Synthetic   []netip.Prefix
	Proxy       netip.AddrPort // on the box's loopback
	CA          []byte         // PEM

	Addrs     []netip.Addr        // outside addresses to try raw; see ParseAddrs
	Granted   []netip.Prefix      // what any grant covers, or all while nothing enforces
	Answered  []netip.Addr        // addresses that foldyard answers itself, in process
	Resolvers []netip.Addr        // the host's own
	Getenv    func(string) string // the operator's environment
	Environ   []string            // the same as NAME=value
	BoxEnv    []string            // what the box was given on purpose, as NAME=value
	Files     Files               // what the box must not see
	Enforcing bool                // the allowlist
	Nested    bool                // [box] nested
	ReadOnly  bool                // the repo
	Repo      string              // as the box sees it
	Writable  []string            // protected paths in it that config.toml opens
	BoxHome   string              // as the box sees it
	Opened    []string            // directories that the box may write beside the repo, as it sees them
	Version   string              // of foldyard
	Kernel    string              // release
}

// DefaultAddrs are the outside addresses that are tried when none are named.
func DefaultAddrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("2606:4700:4700::1111")}
}

// ParseAddrs reads FY_PROBE_ADDRS: addresses separated by commas or spaces. An
// empty value is DefaultAddrs.
func ParseAddrs(s string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(f)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("FY_PROBE_ADDRS: %q is no plain IP address", f)
		}
		addrs = append(addrs, a)
	}
	if len(addrs) > 16 {
		return nil, fmt.Errorf("FY_PROBE_ADDRS: %d addresses, want at most 16", len(addrs))
	}
	if len(addrs) == 0 {
		addrs = DefaultAddrs()
	}
	return addrs, nil
}

// Verify runs the battery and stores its report as the box's evidence. What was
// stored before goes first: a verify that is cut off leaves nothing standing.
func Verify(ctx context.Context, o Options, store proof.Store) (proof.Report, error) {
	if err := store.Drop(o.Box, as(o)); err != nil {
		return proof.Report{}, err
	}
	report, err := Run(ctx, o)
	if err != nil {
		return proof.Report{}, err
	}
	if err := store.Put(report); err != nil {
		return proof.Report{}, err
	}
	return report, nil
}

func as(o Options) proof.As {
	if o.AsRoot {
		return proof.AsRoot
	}
	return proof.AsUser
}

// Run runs the battery once. An error means that it could not be set up at all;
// probes that could not run are rows that are unproven.
func Run(ctx context.Context, o Options) (proof.Report, error) {
	if o.Run == nil || o.Facts == nil || o.Control == nil || o.Now == nil {
		return proof.Report{}, errors.New("verify: no runner, facts, control or clock")
	}
	nonce := newNonce()
	before, err := o.Facts(ctx)
	if err != nil {
		return proof.Report{}, fmt.Errorf("verify: %w", err)
	}
	ears, err := listen(ctx, nonce)
	if err != nil {
		return proof.Report{}, fmt.Errorf("verify: %w", err)
	}
	defer ears.close()
	answered := o.Control.expect(nonce)
	defer o.Control.forget(nonce)

	plan := o.plan(nonce, before, ears)
	text, err := json.Marshal(plan)
	if err != nil {
		return proof.Report{}, fmt.Errorf("verify: %w", err)
	}
	seen := view{options: o, plan: plan, facts: before, answered: answered}
	out, err := o.Run(ctx, text, o.AsRoot)
	if err == nil {
		seen.report, err = parseReport(out, nonce)
	}
	if err != nil {
		seen.trouble = err.Error()
	}
	if seen.after, err = o.Facts(ctx); err != nil {
		seen.after, seen.trouble = Facts{}, fmt.Sprintf("the box could not be looked at after the probes: %v", err)
	}
	wait(grace)
	seen.arrived = ears.close()
	seen.hits = o.Control.hits(nonce)
	seen.box = look(before.Agent)

	rows := seen.rows()
	return proof.Report{
		Verdict: proof.Judge(rows), Box: o.Box, As: as(o), Rows: rows, Residuals: proof.Residuals("namespace"),
		Ring: proof.Namespace, Twin: o.Twin, At: o.Now().UTC().Truncate(time.Second), BootID: o.BootID, Digest: before.Digest,
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Kernel: o.Kernel, Version: o.Version,
	}, nil
}

// grace is how long a nonce that is on its way may take to arrive.
const grace = 50 * time.Millisecond

func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// maxDetail bounds each text taken from a report, in bytes.
const maxDetail = 2048

// parseReport reads what the probe process wrote.
func parseReport(out []byte, nonce string) (probe.Report, error) {
	var r probe.Report
	if err := json.Unmarshal(out, &r); err != nil {
		return probe.Report{}, fmt.Errorf("the probes' report: %w", err)
	}
	if r.Version != probe.Version {
		return probe.Report{}, fmt.Errorf("the probes' report has version %d, want %d", r.Version, probe.Version)
	}
	if r.Nonce != nonce {
		for _, f := range r.Findings {
			if f.ID == "battery" {
				return probe.Report{}, fmt.Errorf("the probes did not run: %.500s", f.Detail)
			}
		}
		return probe.Report{}, errors.New("the probes' report is of another run")
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		f.Detail = f.Detail[:min(len(f.Detail), maxDetail)]
		f.Uncontrolled = f.Uncontrolled[:min(len(f.Uncontrolled), maxDetail)]
	}
	return r, nil
}

func (o Options) plan(nonce string, f Facts, ears *ears) probe.Plan {
	var addrs []netip.Addr
	for _, a := range o.Addrs {
		if !slices.ContainsFunc(o.Granted, func(p netip.Prefix) bool { return p.Contains(a) }) {
			addrs = append(addrs, a)
		}
	}
	return probe.Plan{
		Version: probe.Version, InBox: true, Nonce: nonce,
		AsRoot: o.AsRoot, Nested: o.Nested, ReadOnly: o.ReadOnly, Enforcing: o.Enforcing, AnswersAll: f.AnswersAll,
		Addrs: addrs, Permitted: len(addrs) < len(o.Addrs), Redirected: o.Granted, Answered: o.Answered, Resolvers: o.Resolvers, HostTCP: ears.tcp, HostUDP: ears.udp, Abstract: ears.abstract,
		Sockets: o.Files.sockets(o.getenv), Secrets: slices.Concat(o.Files.secrets(), ears.files), Launcher: o.Files.launcher(),
		Processes: hostProcesses(f.Keeper), Environment: o.secretEnvironment(),
		Repo: o.Repo, Writable: o.Writable, Home: o.BoxHome, Opened: o.Opened,
		Control: o.ControlName, DNS4: o.DNS4, DNS6: o.DNS6, Synthetic: o.Synthetic, Proxy: o.Proxy, CA: o.CA,
	}
}

func (o Options) getenv(name string) string {
	if o.Getenv == nil {
		return ""
	}
	return o.Getenv(name)
}
