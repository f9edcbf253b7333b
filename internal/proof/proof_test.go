package proof

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func wallRow(id string, r Result) Row {
	return Row{ID: id, Ring: Namespace, Expect: ExpectRefused, Control: "c", Result: r, SeenBy: SeenByHost}
}

func TestJudge(t *testing.T) {
	boxSeen := wallRow("b", Pass)
	boxSeen.SeenBy = SeenByBox
	policyPass := Row{ID: "p", Ring: Allowlist, Result: Pass, SeenBy: SeenByHost}
	tests := []struct {
		name string
		rows []Row
		want Verdict
	}{
		{"nothing", nil, VerdictUnproven},
		{"one host-seen pass", []Row{wallRow("a", Pass)}, VerdictPass},
		{"passes, warnings and what does not apply", []Row{wallRow("a", Pass), wallRow("b", Warn), wallRow("c", NA)}, VerdictPass},
		{"nothing but what does not apply", []Row{wallRow("a", NA), wallRow("b", Warn)}, VerdictUnproven},
		{"only the policy was seen", []Row{policyPass}, VerdictUnproven},
		{"a pass that only the box saw", []Row{wallRow("a", Pass), boxSeen}, VerdictUnproven},
		{"one unproven", []Row{wallRow("a", Pass), wallRow("b", Unproven)}, VerdictUnproven},
		{"a row without a result", []Row{wallRow("a", Pass), {ID: "b"}}, VerdictUnproven},
		{"a result nobody knows", []Row{wallRow("a", Pass), wallRow("b", "pass")}, VerdictUnproven},
		{"one fail", []Row{wallRow("a", Pass), wallRow("b", Fail)}, VerdictFail},
		{"a fail after an unproven", []Row{wallRow("a", Unproven), wallRow("b", Fail)}, VerdictFail},
	}
	for _, tt := range tests {
		if got := Judge(tt.rows); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if Verdict("") == VerdictPass || Result("") == Pass || State("") == Proven {
		t.Error("a zero value counts as shown")
	}
}

var at = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func report(as As, v Verdict) Report {
	r := Report{Verdict: v, Box: "b1", As: as, Ring: Namespace, BootID: "boot", Digest: "d", At: at, Rows: []Row{wallRow("tcp4-direct", Pass)}}
	switch v {
	case VerdictFail:
		r.Rows = append(r.Rows, wallRow("udp443", Fail))
	case VerdictUnproven:
		r.Rows = append(r.Rows, wallRow("udp443", Unproven))
	case VerdictPass:
	}
	return r
}

func TestLabelIsEarned(t *testing.T) {
	subject := Subject{Backend: "namespace", Box: "b1", BootID: "boot", Digest: "d"}
	enforcing := Policy{Enforces: true}
	change := func(r Report, f func(*Report)) Report { f(&r); return r }
	tests := []struct {
		name     string
		subject  Subject
		policy   Policy
		evidence []Report
		state    State
		label    string
		boundary string
	}{
		{"shown as the user", subject, enforcing, []Report{report(AsUser, VerdictPass)}, Proven, Locked, "the box's user"},
		{"shown as root too", subject, enforcing, []Report{report(AsUser, VerdictPass), report(AsRoot, VerdictPass)}, Proven, Locked, "root in the box"},

		{"nothing shown", subject, enforcing, nil, Configured, Cooperative, ""},
		{"the allowlist does not enforce", subject, Policy{Why: "learning"}, []Report{report(AsUser, VerdictPass)}, Proven, Cooperative, ""},
		{"a probe got out", subject, enforcing, []Report{report(AsUser, VerdictFail)}, Failed, Cooperative, ""},
		{"root got out, the user did not", subject, enforcing, []Report{report(AsUser, VerdictPass), report(AsRoot, VerdictFail)}, Failed, Cooperative, ""},
		{"the last verify showed nothing", subject, enforcing, []Report{
			report(AsUser, VerdictPass), change(report(AsUser, VerdictUnproven), func(r *Report) { r.At = at.Add(time.Minute) }),
		}, Configured, Cooperative, ""},
		{"an older one showed nothing", subject, enforcing, []Report{
			change(report(AsUser, VerdictUnproven), func(r *Report) { r.At = at.Add(-time.Minute) }), report(AsUser, VerdictPass),
		}, Proven, Locked, "the box's user"},
		{"of another box", subject, enforcing, []Report{change(report(AsUser, VerdictPass), func(r *Report) { r.Box = "b2" })}, Configured, Cooperative, ""},
		{"of another boot", subject, enforcing, []Report{change(report(AsUser, VerdictPass), func(r *Report) { r.BootID = "earlier" })}, Configured, Cooperative, ""},
		{"of another ring", subject, enforcing, []Report{change(report(AsUser, VerdictPass), func(r *Report) { r.Ring = Gateway })}, Configured, Cooperative, ""},
		{"of another construction", subject, enforcing, []Report{change(report(AsUser, VerdictPass), func(r *Report) { r.Digest = "e" })}, Stale, Cooperative, ""},
		{"the box's construction is not known", Subject{Backend: "namespace", Box: "b1", BootID: "boot"}, enforcing, []Report{change(report(AsUser, VerdictPass), func(r *Report) { r.Digest = "" })}, Stale, Cooperative, ""},
		{"a verdict that its rows do not bear out", subject, enforcing, []Report{change(report(AsUser, VerdictPass), func(r *Report) { r.Rows = nil })}, Configured, Cooperative, ""},
		{"a pass that hides a fail", subject, enforcing, []Report{change(report(AsUser, VerdictFail), func(r *Report) { r.Verdict = VerdictPass })}, Configured, Cooperative, ""},
		{"no box", Subject{Backend: "namespace", BootID: "boot"}, enforcing, []Report{report(AsUser, VerdictPass)}, Off, Cooperative, ""},
		{"this computer cannot", Subject{Backend: "namespace", Box: "b1", BootID: "boot", Digest: "d", Unavailable: "no user namespaces"}, enforcing, []Report{report(AsUser, VerdictPass)}, Unavailable, Cooperative, ""},
		{"another backend", Subject{Backend: "podman", Box: "b1", BootID: "boot", Digest: "d"}, enforcing, []Report{report(AsUser, VerdictPass)}, Off, Cooperative, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rings := Rings(tt.subject, tt.policy, tt.evidence)
			i := slices.IndexFunc(rings, func(r RingStatus) bool { return r.Name == Namespace })
			if rings[i].State != tt.state {
				t.Errorf("state %s (%s), want %s", rings[i].State, rings[i].Why, tt.state)
			}
			label, boundary, why := Label(rings, tt.policy)
			if label != tt.label || tt.label == Locked && boundary != tt.boundary {
				t.Errorf("%s against %s, want %s against %s", label, boundary, tt.label, tt.boundary)
			}
			if boundary == "" || why == "" {
				t.Errorf("the word stands alone: boundary %q, why %q", boundary, why)
			}
			for _, r := range rings {
				if r.Boundary == "" || r.Why == "" || r.Kind != r.Name.Kind() {
					t.Errorf("ring %+v lacks something", r)
				}
			}
		})
	}
}

// What the operator can change is the reason, not a ring that nobody built.
func TestLabelSaysWhatToDo(t *testing.T) {
	for _, tt := range []struct {
		subject Subject
		want    string
	}{
		{Subject{Backend: "namespace", BootID: "boot"}, "fy up"},
		{Subject{Backend: "lima", BootID: "boot"}, "fy up"},
		{Subject{Backend: "lima", BootID: "boot", Box: "b1", Digest: "d"}, "fy verify"},
		{Subject{Backend: "lima", BootID: "boot", Box: "b1", Digest: "d", NoFirewall: true}, "[machine] firewall"},
		{Subject{Backend: "lima", BootID: "boot", Unavailable: "no nftables"}, "no nftables"},
	} {
		if _, _, why := Label(Rings(tt.subject, Policy{Enforces: true}, nil), Policy{Enforces: true}); !strings.Contains(why, tt.want) {
			t.Errorf("%+v: %q, want %q", tt.subject, why, tt.want)
		}
	}
}

func TestLabelTrustsNoRingOfAnotherKind(t *testing.T) {
	rings := []RingStatus{{Name: Capture, Kind: Enforcement, State: Proven, Boundary: "all", Evidence: &Summary{}}}
	if label, _, _ := Label(rings, Policy{Enforces: true}); label != Cooperative {
		t.Errorf("a ring of visibility makes a box %s", label)
	}
	rings = []RingStatus{{Name: Namespace, Kind: Enforcement, State: Proven, Boundary: "", Evidence: &Summary{}}}
	if label, _, _ := Label(rings, Policy{Enforces: true}); label != Cooperative {
		t.Errorf("a wall without a boundary makes a box %s", label)
	}
}

func TestStoreKeepsTheLastReportOfABox(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "evidence")}
	if all, err := s.All(); len(all) != 0 || err != nil {
		t.Errorf("before the first: %v %v", all, err)
	}
	first, second, root := report(AsUser, VerdictPass), report(AsUser, VerdictUnproven), report(AsRoot, VerdictPass)
	for _, r := range []Report{first, root, second} {
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.All()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Report{root, second}, all); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	if err := s.DropBox("b1"); err != nil {
		t.Fatal(err)
	}
	if all, err := s.All(); len(all) != 0 || err != nil {
		t.Errorf("after the box's end: %v %v", all, err)
	}
	if err := s.DropBox("b1"); err != nil {
		t.Errorf("dropping twice: %v", err)
	}
}

func TestStoreTakesNoFileAtItsWord(t *testing.T) {
	dir := t.TempDir()
	s := Store{Dir: dir}
	if err := s.Put(report(AsUser, VerdictPass)); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, "b1-user.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"b2-user.json": good, "b3-user.json": []byte("{"), "b4-user.json": []byte(`"pass"`)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "b1-user.json"), filepath.Join(dir, "b5-user.json")); err != nil {
		t.Fatal(err)
	}
	all, err := s.All()
	if len(all) != 1 || all[0].Box != "b1" {
		t.Errorf("%v", all)
	}
	for _, name := range []string{"b2-user.json", "b3-user.json", "b4-user.json", "b5-user.json"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
	for _, id := range []string{"", "../x", "a/b", strings.Repeat("a", 65), ".hidden"} {
		r := report(AsUser, VerdictPass)
		r.Box = id
		if s.Put(r) == nil || s.Drop(id, AsUser) == nil {
			t.Errorf("box %q was accepted", id)
		}
	}
}

func TestResiduals(t *testing.T) {
	ids := map[string]bool{}
	for _, r := range AllResiduals() {
		if ids[r.ID] || r.Text == "" {
			t.Errorf("%+v", r)
		}
		ids[r.ID] = true
	}
	ns := strings.Join(Residuals("namespace"), "\n")
	if !strings.Contains(ns, "kernel exploit") || strings.Contains(ns, "VM firewall") {
		t.Errorf("residuals of the namespace backend:\n%s", ns)
	}
}
