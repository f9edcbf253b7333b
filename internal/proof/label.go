package proof

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Words of a label.
const (
	Cooperative = "cooperative"
	Locked      = "locked"
)

// RingStatus is one ring as `fy status` shows it.
type RingStatus struct {
	Name     Ring     `json:"name"`
	Kind     Kind     `json:"kind"`
	State    State    `json:"state"`
	Boundary string   `json:"boundary"` // whom the ring holds against
	Why      string   `json:"why"`
	Evidence *Summary `json:"evidence"`
}

// Summary is the short form of evidence.
type Summary struct {
	At     time.Time `json:"at"`
	Probes int       `json:"probes"`
	Passed int       `json:"passed"`
}

// Policy is what the label needs to know of the allowlist.
type Policy struct {
	Enforces bool
	Why      string // why it does not, such as "learning until 15:04"
}

// Subject is the box that a status speaks of.
type Subject struct {
	Backend    string // "namespace", "lima", "podman"
	Box        string // id; "" when none runs
	BootID     string // of the host
	Digest     string // of the box's construction as it is now
	NoFirewall bool   // [machine] firewall = false
	// Unavailable says why this computer cannot have the backend's wall.
	Unavailable string
}

// Label returns the word for a box, whom it holds against, and why. It is
// Locked only when the policy enforces, a wall is proven and none has failed.
func Label(rings []RingStatus, policy Policy) (label, boundary, why string) {
	proven := -1
	reason := "no wall of this box is proven: fy verify"
	for i, r := range rings {
		if r.Kind != Enforcement || r.Name.Kind() != Enforcement {
			continue
		}
		switch r.State {
		case Failed:
			return Cooperative, cooperativeBoundary, fmt.Sprintf("the %s wall failed: %s", r.Name, r.Why)
		case Proven:
			if proven < 0 && r.Boundary != "" && r.Evidence != nil {
				proven = i
			}
		case Off:
			if r.Why != "" && !strings.HasPrefix(r.Why, notOfBackend) {
				reason = r.Why
			}
		case Unavailable: // says nothing where another wall is set up
			if r.Why != "" && r.Why != unbuilt && !slices.ContainsFunc(rings, func(o RingStatus) bool { return o.State == Configured && o.Kind == Enforcement || o.State == Stale }) {
				reason = r.Why
			}
		case Configured, Stale:
			if r.Why != "" {
				reason = r.Why
			}
		}
	}
	switch {
	case proven < 0:
		return Cooperative, cooperativeBoundary, reason
	case !policy.Enforces:
		why := policy.Why
		if why == "" {
			why = "the allowlist does not enforce: fy enforce on"
		}
		return Cooperative, cooperativeBoundary, why
	}
	r := rings[proven]
	return Locked, r.Boundary, fmt.Sprintf("%s wall: %d of %d probes passed at %s", r.Name, r.Evidence.Passed, r.Evidence.Probes, r.Evidence.At.UTC().Format(time.RFC3339))
}

// Why a ring is off or unavailable whatever the box: never the reason of a label.
const (
	notOfBackend = "not a ring of the "
	unbuilt      = "not built yet"
)

const cooperativeBoundary = "nobody: what ignores the proxy is not held"

// Rings returns every ring's status for a box. evidence holds the reports
// stored for the project, in any order; those of other boxes or boots count for
// nothing.
func Rings(s Subject, policy Policy, evidence []Report) []RingStatus {
	capture := RingStatus{Name: Capture, Kind: Visibility, State: Off, Boundary: "nobody: cooperative", Why: "no box runs"}
	if s.Box != "" {
		capture.State, capture.Why = Configured, "the box is routed through the proxy"
	}
	allow := RingStatus{Name: Allowlist, Kind: PolicyKind, State: Configured, Boundary: "nobody alone: cooperative", Why: "what is not granted is refused"}
	if !policy.Enforces {
		allow.State, allow.Why = Off, policy.Why
		if allow.Why == "" {
			allow.Why = "switched off: fy enforce on"
		}
	}
	rings := []RingStatus{capture, allow}
	for _, wall := range []Ring{Namespace, VMFirewall, Gateway, HostFirewall} {
		rings = append(rings, wallStatus(wall, s, evidence))
	}
	return rings
}

// backendOf is where a wall can stand.
func backendOf(r Ring) string {
	if r == Namespace {
		return "namespace"
	}
	return "lima"
}

func wallStatus(wall Ring, s Subject, evidence []Report) RingStatus {
	st := RingStatus{Name: wall, Kind: Enforcement, State: Off, Boundary: boundary(wall, AsUser)}
	switch {
	case backendOf(wall) != s.Backend:
		st.Why = notOfBackend + s.Backend + " backend"
		return st
	case wall == Gateway || wall == HostFirewall:
		st.State, st.Why = Unavailable, unbuilt
		return st
	case wall == VMFirewall && s.NoFirewall:
		st.Why = "switched off: [machine] firewall"
		return st
	case s.Unavailable != "":
		st.State, st.Why = Unavailable, s.Unavailable
		return st
	case s.Box == "":
		st.Why = "no box runs: fy up"
		return st
	}
	st.State, st.Why = Configured, "set up, not shown by probes yet: fy verify"
	user, root := newest(wall, s, AsUser, evidence), newest(wall, s, AsRoot, evidence)
	for _, e := range []*Report{user, root} {
		if e == nil {
			continue
		}
		probes, passed := e.Counts()
		sum := &Summary{At: e.At, Probes: probes, Passed: passed}
		switch {
		case e.Verdict == VerdictFail:
			st.State, st.Evidence, st.Boundary = Failed, sum, boundary(wall, e.As)
			st.Why = "got out: " + strings.Join(failedIDs(e.Rows), ", ")
			return st
		case e.Digest != s.Digest || s.Digest == "":
			st.State, st.Evidence, st.Why = Stale, sum, "the box is no longer built as it was when it was shown: fy verify"
			return st
		case e.Verdict != VerdictPass || passed == 0 || Judge(e.Rows) != VerdictPass:
			st.State, st.Evidence, st.Why = Configured, sum, "the last verify was unproven: fy verify"
			return st
		}
		st.State, st.Evidence = Proven, sum
		st.Boundary = boundary(wall, e.As)
		st.Why = "shown by probes run as the box's " + string(e.As)
	}
	if st.State == Proven && root == nil && wall == Namespace {
		st.Why += "; as root too with fy verify --as-root"
	}
	return st
}

// newest returns the latest report on a wall that is of this very box and boot.
func newest(wall Ring, s Subject, as As, evidence []Report) *Report {
	var best *Report
	for i := range evidence {
		e := &evidence[i]
		if e.Ring != wall || e.As != as || e.Box != s.Box || e.BootID != s.BootID || s.BootID == "" {
			continue
		}
		if best == nil || e.At.After(best.At) {
			best = e
		}
	}
	return best
}

// boundary says whom a wall holds against, as far as probes of that power can
// show it.
func boundary(wall Ring, as As) string {
	switch wall {
	case Namespace:
		if as == AsRoot {
			return "root in the box"
		}
		return "the box's user"
	case VMFirewall:
		return "the VM's user and containers, not VM root"
	case Gateway, HostFirewall:
		return "root in the VM"
	case Capture, Allowlist:
	}
	return ""
}

func failedIDs(rows []Row) []string {
	var ids []string
	for _, r := range rows {
		if r.Result == Fail && len(ids) < 8 {
			ids = append(ids, r.ID)
		}
	}
	return ids
}
