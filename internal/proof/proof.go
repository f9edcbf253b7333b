// Package proof is the honesty rule as types: rings, what each guarantees, the
// evidence that a ring holds, and the label that follows from it. Start with
// Rings and Judge. It reads and writes evidence files, and nothing else; it may
// not open sockets, start probes or decide requests.
package proof

import "time"

// Ring names one layer of the network story.
type Ring string

// The rings, in the order in which they are shown.
const (
	Capture      Ring = "capture"
	Allowlist    Ring = "allowlist"
	Namespace    Ring = "namespace"
	VMFirewall   Ring = "vm-firewall"
	Gateway      Ring = "gateway"
	HostFirewall Ring = "host-firewall"
)

// Kind says what a ring can give at all.
type Kind string

// The kinds. Only enforcement holds against a box that does not cooperate.
const (
	Visibility  Kind = "visibility"
	PolicyKind  Kind = "policy"
	Enforcement Kind = "enforcement"
)

// Kind returns the ring's kind; a ring that is not known enforces nothing.
func (r Ring) Kind() Kind {
	switch r {
	case Namespace, VMFirewall, Gateway, HostFirewall:
		return Enforcement
	case Allowlist:
		return PolicyKind
	case Capture:
		return Visibility
	}
	return Visibility
}

// State is how far a ring is shown to hold. The zero State shows nothing.
type State string

// The states of a ring.
const (
	Off         State = "off"
	Unavailable State = "unavailable" // why says what is missing
	Configured  State = "configured"  // set up, not shown
	Proven      State = "proven"      // evidence fresh and bound to this box
	Stale       State = "stale"       // evidence of another construction
	Failed      State = "failed"      // a probe got out
)

// Result is what one row of a battery shows. The zero Result shows nothing and
// counts as Unproven.
type Result string

// The results of a row.
const (
	Pass     Result = "PASS"
	Fail     Result = "FAIL"
	Unproven Result = "UNPROVEN" // it could not be tried, or its control failed
	Warn     Result = "WARN"     // worth knowing, no matter of the walls
	NA       Result = "N/A"
)

// SeenBy says whose word a row is.
type SeenBy string

// Who saw a row. Only what the host saw makes a ring proven.
const (
	SeenByHost SeenBy = "host"
	SeenByBox  SeenBy = "box"
)

// Expect is what a probe ought to meet.
type Expect string

// The expectations.
const (
	ExpectRefused Expect = "refused" // tried, and turned away
	ExpectAbsent  Expect = "absent"  // there is nothing to try it with
	ExpectReached Expect = "reached" // a control: it must work
	ExpectNone    Expect = "none"    // nothing to report
)

// Row is one line of a battery.
type Row struct {
	ID      string `json:"id"`
	Title   string `json:"title"`
	Ring    Ring   `json:"ring"`
	Expect  Expect `json:"expect"`
	Control string `json:"control"` // what must work for the row to mean anything
	Result  Result `json:"result"`
	SeenBy  SeenBy `json:"seen_by"`
	Twin    bool   `json:"twin"`
	Detail  string `json:"detail"`
}

// Verdict is the sum of a battery. The zero Verdict is no pass.
type Verdict string

// The verdicts.
const (
	VerdictPass     Verdict = "pass"
	VerdictFail     Verdict = "fail"
	VerdictUnproven Verdict = "unproven"
)

// Judge sums rows up: one probe that got out is a fail; a row that shows
// nothing, a pass that only the box saw, or no rows at all leave it unproven.
func Judge(rows []Row) Verdict {
	shown, open := false, false
	for _, r := range rows {
		switch r.Result {
		case Fail:
			return VerdictFail
		case Warn, NA:
		case Pass:
			if r.Ring.Kind() == Enforcement {
				shown = shown || r.SeenBy == SeenByHost
				open = open || r.SeenBy != SeenByHost
			}
		default:
			open = true
		}
	}
	if shown && !open {
		return VerdictPass
	}
	return VerdictUnproven
}

// As says with which power the probes ran.
type As string

// The powers of a battery.
const (
	AsUser As = "user"
	AsRoot As = "root" // uid 0 and every capability of the box's own user namespace
)

// Report is the outcome of one battery, and the form of `fy verify --json`.
type Report struct {
	Verdict   Verdict  `json:"verdict"`
	Box       string   `json:"box"`
	As        As       `json:"as"`
	Rows      []Row    `json:"rows"`
	Residuals []string `json:"residuals"`

	Ring     Ring      `json:"ring"`
	Twin     bool      `json:"twin"`
	At       time.Time `json:"at"`
	BootID   string    `json:"boot_id"`
	Digest   string    `json:"digest"` // of the box's construction
	Platform string    `json:"platform"`
	Kernel   string    `json:"kernel"`
	Version  string    `json:"version"` // of foldyard
}

// Counts returns how many rows were tried on the report's ring and how many of
// them passed.
func (r Report) Counts() (probes, passed int) {
	for _, row := range r.Rows {
		if row.Ring != r.Ring || row.Result == NA || row.Result == Warn {
			continue
		}
		probes++
		if row.Result == Pass {
			passed++
		}
	}
	return probes, passed
}
