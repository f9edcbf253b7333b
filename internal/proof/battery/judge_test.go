//go:build linux

package battery

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"foldyard/internal/proof"
	"foldyard/internal/proof/probe"
)

// perfect is the report of a box from which nothing gets out.
func perfect(plan probe.Plan, token string) probe.Report {
	r := probe.Report{Version: probe.Version, Nonce: plan.Nonce}
	for _, s := range probe.Specs() {
		if s.Host {
			continue
		}
		f := probe.Finding{ID: s.ID, Outcome: probe.Refused, Detail: "connection refused"}
		switch s.Expect {
		case proof.ExpectReached:
			f.Outcome, f.Token = probe.Reached, token
		case proof.ExpectAbsent, proof.ExpectNone:
			f.Outcome = probe.Absent
		case proof.ExpectRefused:
		}
		r.Findings = append(r.Findings, f)
	}
	return r
}

// perfectBox is what the host sees of such a box.
func perfectBox() boxView { return boxView{processes: 2, pidNS: "pid:[1]", netNS: "net:[1]"} }

// perfectView is a run in which all went well.
func perfectView() view {
	facts := Facts{Digest: "d", Agent: 7, Keeper: 6, Devices: []string{"lo"}}
	v := view{
		options: Options{Digest: "d"}, plan: probe.Plan{Nonce: "n"}, facts: facts, after: facts,
		answered: "token", hits: map[string]int{}, arrived: map[string]string{}, box: perfectBox(),
	}
	v.report = perfect(v.plan, v.answered)
	for _, s := range probe.Specs() {
		if tokened(s.ID) {
			v.hits[s.ID] = 2
		}
	}
	return v
}

func (v *view) finding(id string) *probe.Finding {
	for i := range v.report.Findings {
		if v.report.Findings[i].ID == id {
			return &v.report.Findings[i]
		}
	}
	v.report.Findings = append(v.report.Findings, probe.Finding{ID: id})
	return &v.report.Findings[len(v.report.Findings)-1]
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name    string
		spoil   func(v *view)
		row     string
		want    proof.Result
		verdict proof.Verdict
	}{
		{"nothing got out", func(*view) {}, "tcp4-direct", proof.Pass, proof.VerdictPass},

		{"a probe got out", func(v *view) { v.finding("tcp4-direct").Outcome = probe.Reached }, "tcp4-direct", proof.Fail, proof.VerdictFail},
		{"a probe got out and its control failed", func(v *view) {
			v.finding("tcp4-direct").Outcome = probe.Reached
			v.finding(probe.ControlHTTP4).Outcome = probe.Errored
		}, "tcp4-direct", proof.Fail, proof.VerdictFail},
		{"the nonce arrived although the probe saw nothing", func(v *view) { v.arrived["udp-host"] = "192.0.2.7:9" }, "udp-host", proof.Fail, proof.VerdictFail},
		{"a nonce arrived under no row's name", func(v *view) { v.arrived["other"] = "192.0.2.7:9" }, "arrived", proof.Fail, proof.VerdictFail},
		{"the nonce arrived and the report is lost", func(v *view) {
			v.arrived["tcp4-host-address"] = "192.0.2.7:9"
			v.trouble = "no report"
		}, "tcp4-host-address", proof.Fail, proof.VerdictFail},

		{"silence is no refusal", func(v *view) { v.finding("tcp4-direct").Outcome = probe.Silent }, "tcp4-direct", proof.Unproven, proof.VerdictUnproven},
		{"what could not be tried shows nothing", func(v *view) { v.finding("vsock").Outcome = probe.Errored }, "vsock", proof.Unproven, proof.VerdictUnproven},
		{"an outcome nobody knows shows nothing", func(v *view) { v.finding("vsock").Outcome = "fine" }, "vsock", proof.Unproven, proof.VerdictUnproven},
		{"a missing row shows nothing", func(v *view) { v.finding("vsock").ID = "other" }, "vsock", proof.Unproven, proof.VerdictUnproven},
		{"no report at all", func(v *view) { v.report = probe.Report{}; v.trouble = "killed" }, "tcp4-direct", proof.Unproven, proof.VerdictUnproven},
		{"the row's own control failed", func(v *view) { v.finding("unix-walk").Uncontrolled = "cut off" }, "unix-walk", proof.Unproven, proof.VerdictUnproven},

		{"its control did not answer", func(v *view) { v.finding(probe.ControlHTTP4).Outcome = probe.Errored }, "tcp4-direct", proof.Unproven, proof.VerdictUnproven},
		{"another control's failure is not its own", func(v *view) { v.finding(probe.ControlHTTP4).Outcome = probe.Errored }, "tcp6-direct", proof.Pass, proof.VerdictUnproven},
		{"somebody else answered the control", func(v *view) { v.finding(probe.ControlHTTP4).Token = "made up" }, "tcp4-direct", proof.Unproven, proof.VerdictUnproven},
		{"the control was answered before only", func(v *view) { v.hits[probe.ControlHTTP4] = 1 }, "tcp4-direct", proof.Unproven, proof.VerdictUnproven},
		{"the control never arrived", func(v *view) { v.hits = map[string]int{} }, "proxy-connect", proof.Unproven, proof.VerdictUnproven},

		{"not applicable", func(v *view) { v.finding("userns").Outcome = probe.Skipped }, "userns", proof.NA, proof.VerdictPass},
		{"a warning does not count", func(v *view) { v.finding("repo-secrets").Outcome = probe.Noted }, "repo-secrets", proof.Warn, proof.VerdictPass},

		{"a second device", func(v *view) { v.after.Devices = []string{"lo", "veth0"} }, "netns-single-device", proof.Fail, proof.VerdictFail},
		{"a device that only the probe saw", func(v *view) { v.report.Devices = []string{"veth0"} }, "netns-single-device", proof.Fail, proof.VerdictFail},
		{"no device at all", func(v *view) { v.facts.Devices, v.after.Devices = nil, nil }, "netns-single-device", proof.Unproven, proof.VerdictUnproven},
		{"the host's own network", func(v *view) { v.box.sharesNet = true }, "netns-single-device", proof.Fail, proof.VerdictFail},
		{"a process in another network", func(v *view) { v.box.strangers = []string{"9"} }, "box-processes", proof.Fail, proof.VerdictFail},
		{"a process in another network by the keeper's word", func(v *view) { v.facts.Strangers = []int{9} }, "box-processes", proof.Fail, proof.VerdictFail},
		{"the same where nesting is allowed", func(v *view) { v.box.strangers = []string{"9"}; v.options.Nested = true }, "box-processes", proof.NA, proof.VerdictPass},
		{"the host's process numbers", func(v *view) { v.box.sharesPID = true }, "signal-host", proof.Fail, proof.VerdictFail},
		{"the host's root", func(v *view) { v.box.mapsRoot = true }, "host-root", proof.Fail, proof.VerdictFail},
		{"an unreadable uid map", func(v *view) { v.box.mapTrouble = "gone" }, "host-root", proof.Unproven, proof.VerdictUnproven},
		{"the box has ended", func(v *view) { v.box = boxView{trouble: "gone"} }, "signal-host", proof.Unproven, proof.VerdictUnproven},
		{"a twin built otherwise", func(v *view) { v.options.Digest = "e" }, "construction", proof.Unproven, proof.VerdictUnproven},
		{"a construction that changed meanwhile", func(v *view) { v.after.Digest = "e" }, "construction", proof.Unproven, proof.VerdictUnproven},
		{"no digest", func(v *view) { v.options.Digest, v.facts.Digest, v.after.Digest = "", "", "" }, "construction", proof.Unproven, proof.VerdictUnproven},

		{"a unix socket of a process that is not the box's", func(v *view) { v.finding("unix-walk").Peers = []probe.Peer{{Path: "/repo/s", PID: 1}} }, "unix-walk", proof.Fail, proof.VerdictFail},
		{"the same although its path is bound in the box too", func(v *view) { v.finding("unix-walk").Peers = []probe.Peer{{Path: "/repo/s", PID: 1, Own: true}} }, "unix-walk", proof.Fail, proof.VerdictFail},
		{"a socket of nobody, bound outside", func(v *view) { v.finding("unix-walk").Peers = []probe.Peer{{Path: "/repo/s", PID: 1 << 30}} }, "unix-walk", proof.Fail, proof.VerdictFail},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := perfectView()
			tt.spoil(&v)
			rows := v.rows()
			if got := proof.Judge(rows); got != tt.verdict {
				t.Errorf("verdict %s, want %s", got, tt.verdict)
			}
			for _, r := range rows {
				if r.ID == tt.row {
					if r.Result != tt.want {
						t.Errorf("%s is %s (%s), want %s", r.ID, r.Result, r.Detail, tt.want)
					}
					return
				}
			}
			t.Errorf("no row %s", tt.row)
		})
	}
}

func TestEveryRowIsWhatTheContractAsks(t *testing.T) {
	v := perfectView()
	rows := v.rows()
	if len(rows) < 35 {
		t.Errorf("%d rows, want at least 35", len(rows))
	}
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.ID] {
			t.Errorf("%s twice", r.ID)
		}
		seen[r.ID] = true
		if r.ID == "" || r.Title == "" || r.Control == "" || r.Expect == "" || r.Ring == "" {
			t.Errorf("a row lacks something: %+v", r)
		}
		if r.Expect == proof.ExpectRefused && (r.Control == "itself" || r.SeenBy != proof.SeenByHost) {
			t.Errorf("%s is refused without control or host: %+v", r.ID, r)
		}
	}
	for _, s := range probe.Specs() {
		for _, need := range s.Needs {
			if !seen[need] {
				t.Errorf("%s needs %s, which is no row", s.ID, need)
			}
		}
		if s.Expect == proof.ExpectRefused && len(s.Needs) == 0 {
			t.Errorf("%s is a refusal that needs no control", s.ID)
		}
	}
}

func fakeOptions(run Runner) Options {
	return Options{
		Box: "b1", BootID: "boot", Digest: "d", Run: run, Control: new(Control), Now: time.Now, ControlName: control,
		Facts: func(context.Context) (Facts, error) { return Facts{Digest: "d", Devices: []string{"lo"}}, nil },
	}
}

func TestRunThatCannotStartIsUnproven(t *testing.T) {
	answers := map[string]Runner{
		"the probes do not start": func(context.Context, []byte, bool) ([]byte, error) { return nil, errors.New("no such file") },
		"nothing comes back":      func(context.Context, []byte, bool) ([]byte, error) { return nil, nil },
		"rubbish comes back":      func(context.Context, []byte, bool) ([]byte, error) { return []byte("PASS PASS PASS"), nil },
		"an old report comes back": func(context.Context, []byte, bool) ([]byte, error) {
			return json.Marshal(perfect(probe.Plan{Nonce: "another"}, ""))
		},
		"the probes refuse": func(context.Context, []byte, bool) ([]byte, error) {
			return []byte(`{"version":1,"findings":[{"id":"battery","outcome":"error","detail":"this is no box"}]}`), nil
		},
	}
	for name, run := range answers {
		t.Run(name, func(t *testing.T) {
			report, err := Run(t.Context(), fakeOptions(run))
			if err != nil {
				t.Fatal(err)
			}
			if report.Verdict != proof.VerdictUnproven {
				t.Errorf("verdict %s, want unproven", report.Verdict)
			}
			for _, r := range report.Rows {
				if r.Result == proof.Pass && r.ID != "construction" {
					t.Errorf("%s passed: %s", r.ID, r.Detail)
				}
			}
		})
	}
}

// TestHostHearsTheNonce is the hostile box whose probes report that all is
// well while one of them arrives at the host.
func TestHostHearsTheNonce(t *testing.T) {
	for _, network := range []string{"tcp", "udp", "unix"} {
		t.Run(network, func(t *testing.T) {
			o := fakeOptions(nil)
			o.Run = func(ctx context.Context, text []byte, _ bool) ([]byte, error) {
				var plan probe.Plan
				if err := json.Unmarshal(text, &plan); err != nil {
					return nil, err
				}
				to := map[string]string{"tcp": plan.HostTCP[0].String(), "udp": plan.HostUDP[0].String(), "unix": "@" + plan.Abstract}[network]
				if err := send(ctx, network, to, probe.Tag(plan.Nonce, "udp-host")); err != nil {
					return nil, err
				}
				wait(50 * time.Millisecond)
				return json.Marshal(perfect(plan, ""))
			}
			report, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if row := rowsByID(report)["udp-host"]; row.Result != proof.Fail {
				t.Errorf("%+v", row)
			}
		})
	}
}

func TestVerifyDropsOldEvidenceFirst(t *testing.T) {
	store := proof.Store{Dir: t.TempDir()}
	if err := store.Put(proof.Report{Box: "b1", As: proof.AsUser, Verdict: proof.VerdictPass}); err != nil {
		t.Fatal(err)
	}
	o := fakeOptions(func(context.Context, []byte, bool) ([]byte, error) {
		all, err := store.All()
		if len(all) != 0 || err != nil {
			t.Errorf("while the probes run there is evidence: %v %v", all, err)
		}
		return nil, errors.New("killed")
	})
	if _, err := Verify(t.Context(), o, store); err != nil {
		t.Fatal(err)
	}
	all, err := store.All()
	if err != nil || len(all) != 1 || all[0].Verdict != proof.VerdictUnproven {
		t.Errorf("%v %v", all, err)
	}
}

func TestParseAddrs(t *testing.T) {
	good := map[string][]netip.Addr{
		"":                       DefaultAddrs(),
		"192.0.2.1":              {netip.MustParseAddr("192.0.2.1")},
		"192.0.2.1, 2001:db8::1": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	}
	for s, want := range good {
		got, err := ParseAddrs(s)
		if err != nil || len(got) != len(want) || got[0] != want[0] {
			t.Errorf("%q: %v %v", s, got, err)
		}
	}
	for _, s := range []string{"example.com", "192.0.2.1:443", "fe80::1%eth0", "::ffff:192.0.2.1", strings.Repeat("192.0.2.1,", 17)} {
		if _, err := ParseAddrs(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func TestEnvironmentIsToldByHashAndOnlyWhereItMatters(t *testing.T) {
	o := Options{
		Environ: []string{"GITHUB_TOKEN=canary-value", "PATH=/bin", "EDITOR=vi", "GIVEN_TOKEN=on-purpose", "SSH_AUTH_SOCK=/tmp/x", "SHORT_KEY=1"},
		BoxEnv:  []string{"GIVEN_TOKEN=on-purpose"},
	}
	sums := o.secretEnvironment()
	if len(sums) != 2 {
		t.Errorf("%d hashes, want those of GITHUB_TOKEN and SSH_AUTH_SOCK", len(sums))
	}
	for _, s := range sums {
		if len(s) != 64 || strings.Contains(s, "canary") {
			t.Errorf("no hash: %q", s)
		}
	}
}

func TestMountedOnPurposeIsNoFinding(t *testing.T) {
	f := Files{OperatorHome: "/home/op", Mounted: []string{"/home/op/.aws/"}}
	if f.mounted("/home/op/.awsome") || !f.mounted("/home/op/.aws/config") || f.mounted("/home/op") {
		t.Error("a mount covers itself and what is below it, and nothing else")
	}
}
