package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"foldyard/internal/egress/dest"
)

var (
	now  = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	past = now.Add(-time.Second)
	soon = now.Add(time.Minute)
)

// snap compiles "+RULE" grants, "-RULE" denials, "~RULE" passthrough, "!RULE"
// intercept and "internal+RULE" grants, all enforced.
func snap(t testing.TB, rules ...string) *Snapshot {
	t.Helper()
	return compiled(t, file(rules...))
}

func file(rules ...string) File {
	f := File{Version: fileVersion, Generation: 7, Enforce: true}
	for _, s := range rules {
		if s, ok := strings.CutPrefix(s, "internal+"); ok {
			f.Allow = append(f.Allow, Entry{Rule: s, Level: Session, Internal: true})
			continue
		}
		switch kind, text := s[0], s[1:]; kind {
		case '+':
			f.Allow = append(f.Allow, Entry{Rule: text, Level: Session})
		case '-':
			f.Deny = append(f.Deny, Entry{Rule: text, Level: Permanent})
		case '~':
			f.Passthrough = append(f.Passthrough, text)
		case '!':
			f.Intercept = append(f.Intercept, text)
		default:
			panic(s)
		}
	}
	return f
}

func compiled(t testing.TB, f File) *Snapshot {
	t.Helper()
	s, err := compile(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// query reads [METHOD ][scheme://]HOST:PORT[/path].
func query(t testing.TB, s string) Query {
	t.Helper()
	q := Query{Box: "box1", Now: now}
	if m, rest, ok := strings.Cut(s, " "); ok {
		q.Method, s = m, rest
	}
	if scheme, rest, ok := strings.Cut(s, "://"); ok {
		q.Scheme, s = map[string]Scheme{"http": SchemeHTTP, "https": SchemeHTTPS, "tcp": SchemeRaw}[scheme], rest
	}
	hostport, path := cutSlash(s)
	target, err := dest.Parse(hostport)
	if err != nil {
		t.Fatal(err)
	}
	q.Target, q.Path = target, path
	return q
}

func TestConnect(t *testing.T) {
	for _, tt := range []struct {
		rules, ask string
		want       string // verdict mode [reason] [rule]
	}{
		{"", "a.test:443", "deny intercept not_granted"},
		{"+a.test", "a.test:443", "allow intercept a.test"},
		{"+a.test", "a.test:80", "allow intercept a.test"},
		{"+a.test", "a.test:8080", "deny intercept not_granted"},
		{"+a.test", "a.test:22", "deny intercept not_granted"},
		{"+a.test", "b.test:443", "deny intercept not_granted"},
		{"+a.test", "x.a.test:443", "deny intercept not_granted"},
		{"+a.test:22", "a.test:22", "allow intercept a.test:22"},
		{"+a.test:22", "a.test:443", "deny intercept not_granted"},
		{"+a.test:*", "a.test:9999", "allow intercept a.test:*"},
		{"+https://a.test", "a.test:443", "allow intercept https://a.test"},
		{"+https://a.test", "a.test:80", "deny intercept not_granted"},
		{"+http://a.test", "a.test:443", "deny intercept not_granted"},
		{"+http://a.test", "a.test:80", "allow intercept http://a.test"},
		{"+http://a.test:443", "https://a.test:443", "deny intercept not_granted"},
		{"+*.a.test", "x.a.test:443", "allow intercept *.a.test"},
		{"+*.a.test", "x.y.a.test:443", "allow intercept *.a.test"},
		{"+*.a.test", "a.test:443", "deny intercept not_granted"},
		{"+*.a.test", "xa.test:443", "deny intercept not_granted"},
		{"+*.a.test +x.a.test", "x.a.test:443", "allow intercept x.a.test"},
		{"+192.0.2.1", "192.0.2.1:443", "allow intercept 192.0.2.1"},
		{"+192.0.2.1", "192.0.2.2:443", "deny intercept not_granted"},
		{"+192.0.2.0/24", "192.0.2.77:443", "allow intercept 192.0.2.0/24"},
		{"+192.0.2.0/24:*", "192.0.3.1:443", "deny intercept not_granted"},
		{"+0.0.0.0/0:*", "[2001:db8::1]:443", "deny intercept not_granted"},
		{"+2001:db8::/32", "[2001:db8::1]:443", "allow intercept 2001:db8::/32"},
		{"+a.test +0.0.0.0/0:*", "b.test:443", "deny intercept not_granted"},

		// A3: letter case and a trailing dot, on either side of either list.
		{"+Allowed.Test.", "allowed.test:443", "allow intercept allowed.test"},
		{"+allowed.test", "ALLOWED.test.:443", "allow intercept allowed.test"},
		{"+*.test -EVIL.test.", "evil.test:443", "deny intercept denied_rule evil.test"},
		{"+*.test -evil.test", "EVIL.test.:443", "deny intercept denied_rule evil.test"},

		// Deny beats allow, whichever is the more specific.
		{"+a.test -a.test", "a.test:443", "deny intercept denied_rule a.test"},
		{"+a.test -*.test", "a.test:443", "deny intercept denied_rule *.test"},
		{"+a.test:* -a.test:22", "a.test:443", "allow intercept a.test:*"},
		{"+a.test:* -a.test:22", "a.test:22", "deny intercept denied_rule a.test:22"},
		{"+a.test:* -a.test", "a.test:8080", "deny intercept denied_rule a.test"}, // a bare denial covers every port
		{"+192.0.2.0/24 -192.0.2.1", "192.0.2.1:443", "deny intercept denied_rule 192.0.2.1"},
		{"+192.0.2.1 -0.0.0.0/0", "192.0.2.1:443", "deny intercept denied_rule 0.0.0.0/0"},
		{"+a.test:* -http://a.test", "http://a.test:80", "deny intercept denied_rule http://a.test"},
		{"+a.test:* -http://a.test", "a.test:443", "allow intercept a.test:*"},

		// A7: a host that has only a path or method grant is intercepted.
		{"+a.test/pub/*", "a.test:443", "allow intercept a.test/pub/*"},
		{"+a.test/pub/* ~a.test", "a.test:443", "allow intercept a.test/pub/*"},
		{"+GET~a.test ~a.test", "a.test:443", "allow intercept GET a.test"},

		// Tunnels.
		{"+a.test ~a.test", "a.test:443", "allow tunnel a.test"},
		{"+a.test ~*.test", "a.test:443", "allow tunnel a.test"},
		{"+https://a.test ~a.test", "a.test:443", "allow tunnel https://a.test"},
		{"+http://a.test:443 ~a.test", "a.test:443", "allow intercept http://a.test:443"},
		{"+a.test:* ~a.test", "a.test:8443", "allow intercept a.test:*"},
		{"+a.test:* ~a.test:8443", "a.test:8443", "allow tunnel a.test:*"},
		{"+a.test +a.test/x ~a.test", "a.test:443", "allow tunnel a.test"},
		{"+a.test ~a.test -a.test/x", "a.test:443", "allow intercept a.test"},
		{"+a.test ~a.test -DELETE~a.test", "a.test:443", "allow intercept a.test"},
		{"+a.test ~a.test !a.test", "a.test:443", "allow intercept a.test"},
		{"~a.test", "a.test:443", "deny intercept not_granted"}, // passthrough grants nothing

		{"internal+a.test", "a.test:443", "allow intercept a.test internal"},
		{"+a.test internal+*.test", "a.test:443", "allow intercept *.test internal"},
		{"internal+a.test:8080 +a.test", "a.test:443", "allow intercept a.test"},
	} {
		s := snap(t, fields(tt.rules)...)
		if got := show(s.Connect(query(t, tt.ask))); got != tt.want {
			t.Errorf("[%s] Connect(%s) = %s, want %s", tt.rules, tt.ask, got, tt.want)
		}
	}
}

// fields splits rules at spaces; METHOD~HOST stands for "METHOD HOST".
func fields(s string) []string {
	out := strings.Fields(s)
	for i, f := range out {
		out[i] = f[:1] + strings.Replace(f[1:], "~", " ", 1)
	}
	return out
}

func show(d Decision) string {
	parts := []string{d.Verdict.String(), d.Mode.String()}
	for _, s := range []string{string(d.Reason), d.Rule} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if d.Internal {
		parts = append(parts, "internal")
	}
	return strings.Join(parts, " ")
}

func TestRequest(t *testing.T) {
	for _, tt := range []struct{ rules, ask, want string }{
		{"+a.test", "GET https://a.test:443/x", "allow intercept a.test"},
		{"+a.test", "GET http://a.test:80/x", "allow intercept a.test"},
		{"+a.test", "GET https://b.test:443/x", "deny intercept not_granted"},
		{"+https://a.test", "GET http://a.test:443/x", "deny intercept not_granted"},
		{"+a.test/pub/*", "GET https://a.test:443/pub/x", "allow intercept a.test/pub/*"},
		{"+a.test/pub/*", "GET https://a.test:443/admin", "deny intercept method_or_path"},
		{"+a.test/pub/*", "GET https://a.test:443", "deny intercept method_or_path"},
		{"+a.test/pub/*", "GET https://b.test:443/pub/x", "deny intercept not_granted"},
		{"+a.test/pub/* +a.test/x", "GET https://a.test:443/x", "allow intercept a.test/x"},
		{"+GET~a.test", "GET https://a.test:443/x", "allow intercept GET a.test"},
		{"+GET~a.test", "POST https://a.test:443/x", "deny intercept method_or_path"},
		{"+GET~a.test", "get https://a.test:443/x", "deny intercept method_or_path"},
		{"+GET~a.test", "GETX https://a.test:443/x", "deny intercept method_or_path"},
		{"+GET,POST~a.test", "POST https://a.test:443/x", "allow intercept GET,POST a.test"},
		{"+GET,POST~a.test", "GET,POST https://a.test:443/x", "deny intercept method_or_path"},
		{"+GET,POST~a.test", " https://a.test:443/x", "deny intercept method_or_path"},
		{"+a.test/@s%2fn", "GET https://a.test:443/@s%2Fn", "allow intercept a.test/@s%2Fn"},
		{"+a.test/@s%2fn", "GET https://a.test:443/@s/n", "deny intercept method_or_path"},

		{"+a.test -a.test/admin/*", "GET https://a.test:443/x", "allow intercept a.test"},
		{"+a.test -a.test/admin/*", "GET https://a.test:443/admin/x", "deny intercept denied_rule a.test/admin/*"},
		{"+a.test -a.test/admin/*", "GET https://a.test:443//admin/x", "deny intercept denied_rule a.test/admin/*"},
		{"+a.test -a.test/admin/*", "GET https://a.test:443/admin%2Fx", "deny intercept denied_rule a.test/admin/*"},
		{"+a.test -a.test/admin/*", "GET https://a.test:443/admin;x=1/x", "deny intercept denied_rule a.test/admin/*"},
		{"+a.test -a.test/admin/*", "GET https://a.test:443", "deny intercept denied_rule a.test/admin/*"}, // unknown path
		{"+a.test -a.test/a%2fb", "GET https://a.test:443/a/b", "deny intercept denied_rule a.test/a%2Fb"},
		{"+a.test -DELETE~a.test", "DELETE https://a.test:443/x", "deny intercept denied_rule DELETE a.test"},
		{"+a.test -DELETE~a.test", "delete https://a.test:443/x", "deny intercept denied_rule DELETE a.test"},
		{"+a.test -DELETE~a.test", "GET https://a.test:443/x", "allow intercept a.test"},
		{"+a.test/x -a.test", "GET https://a.test:443/x", "deny intercept denied_rule a.test"},
	} {
		s := snap(t, fields(tt.rules)...)
		if got := show(s.Request(query(t, tt.ask))); got != tt.want {
			t.Errorf("[%s] Request(%s) = %s, want %s", tt.rules, tt.ask, got, tt.want)
		}
	}
}

// With enforcement off what would be refused is let through and said so, but
// denials hold, and what needs decryption stays decrypted.
func TestNotEnforcing(t *testing.T) {
	for _, tt := range []struct{ rules, ask, connect, request string }{
		{"", "GET https://a.test:443/x", "would_deny intercept not_granted", "would_deny intercept not_granted"},
		{"+a.test", "GET https://a.test:443/x", "allow intercept a.test", "allow intercept a.test"},
		{"-a.test", "GET https://a.test:443/x", "deny intercept denied_rule a.test", "deny intercept denied_rule a.test"},
		{"-a.test", "GET https://a.test:8443/x", "deny intercept denied_rule a.test", "deny intercept denied_rule a.test"},
		{"-a.test/x", "GET https://a.test:443/x", "would_deny intercept not_granted", "deny intercept denied_rule a.test/x"},
		{"+a.test/y", "GET https://a.test:443/x", "allow intercept a.test/y", "would_deny intercept method_or_path"},
		{"~a.test", "GET https://a.test:443/x", "would_deny tunnel not_granted", "would_deny intercept not_granted"},
		{"~a.test -a.test/x", "GET https://a.test:443/x", "would_deny intercept not_granted", "deny intercept denied_rule a.test/x"},
		{"~a.test !a.test", "GET https://a.test:443/y", "would_deny intercept not_granted", "would_deny intercept not_granted"},
		{"~a.test:* +a.test/x", "GET https://a.test:8443/y", "would_deny intercept not_granted", "would_deny intercept not_granted"},
	} {
		f := file(fields(tt.rules)...)
		f.Enforce = false
		s, q := compiled(t, f), query(t, tt.ask)
		if got := show(s.Connect(q)); got != tt.connect {
			t.Errorf("[%s] Connect(%s) = %s, want %s", tt.rules, tt.ask, got, tt.connect)
		}
		if got := show(s.Request(q)); got != tt.request {
			t.Errorf("[%s] Request(%s) = %s, want %s", tt.rules, tt.ask, got, tt.request)
		}
	}
}

// A2: nothing that is empty, missing or unreadable allows anything.
func TestEmptyPolicyRefuses(t *testing.T) {
	q := query(t, "GET https://a.test:443/x")
	if d := snap(t, "+a.test", "~a.test").Connect(q); d.Verdict != Allow || d.Mode != Tunnel {
		t.Fatalf("control: %s", show(d))
	}
	for name, s := range map[string]*Snapshot{"nil": nil, "zero": {}, "unreadable": Unreadable(), "empty": snap(t)} {
		for _, d := range []Decision{s.Connect(q), s.Request(q)} {
			want := ReasonPolicyUnreadable
			if name == "empty" {
				want = ReasonNotGranted
			}
			if d.Verdict != Refuse || d.Mode != Intercept || d.Reason != want {
				t.Errorf("%s: %s", name, show(d))
			}
		}
		if !s.Enforcing(now) || s.RawFallback(query(t, "a.test:22")) || s.Granted(q.Target.Host, "", now) || len(s.GrantedPrefixes("", now)) != 0 {
			t.Errorf("%s: opens something", name)
		}
		if s.JudgesPath(q.Target.Host, "", now) {
			t.Errorf("%s: has rules", name)
		}
		if _, ok := s.NextChange(now); ok {
			t.Errorf("%s: changes by itself", name)
		}
	}
	if (Decision{}).Verdict.Permits() || Verdict(9).Permits() {
		t.Error("the zero decision permits")
	}
	s := snap(t, "+a.test")
	for _, q := range []Query{{}, {Target: dest.Target{Port: 443}}, {Target: dest.Target{Host: q.Target.Host}}} {
		if d := s.Connect(q); d.Verdict != Refuse || d.Reason != ReasonBadTarget {
			t.Errorf("%v: %s", q.Target, show(d))
		}
		if d := s.Request(q); d.Verdict != Refuse || d.Reason != ReasonBadTarget {
			t.Errorf("%v: %s", q.Target, show(d))
		}
	}
}

func TestExpiryAndBoxes(t *testing.T) {
	s := compiled(t, File{Version: 1, Enforce: true, Allow: []Entry{
		{Rule: "live.test", Level: Once, Expires: &soon},
		{Rule: "dead.test", Level: Once, Expires: &past},
		{Rule: "edge.test", Level: Session, Expires: &now},
		{Rule: "box.test", Level: Session, Box: "box1"},
		{Rule: "other.test", Level: Session, Box: "box2"},
		{Rule: "both.test", Level: Once, Expires: &soon},
		{Rule: "both.test", Level: Permanent},
		{Rule: "denied.test", Level: Permanent},
		{Rule: "was.test", Level: Permanent},
	}, Deny: []Entry{
		{Rule: "denied.test", Level: Session, Expires: &soon},
		{Rule: "was.test", Level: Session, Expires: &past},
	}})
	for host, want := range map[string]Decision{
		"live.test":   {Verdict: Allow, Rule: "live.test", Level: Once, Expires: soon},
		"dead.test":   {Reason: ReasonNotGranted},
		"edge.test":   {Reason: ReasonNotGranted},
		"box.test":    {Verdict: Allow, Rule: "box.test", Level: Session},
		"other.test":  {Reason: ReasonNotGranted},
		"both.test":   {Verdict: Allow, Rule: "both.test", Level: Permanent},
		"denied.test": {Reason: ReasonDeniedRule, Rule: "denied.test", Expires: soon},
		"was.test":    {Verdict: Allow, Rule: "was.test", Level: Permanent},
	} {
		q := query(t, "https://"+host+":443")
		if diff := cmp.Diff(want, s.Connect(q)); diff != "" {
			t.Errorf("Connect(%s): %s", host, diff)
		}
		if diff := cmp.Diff(want, s.Request(q)); diff != "" {
			t.Errorf("Request(%s): %s", host, diff)
		}
		if granted := s.Granted(q.Target.Host, q.Box, now); granted != (want.Verdict == Allow || want.Reason == ReasonDeniedRule) {
			t.Errorf("Granted(%s) = %v", host, granted)
		}
	}
	q := query(t, "live.test:443")
	q.Now = time.Time{}
	if d := s.Connect(q); d.Verdict != Refuse {
		t.Errorf("without a clock an expiring grant holds: %s", show(d))
	}
	if next, ok := s.NextChange(now); !ok || !next.Equal(soon) {
		t.Errorf("NextChange = %v, %v", next, ok)
	}
	if _, ok := s.NextChange(soon); ok {
		t.Error("something changes after the last expiry")
	}
}

func TestLearningWindowEndsByItself(t *testing.T) {
	f := File{Version: 1, LearnUntil: &soon}
	s, q := compiled(t, f), query(t, "a.test:443")
	if s.Enforcing(now) || s.Connect(q).Verdict != WouldDeny {
		t.Error("the window enforces")
	}
	q.Now = soon
	if !s.Enforcing(soon) || s.Connect(q).Verdict != Refuse {
		t.Error("after the window nothing enforces")
	}
	if next, ok := s.NextChange(now); !ok || !next.Equal(soon) {
		t.Errorf("NextChange = %v, %v", next, ok)
	}
	f.Enforce = true
	if s := compiled(t, f); !s.Enforcing(now) {
		t.Error("enforce true is not enforced")
	}
	if s := compiled(t, File{Version: 1}); s.Enforcing(now) {
		t.Error("control: enforce false enforces")
	}
}

func TestRawFallback(t *testing.T) {
	for _, tt := range []struct {
		rules, ask string
		want       bool
	}{
		{"+a.test:22", "a.test:22", true},
		{"+a.test:*", "a.test:5432", true},
		{"+*.a.test:22", "x.a.test:22", true},
		{"+192.0.2.1:22", "192.0.2.1:22", true},
		{"+a.test:22", "a.test:23", false},
		{"+a.test", "a.test:443", false},
		{"+a.test:443", "a.test:443", false},
		{"+a.test:*", "a.test:80", false},
		{"+https://a.test:8443", "a.test:8443", false},
		{"+GET~a.test:8080", "a.test:8080", false},
		{"+a.test:22 +a.test/x", "a.test:22", false}, // every port of a host with a path rule
		{"+a.test:22 -a.test/x", "a.test:22", false},
		{"+a.test:22 !a.test", "a.test:22", false},
		{"+a.test:22 -a.test", "a.test:22", false},
		{"", "a.test:22", false},
	} {
		if got := snap(t, fields(tt.rules)...).RawFallback(query(t, tt.ask)); got != tt.want {
			t.Errorf("[%s] RawFallback(%s) = %v", tt.rules, tt.ask, got)
		}
	}
	f := file()
	f.Enforce = false
	if !compiled(t, f).RawFallback(query(t, "a.test:22")) {
		t.Error("without enforcement ssh does not work")
	}
	f = file("-a.test")
	f.Enforce = false
	if compiled(t, f).RawFallback(query(t, "a.test:22")) {
		t.Error("without enforcement a denial does not hold for ssh")
	}
}

func TestGrantedPrefixes(t *testing.T) {
	f := file("+192.0.2.1:22", "+10.0.0.0/8", "+10.1.2.3", "+2001:db8::/32", "+a.test", "+10.1.0.0/16:*")
	f.Allow = append(f.Allow, Entry{Rule: "203.0.113.1", Level: Session, Box: "box2"}, Entry{Rule: "203.0.113.2", Level: Once, Expires: &past})
	want := []string{"10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"}
	if diff := cmp.Diff(want, texts(compiled(t, f).GrantedPrefixes("box1", now))); diff != "" {
		t.Error(diff)
	}
	f.Enforce = false
	if diff := cmp.Diff([]string{"0.0.0.0/0", "::/0"}, texts(compiled(t, f).GrantedPrefixes("box1", now))); diff != "" {
		t.Error(diff)
	}
}

func texts(ps []netip.Prefix) []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	return out
}

func TestJudgesPath(t *testing.T) {
	s := snap(t, "+a.test/x", "+*.b.test", "-c.test/x", "+GET d.test")
	for host, want := range map[string]bool{"a.test": true, "x.b.test": false, "c.test": true, "d.test": false, "e.test": false} {
		if got := s.JudgesPath(query(t, host+":443").Target.Host, "", now); got != want {
			t.Errorf("JudgesPath(%s) = %v", host, got)
		}
	}
}

func drawQuery(t *rapid.T) Query {
	var q Query
	target, err := dest.Parse(rapid.SampledFrom([]string{"a.test", "b.test", "x.a.test", "192.0.2.1", "192.0.2.9", "[2001:db8::1]", "c.example"}).Draw(t, "host") +
		rapid.SampledFrom([]string{":443", ":80", ":22"}).Draw(t, "port"))
	if err != nil {
		t.Fatal(err)
	}
	q.Target, q.Now, q.Box = target, now, rapid.SampledFrom([]string{"box1", "box2"}).Draw(t, "box")
	q.Scheme = rapid.SampledFrom([]Scheme{SchemeHTTP, SchemeHTTPS}).Draw(t, "scheme")
	q.Method = rapid.SampledFrom([]string{"GET", "POST", "PUT"}).Draw(t, "method")
	q.Path = rapid.SampledFrom([]string{"/", "/x", "/x/1", "/a/b/y", "/%2Fz", "//x"}).Draw(t, "path")
	return q
}

func drawEntries(t *rapid.T, label string) []Entry {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Entry {
		e := Entry{Rule: drawRule(t, "rule"), Level: rapid.SampledFrom([]Level{Session, Permanent}).Draw(t, "level")}
		e.Expires = rapid.SampledFrom([]*time.Time{nil, nil, &soon, &past}).Draw(t, "expires")
		e.Box = rapid.SampledFrom([]string{"", "", "box1"}).Draw(t, "box")
		return e
	}), 0, 6).Draw(t, label)
}

func drawFile(t *rapid.T) File {
	f := File{Version: 1, Enforce: rapid.Bool().Draw(t, "enforce"), Allow: drawEntries(t, "allow"), Deny: drawEntries(t, "deny")}
	f.Passthrough = rapid.SliceOfN(rapid.SampledFrom([]string{"a.test", "*.test", "192.0.2.0/24:*", "b.test:*"}), 0, 2).Draw(t, "passthrough")
	f.Intercept = rapid.SliceOfN(rapid.SampledFrom([]string{"a.test", "*.a.test"}), 0, 1).Draw(t, "intercept")
	return f
}

func TestAddingADenialNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, q := drawFile(t), drawQuery(t)
		more := f
		more.Deny = append(slices.Clone(f.Deny), Entry{Rule: drawRule(t, "denial"), Level: Session})
		a, b := mustCompile(t, f), mustCompile(t, more)
		for _, ask := range []func(*Snapshot) Decision{
			func(s *Snapshot) Decision { return s.Connect(q) }, func(s *Snapshot) Decision { return s.Request(q) },
		} {
			before, after := ask(a), ask(b)
			if after.Verdict.Permits() && !before.Verdict.Permits() || after.Mode == Tunnel && before.Mode != Tunnel {
				t.Fatalf("%v: %s became %s", q, show(before), show(after))
			}
		}
		if b.RawFallback(q) && !a.RawFallback(q) {
			t.Fatal("a denial opens the raw fallback")
		}
	})
}

func TestAddingAGrantNeverDenies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, q := drawFile(t), drawQuery(t)
		more := f
		more.Allow = append(slices.Clone(f.Allow), Entry{Rule: drawRule(t, "grant"), Level: Session})
		a, b := mustCompile(t, f), mustCompile(t, more)
		if a.Request(q).Verdict == Allow && b.Request(q).Verdict != Allow || a.Connect(q).Verdict == Allow && b.Connect(q).Verdict != Allow {
			t.Fatalf("%v: %s became %s", q, show(a.Request(q)), show(b.Request(q)))
		}
	})
}

// The two phases agree: a request that is allowed could connect, and what is
// tunnelled unseen would have been allowed whatever it held.
func TestPhasesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, q := mustCompile(t, drawFile(t)), drawQuery(t)
		request := s.Request(q)
		blind := q
		blind.Scheme, blind.Method, blind.Path = SchemeUnknown, "", ""
		connect := s.Connect(blind)
		if request.Verdict.Permits() && !connect.Verdict.Permits() {
			t.Fatalf("%v: connect %s, request %s", q, show(connect), show(request))
		}
		if q.Scheme = SchemeHTTPS; connect.Mode == Tunnel && !s.Request(q).Verdict.Permits() {
			t.Fatalf("%v: tunnelled, though the request is %s", q, show(s.Request(q)))
		}
		if connect.Mode == Tunnel && !connect.Verdict.Permits() {
			t.Fatalf("%v: refused and tunnelled", q)
		}
	})
}

// The index finds what a walk over all rules finds.
func TestIndexAgreesWithLinearSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, q := drawFile(t), drawQuery(t)
		f.Deny, f.Enforce = nil, true
		want := slices.ContainsFunc(f.Allow, func(e Entry) bool {
			r, err := ParseRule(e.Rule)
			return err == nil && r.MatchesHost(q.Target.Host) && r.grantsPort(q.Target.Port) && (e.Box == "" || e.Box == q.Box) &&
				(e.Expires == nil || q.Now.Before(*e.Expires)) && (r.scheme == SchemeUnknown || r.scheme == q.Scheme) &&
				r.hasMethod(q.Method, false) && (r.path == "" || match(r.path, q.Path))
		})
		if got := mustCompile(t, f).Request(q).Verdict == Allow; got != want {
			t.Fatalf("%v: %v, want %v", q, got, want)
		}
	})
}

func mustCompile(t *rapid.T, f File) *Snapshot {
	s, err := compile(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func manyGrants(b testing.TB, n int) *Snapshot {
	rules := []string{"+*.deep.test", "+10.0.0.0/8", "+GET api.test/pub/*", "-bad.test", "-api.test/admin/*"}
	for i := range n {
		rules = append(rules, fmt.Sprintf("+host%d.test", i), fmt.Sprintf("+*.zone%d.test", i), fmt.Sprintf("+192.0.%d.%d", i>>8, i&255))
	}
	return snap(b, rules...)
}

func TestLookupsDoNotAllocate(t *testing.T) {
	s := manyGrants(t, 1000)
	for _, ask := range []string{"GET https://host7.test:443/x", "GET https://a.b.c.deep.test:443/x", "GET https://10.2.3.4:443/x", "GET https://api.test:443/pub/x/y", "GET https://no.test:443/x", "GET https://bad.test:443/x"} {
		q := query(t, ask)
		if n := testing.AllocsPerRun(100, func() { s.Connect(q); s.Request(q); s.RawFallback(q); s.Granted(q.Target.Host, q.Box, q.Now) }); n != 0 {
			t.Errorf("%s allocates %v times", ask, n)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, n := range []int{10, 10000} {
		s := manyGrants(b, n)
		for _, ask := range []string{"GET https://host7.test:443/x", "GET https://a.b.c.deep.test:443/x", "GET https://api.test:443/pub/x/y", "GET https://no.test:443/x"} {
			q := query(b, ask)
			b.Run(fmt.Sprintf("%d/%s", n, q.Target.Host), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Request(q)
				}
			})
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	s := manyGrants(b, 10000)
	q := query(b, "host7.test:443")
	b.ReportAllocs()
	for b.Loop() {
		s.Connect(q)
	}
}

func BenchmarkNormalPath(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NormalPath("/repos/foldyard/foldyard/pulls?state=open")
	}
}
