package supervisor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/wall/namespace"
)

func parse(t *testing.T, s string) dest.Target {
	t.Helper()
	x, err := dest.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestRefusalIsAskedUntilItIsAnswered(t *testing.T) {
	s, c := world(t, "")
	ctx := t.Context()
	since := c.t
	r := denied("a.test", 443, "not_granted")
	r.Process = &capture.Process{PID: 7, Exe: "/usr/bin/curl"}
	s.record(r)
	c.t = c.t.Add(time.Minute)
	s.record(denied("a.test", 443, "not_granted"))
	s.record(denied("b.test", 22, "not_granted"))
	s.record(denied("c.test", 443, "address_class")) // no grant of this kind would help
	s.record(denied("1.1.1.1", 443, "udp"))
	got, err := s.Asks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []control.Ask{
		{ID: "1", Host: "a.test", Port: 443, Rule: "a.test", Process: json.RawMessage(`{"pid":7,"exe":"/usr/bin/curl","cmd":""}`), Since: since, Count: 2},
		{ID: "2", Host: "b.test", Port: 22, Rule: "b.test:22", Process: json.RawMessage("null"), Since: c.t, Count: 1},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	if _, err := s.Answer(ctx, "1", control.Answer{Allow: true, RuleRequest: control.RuleRequest{Level: state.Session}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Answer(ctx, "2", control.Answer{}); err != nil {
		t.Fatal(err)
	}
	if verdict(t, s, "a.test") != "allow" || verdict(t, s, "b.test:22") != "deny" {
		t.Error("the answers do not hold")
	}
	if got, _ := s.Asks(ctx); len(got) != 0 {
		t.Errorf("answered, and still asked: %v", got)
	}
	if _, err := s.Answer(ctx, "1", control.Answer{Allow: true}); code(err) != control.CodeNotFound {
		t.Errorf("answered twice: %v", err)
	}
}

// An answer that would not help is none, and one that helps opens no more than was asked for.
func TestAnswerAboutAnAddressThatIsNotPublic(t *testing.T) {
	s, _ := world(t, "")
	s.record(denied("10.0.0.1", 443, "not_granted"))
	s.record(denied("192.0.2.1", 443, "not_granted"))
	allow := func(id string, internal bool) error {
		_, err := s.Answer(t.Context(), id, control.Answer{Allow: true, RuleRequest: control.RuleRequest{Level: state.Session, Internal: internal}})
		return err
	}
	if err := allow("1", false); code(err) != control.CodeBad || !strings.Contains(fmt.Sprint(err), "not a public address") {
		t.Errorf("a grant that does not help: %v", err)
	}
	if err := allow("1", true); err != nil {
		t.Fatal(err)
	}
	if err := allow("2", false); err != nil {
		t.Fatalf("control: a public address: %v", err)
	}
	var rules []string
	for _, g := range s.grants.File().Grants {
		rules = append(rules, g.Rule)
	}
	if d := cmp.Diff([]string{"10.0.0.1:443", "192.0.2.1"}, rules); d != "" {
		t.Error(d)
	}
}

func TestHeldRequestWaitsForItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(t, time.Now, "[project]\nname = \"p\"\n[proxy]\nask = \"hold\"\nask_timeout = \"20s\"\n"))
		defer s.close()
		held := func(target string) chan policy.Reason {
			ch := make(chan policy.Reason, 1)
			go func() { ch <- s.hold(t.Context(), proxy.Ask{Box: "b", Target: parse(t, target)}) }()
			synctest.Wait()
			return ch
		}
		granted, refused, forgotten := held("a.test:443"), held("b.test:443"), held("c.test:443")
		rows, _ := s.Asks(t.Context())
		if len(rows) != 3 || !rows[0].Held {
			t.Fatalf("asks %+v", rows)
		}
		for _, r := range rows {
			if r.Host == "c.test" {
				continue
			}
			if _, err := s.Answer(t.Context(), r.ID, control.Answer{Allow: r.Host == "a.test"}); err != nil {
				t.Fatal(err)
			}
		}
		if <-granted != "" || <-refused != "" {
			t.Error("an answer did not reach who waits")
		}
		begin := time.Now()
		if got := <-forgotten; got != policy.ReasonHeldTimeout {
			t.Errorf("without an answer: %q", got)
		}
		if waited := time.Since(begin); waited != 20*time.Second {
			t.Errorf("waited %s, want ask_timeout", waited)
		}
		if rows, _ := s.Asks(t.Context()); len(rows) != 1 || rows[0].Held {
			t.Errorf("after the timeout: %+v", rows)
		}
	})
}

// The battery of a box that holds is refused at once, or nothing of it would be shown.
func TestProbesAreNotHeld(t *testing.T) {
	s, _ := world(t, "[project]\nname = \"p\"\n[proxy]\nask = \"hold\"\nask_timeout = \"20s\"\n")
	b := s.newSandbox(state.Box{ID: "b"}, namespace.User{})
	s.boxes["b"] = b
	b.probing.Store(true)
	if got := s.hold(t.Context(), proxy.Ask{Box: "b", Target: parse(t, "a.test:443")}); got != policy.ReasonNotGranted {
		t.Errorf("got %q", got)
	}
	if rows, _ := s.Asks(t.Context()); len(rows) != 0 {
		t.Errorf("asks %+v", rows)
	}
	b.probing.Store(false)
	delete(s.boxes, "b")
}

func TestAsksAreBounded(t *testing.T) {
	var a asks
	now := time.Now()
	for i := range maxAsks + 50 {
		a.refused(parse(t, fmt.Sprintf("h%d.test:443", i)), nil, now.Add(time.Duration(i)*time.Second))
	}
	if a.len() != maxAsks {
		t.Errorf("%d asks", a.len())
	}
	if _, ok := a.find("1"); ok {
		t.Error("the oldest is still there")
	}
	if _, ok := a.find(fmt.Sprint(maxAsks + 50)); !ok {
		t.Error("the newest is not")
	}
}
