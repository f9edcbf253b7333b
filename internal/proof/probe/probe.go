// Package probe is the battery that runs inside a box's namespaces: it tries to
// get out in every way we know, and reports what it met. It judges nothing: the
// host does, in package battery, with what it saw itself. The process is the
// host's own code, started by the keeper beside the box, so the box can neither
// answer for it nor touch it. It may not import anything heavy, and it refuses
// to run where more than loopback exists unless its plan says that this is a
// box: its probes would go out.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/proof"
)

// Version of plan and report. Both ends are the same binary; a mismatch means
// that they are not.
const Version = 1

// maxPlan bounds what Main reads, in bytes.
const maxPlan = 4 << 20

// Plan is what the host tells the probe process, as JSON on its standard input.
type Plan struct {
	Version int    `json:"version"`
	InBox   bool   `json:"in_box"` // the keeper started this in a box's namespaces
	Nonce   string `json:"nonce"`  // letters and digits

	AsRoot     bool `json:"as_root"`
	Nested     bool `json:"nested"`      // [box] nested = true
	ReadOnly   bool `json:"read_only"`   // the repo is
	Enforcing  bool `json:"enforcing"`   // the allowlist; if not, no probe asks the proxy for the outside
	AnswersAll bool `json:"answers_all"` // no nf_tables: the wall accepts TCP to any address, and answers it

	Addrs      []netip.Addr     `json:"addrs"`      // outside addresses to try raw
	Permitted  bool             `json:"permitted"`  // others were named, and are not tried, since the box may reach them
	Redirected []netip.Prefix   `json:"redirected"` // addresses to which the wall hands connections to foldyard: granted ones, or all while nothing enforces
	Answered   []netip.Addr     `json:"answered"`   // addresses that foldyard answers itself: a metadata server of a credential
	Resolvers  []netip.Addr     `json:"resolvers"`  // the host's own
	HostTCP    []netip.AddrPort `json:"host_tcp"`   // listeners of the host where the nonce must not arrive
	HostUDP    []netip.AddrPort `json:"host_udp"`
	Abstract   string           `json:"abstract"` // abstract unix socket of the host, without the NUL

	Sockets   []HostFile    `json:"sockets"`  // unix sockets of the host, by row id
	Secrets   []HostFile    `json:"secrets"`  // files and directories of the operator, by row id
	Launcher  HostFile      `json:"launcher"` // the executable that the operator started
	Processes []HostProcess `json:"processes"`
	// Environment holds the SHA-256 in hex of each NAME=value of the operator
	// that must not be found in a box.
	Environment []string `json:"environment"`

	Repo     string   `json:"repo"`
	Writable []string `json:"writable"` // protected paths in it that config.toml opens
	Home     string   `json:"home"`     // of the box
	Opened   []string `json:"opened"`   // directories that the box may write beside the repo: its home, and mounts of the operator's

	Control   string         `json:"control"`   // name that the supervisor answers itself
	DNS4      netip.Addr     `json:"dns4"`      // our resolver in the box
	DNS6      netip.Addr     `json:"dns6"`      //
	Synthetic []netip.Prefix `json:"synthetic"` // what it answers with
	Proxy     netip.AddrPort `json:"proxy"`     // the proxy port on the box's loopback
	CA        []byte         `json:"ca"`        // PEM; what intercepted TLS is signed by
}

// HostFile is a file of the host that a box must not see.
type HostFile struct {
	ID   string `json:"id"` // of the row it belongs to
	Path string `json:"path"`
	Dev  uint64 `json:"dev"` // both 0: the host has none there either
	Ino  uint64 `json:"ino"`
}

// HostProcess is a process of the host, told from a box's own of the same
// number by its start time in clock ticks since boot.
type HostProcess struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Outcome is what a probe met. The zero Outcome is one that could not be tried.
type Outcome string

// The outcomes.
const (
	Errored Outcome = "error"   // could not be tried
	Refused Outcome = "refused" // turned away
	Absent  Outcome = "absent"  // nothing to try it with
	Reached Outcome = "reached" // it got there
	Silent  Outcome = "silent"  // neither turned away nor answered
	Skipped Outcome = "skipped" // does not apply; the detail says why
	Noted   Outcome = "noted"   // found something worth a warning
	Clean   Outcome = "clean"   // looked, and found nothing
)

// Finding is what one probe met.
type Finding struct {
	ID      string  `json:"id"`
	Outcome Outcome `json:"outcome"`
	Detail  string  `json:"detail"`
	// Uncontrolled is set when the probe's own control failed, and says how.
	Uncontrolled string `json:"uncontrolled,omitempty"`
	// Token is what the control endpoint answered.
	Token string `json:"token,omitempty"`
	// Peers own the unix sockets that could be connected to; the host says
	// whether they are the box's.
	Peers []Peer `json:"peers,omitempty"`
}

// Peer is the process behind a unix socket, in the numbers of the host.
type Peer struct {
	Path string `json:"path"`
	PID  int    `json:"pid"`
	Own  bool   `json:"own"` // the box's network namespace lists a socket of that path
}

// Report is what the probe process writes, as JSON on its standard output.
type Report struct {
	Version  int       `json:"version"`
	Nonce    string    `json:"nonce"`
	Findings []Finding `json:"findings"`
	Devices  []string  `json:"devices"` // network devices beside loopback that are up
}

// Spec says what a row of the battery is, whoever fills it in.
type Spec struct {
	ID      string
	Title   string
	Ring    proof.Ring
	Expect  proof.Expect
	Control string   // in words
	Needs   []string // ids of controls that must be reached before and after
	Host    bool     // filled in by the host alone
}

// Main runs the battery: a Plan on in, a Report on out. It returns the exit
// code of the process: 0 when the report was written, whatever it says.
func Main(ctx context.Context, in io.Reader, out io.Writer) int {
	report, err := run(ctx, in)
	if err != nil {
		report = Report{Version: Version, Findings: []Finding{{ID: "battery", Outcome: Errored, Detail: err.Error()}}}
	}
	if werr := json.NewEncoder(out).Encode(report); werr != nil || err != nil {
		return 1
	}
	return 0
}

func run(ctx context.Context, in io.Reader) (Report, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxPlan+1))
	if err != nil {
		return Report{}, fmt.Errorf("read the plan: %w", err)
	}
	if len(text) > maxPlan {
		return Report{}, fmt.Errorf("read the plan: more than %d bytes", maxPlan)
	}
	var plan Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return Report{}, fmt.Errorf("read the plan: %w", err)
	}
	if plan.Version != Version {
		return Report{}, fmt.Errorf("the plan has version %d, want %d", plan.Version, Version)
	}
	if !validNonce(plan.Nonce) {
		return Report{}, errors.New("the plan has no nonce of 16 to 64 letters and digits")
	}
	devices, err := devices()
	if err != nil {
		return Report{}, err
	}
	if err := mayRun(plan, devices); err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	findings, err := tryAll(ctx, plan)
	if err != nil {
		return Report{}, err
	}
	return Report{Version: Version, Nonce: plan.Nonce, Findings: findings, Devices: devices}, nil
}

// deadline bounds the whole battery.
const deadline = 50 * time.Second

func mayRun(plan Plan, devices []string) error {
	if !plan.InBox && len(devices) > 0 {
		return fmt.Errorf("this is no box: it has the network devices %s, and the probes would go out", strings.Join(devices, ", "))
	}
	return nil
}

// devices returns the network devices beside loopback that are up. Fallback
// devices of loaded modules, such as sit0, appear in every new namespace and
// are down.
func devices() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	var up []string
	for _, d := range all {
		if d.Flags&net.FlagLoopback == 0 && d.Flags&net.FlagUp != 0 {
			up = append(up, d.Name)
		}
	}
	return up, nil
}

func validNonce(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= 16 && len(s) <= 64
}

// Tag is what a probe sends wherever it gets: the host's listeners know by it
// which row got out.
func Tag(nonce, id string) string {
	return "foldyard-probe " + nonce + " " + id + "\n"
}

// ParseTag finds a Tag in bytes that arrived somewhere.
func ParseTag(data []byte, nonce string) (id string, ok bool) {
	_, rest, found := strings.Cut(string(data), "foldyard-probe "+nonce+" ")
	end := strings.IndexAny(rest, "\r\n")
	if !found || end < 0 {
		return "", false // not all of it is there yet
	}
	return rest[:end], true
}

// ParseStart returns field 22 of a /proc/PID/stat file: when the process
// started, in clock ticks since boot.
func ParseStart(stat string) (uint64, error) {
	_, rest, ok := cutLast(stat, ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, errors.New("no stat file of a process")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// cutLast cuts at the last separator: a command's name may hold any.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
