package battery

import (
	"fmt"
	"slices"
	"strings"

	"foldyard/internal/proof"
	"foldyard/internal/proof/probe"
)

// view is everything that the host knows after a run.
type view struct {
	options  Options
	plan     probe.Plan
	facts    Facts // before
	after    Facts
	report   probe.Report
	trouble  string            // why the probes' report does not count
	answered string            // token of the control
	hits     map[string]int    // how often each control arrived
	arrived  map[string]string // rows whose nonce arrived at a listener of the host
	box      boxView
}

// rows judges every row of the battery, in its order.
func (v view) rows() []proof.Row {
	findings := map[string]probe.Finding{}
	for _, f := range v.report.Findings {
		findings[f.ID] = f
	}
	rows := make([]proof.Row, 0, 64)
	results := map[string]proof.Result{}
	for _, spec := range probe.Specs() {
		row := proof.Row{
			ID: spec.ID, Title: spec.Title, Ring: spec.Ring, Expect: spec.Expect, Control: spec.Control,
			SeenBy: proof.SeenByHost, Twin: v.options.Twin,
		}
		if spec.Host {
			row.Result, row.Detail = v.hostRow(spec.ID)
		} else {
			row.Result, row.Detail = v.judge(spec, findings, results)
		}
		results[spec.ID] = row.Result
		rows = append(rows, row)
	}
	return append(rows, v.leftovers(rows)...)
}

// judge turns a probe's finding into a result. What got out is a fail, whatever
// its control says; what did not counts only when its controls held.
func (v view) judge(spec probe.Spec, findings map[string]probe.Finding, results map[string]proof.Result) (proof.Result, string) {
	if where, ok := v.arrived[spec.ID]; ok {
		return proof.Fail, "arrived at the host's listener " + where
	}
	f, ok := findings[spec.ID]
	switch {
	case v.trouble != "":
		return proof.Unproven, v.trouble
	case !ok:
		return proof.Unproven, "the probe did not report"
	case spec.Expect == proof.ExpectReached:
		return v.judgeControl(spec, f)
	}
	if detail, out := v.foreignPeer(f); out {
		return proof.Fail, detail
	}
	switch f.Outcome {
	case probe.Reached:
		return proof.Fail, f.Detail
	case probe.Skipped:
		return proof.NA, f.Detail
	case probe.Noted:
		return proof.Warn, f.Detail
	case probe.Refused, probe.Absent, probe.Clean:
	case probe.Silent, probe.Errored:
		return proof.Unproven, f.Detail
	default:
		return proof.Unproven, fmt.Sprintf("the probe met %q", f.Outcome)
	}
	if f.Uncontrolled != "" {
		return proof.Unproven, "its control failed: " + f.Uncontrolled
	}
	for _, need := range spec.Needs {
		if results[need] != proof.Pass {
			return proof.Unproven, "its control " + need + " failed, so a refusal shows nothing; met: " + f.Detail
		}
	}
	return proof.Pass, f.Detail
}

// tokened are the controls that the supervisor answers with the run's token,
// once before the probes and once after them.
func tokened(id string) bool {
	return slices.Contains([]string{probe.ControlHTTP4, probe.ControlHTTP6, probe.ControlTLS4, probe.ControlTLS6, probe.ControlProxy}, id)
}

func (v view) judgeControl(spec probe.Spec, f probe.Finding) (proof.Result, string) {
	switch {
	case f.Outcome != probe.Reached:
		return proof.Unproven, f.Detail
	case !tokened(spec.ID):
		return proof.Pass, f.Detail
	case f.Token != v.answered:
		return proof.Unproven, "somebody else answered: not with the supervisor's token"
	case v.hits[spec.ID] < 2:
		return proof.Unproven, fmt.Sprintf("arrived at the supervisor %d times, want 2", v.hits[spec.ID])
	}
	return proof.Pass, "answered by the supervisor before and after the probes"
}

// foreignPeer reports a unix socket that was answered by a process which is
// not the box's.
func (v view) foreignPeer(f probe.Finding) (string, bool) {
	for _, p := range f.Peers {
		ours, gone := v.box.holds(p.PID)
		if ours || gone && p.Own {
			continue
		}
		return fmt.Sprintf("%q is answered by process %d, which is not of the box", p.Path, p.PID), true
	}
	return "", false
}

// hostRow fills a row in from what the host sees itself.
func (v view) hostRow(id string) (proof.Result, string) {
	switch id {
	case "netns-single-device":
		return v.singleDevice()
	case "box-processes":
		return v.boxProcesses()
	case "signal-host":
		switch {
		case v.box.trouble != "":
			return proof.Unproven, v.box.trouble
		case v.box.sharesPID:
			return proof.Fail, "the box has the host's process numbers"
		}
		return proof.Pass, "the box has process numbers of its own, in which no process of the host has one"
	case "host-root":
		switch {
		case v.box.trouble != "":
			return proof.Unproven, v.box.trouble
		case v.box.mapTrouble != "":
			return proof.Unproven, v.box.mapTrouble
		case v.box.mapsRoot:
			return proof.Fail, "the host's uid 0 is mapped into the box"
		}
		return proof.Pass, "not mapped"
	case "construction":
		switch {
		case v.facts.Digest == "" || v.facts.Digest != v.after.Digest:
			return proof.Unproven, "the box's construction changed while the probes ran"
		case v.facts.Digest != v.options.Digest:
			return proof.Unproven, "what was probed is not built as the box is now, such as when the repo has gained protected files since it started: fy down, fy up"
		}
		return proof.Pass, "the same before and after: " + v.facts.Digest[:min(len(v.facts.Digest), 16)]
	}
	return proof.Unproven, "nobody looked"
}

func (v view) singleDevice() (proof.Result, string) {
	devices := slices.Concat(v.facts.Devices, v.after.Devices, v.report.Devices)
	var other []string
	for _, d := range devices {
		if d != "lo" && !slices.Contains(other, d) {
			other = append(other, d)
		}
	}
	switch {
	case len(other) > 0:
		return proof.Fail, fmt.Sprintf("the box has the network devices %q", other)
	case v.box.trouble != "":
		return proof.Unproven, v.box.trouble
	case v.box.sharesNet:
		return proof.Fail, "the box is in the host's own network"
	case !slices.Contains(devices, "lo"):
		return proof.Unproven, "not even loopback is listed"
	}
	return proof.Pass, "loopback alone, before and after"
}

func (v view) boxProcesses() (proof.Result, string) {
	strangers := slices.Clone(v.box.strangers)
	for _, pid := range slices.Concat(v.facts.Strangers, v.after.Strangers) {
		strangers = append(strangers, fmt.Sprintf("%d (by the box's number)", pid))
	}
	switch {
	case v.box.trouble != "":
		return proof.Unproven, v.box.trouble
	case len(strangers) > 0:
		if v.options.Nested {
			return proof.NA, "[box] nested = true allows namespaces of its own"
		}
		return proof.Fail, "in another network: process " + strings.Join(strangers[:min(len(strangers), 8)], ", ")
	case v.box.processes == 0:
		return proof.Unproven, "no process of the box is listed"
	}
	return proof.Pass, fmt.Sprintf("%d processes, all in the box's network", v.box.processes)
}

// leftovers are nonces that arrived under no row's name: still a way out.
func (v view) leftovers(rows []proof.Row) []proof.Row {
	var out []proof.Row
	for id, where := range v.arrived {
		if slices.ContainsFunc(rows, func(r proof.Row) bool { return r.ID == id }) {
			continue
		}
		out = append(out, proof.Row{
			ID: "arrived", Title: "a probe arrived at the host", Ring: proof.Namespace, Expect: proof.ExpectRefused, Control: "the listener heard the host itself",
			Result: proof.Fail, SeenBy: proof.SeenByHost, Twin: v.options.Twin, Detail: fmt.Sprintf("%q at %s", id, where),
		})
	}
	return out
}
