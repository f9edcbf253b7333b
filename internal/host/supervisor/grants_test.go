package supervisor

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

func TestAllowDenyRevokeHoldAtOnce(t *testing.T) {
	s, _ := world(t, "")
	ctx := t.Context()
	if got := verdict(t, s, "a.test"); got != "deny" {
		t.Fatalf("a new project says %s", got)
	}
	if _, err := s.Allow(ctx, control.RuleRequest{Rules: []string{"*.test", "b.test:5432"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deny(ctx, control.RuleRequest{Rules: []string{"secret.test"}, Level: state.Permanent}); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"a.test": "allow", "b.test:5432": "allow", "a.test:5432": "deny", "secret.test": "deny", "test": "deny", "https://a.test/x": "allow",
	} {
		if got := verdict(t, s, target); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
	if _, err := s.Revoke(ctx, control.RuleRequest{Rules: []string{"*.test"}}); err != nil {
		t.Fatal(err)
	}
	if got := verdict(t, s, "a.test"); got != "deny" {
		t.Errorf("revoked: %s", got)
	}
	if got := verdict(t, s, "b.test:5432"); got != "allow" {
		t.Errorf("control: another grant fell with it: %s", got)
	}
}

func TestBadRequestsChangeNothing(t *testing.T) {
	s, _ := world(t, "[project]\nname = \"p\"\n[proxy]\npassthrough = [\"pinned.test\"]\n")
	ctx := t.Context()
	before := s.effective.Snapshot().Generation()
	for name, c := range map[string]struct {
		q    control.RuleRequest
		want string
	}{
		"everything":          {control.RuleRequest{Rules: []string{"*"}}, control.CodeBad},
		"nothing":             {control.RuleRequest{}, control.CodeBad},
		"second rule is bad":  {control.RuleRequest{Rules: []string{"a.test", "a test"}}, control.CodeBad},
		"level":               {control.RuleRequest{Rules: []string{"a.test"}, Level: "always"}, control.CodeBad},
		"ttl without once":    {control.RuleRequest{Rules: []string{"a.test"}, TTL: control.Duration(time.Minute)}, control.CodeBad},
		"ttl too long":        {control.RuleRequest{Rules: []string{"a.test"}, Level: "once", TTL: control.Duration(maxOnce + 1)}, control.CodeBad},
		"ttl negative":        {control.RuleRequest{Rules: []string{"a.test"}, Level: "once", TTL: -1}, control.CodeBad},
		"shared host":         {control.RuleRequest{Rules: []string{"*.github.io"}}, control.CodeConfirm},
		"path in passthrough": {control.RuleRequest{Rules: []string{"pinned.test/x"}}, control.CodeConflict},
		"no such box":         {control.RuleRequest{Rules: []string{"a.test"}, Box: "dead"}, control.CodeNotFound},
	} {
		if _, err := s.Allow(ctx, c.q); code(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := s.Revoke(ctx, control.RuleRequest{Rules: []string{"never.test"}}); code(err) != control.CodeNotFound {
		t.Errorf("revoke of nothing: %v", err)
	}
	if got := s.effective.Snapshot().Generation(); got != before || verdict(t, s, "a.test") != "deny" {
		t.Errorf("generation %d, was %d", got, before)
	}
	if _, err := s.Allow(ctx, control.RuleRequest{Rules: []string{"*.github.io"}, Yes: true}); err != nil {
		t.Errorf("control: %v", err)
	}
}

func TestChangeUnderDamageIsRefusedAndNamesTheFile(t *testing.T) {
	s, _ := world(t, "")
	path := s.opt.Project.Effective()
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Allow(t.Context(), control.RuleRequest{Rules: []string{"a.test"}})
	if code(err) != control.CodeConflict || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	s.effective.poll()
	if got := verdict(t, s, "a.test"); got != "deny" {
		t.Errorf("under damage: %s", got)
	}
}

func TestOnceExpiresByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(t, time.Now, ""))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.tick(ctx); close(done) }()
		defer func() { cancel(); <-done; s.close() }()
		for _, q := range []control.RuleRequest{
			{Rules: []string{"once.test"}, Level: state.Once, TTL: control.Duration(3 * time.Second)},
			{Rules: []string{"two.test"}, Level: state.Once},
			{Rules: []string{"session.test"}},
		} {
			if _, err := s.Allow(ctx, q); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3*time.Second - time.Millisecond)
		if got := verdict(t, s, "once.test"); got != "allow" {
			t.Errorf("just before its end: %s", got)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if got := verdict(t, s, "once.test"); got != "deny" {
			t.Errorf("after its end: %s", got)
		}
		if rows, _ := s.Grants(ctx); len(rows) != 2 {
			t.Errorf("the store still holds it: %v", rows)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := verdict(t, s, "two.test"); got != "deny" {
			t.Errorf("default ttl: %s", got)
		}
		if got := verdict(t, s, "session.test"); got != "allow" {
			t.Errorf("control: a session grant expired: %s", got)
		}
	})
}

func TestLearningEndsByItselfWithEnforcementOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(t, time.Now, ""))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.tick(ctx); close(done) }()
		defer func() { cancel(); <-done; s.close() }()
		if _, err := s.Learn(ctx, control.LearnRequest{For: control.Duration(4 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		if got := verdict(t, s, "learnt.test"); got != "would_deny" {
			t.Errorf("while learning: %s", got)
		}
		if st, err := s.Status(ctx); err != nil || st.Enforce || st.LearnUntil == nil || st.Label != "cooperative" {
			t.Errorf("status while learning: %+v, %v", st, err)
		}
		s.record(&capture.Record{Box: "b", Host: "learnt.test", Port: 443, Verdict: capture.VerdictWouldDeny, Reason: "not_granted"})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := verdict(t, s, "learnt.test"); got != "deny" {
			t.Errorf("after the window: %s", got)
		}
		if st, _ := s.Status(ctx); !st.Enforce {
			t.Error("the allowlist is off after the window")
		}
		l, err := s.Review(ctx, control.ReviewRequest{})
		if err != nil || len(l.Learnt) != 1 || l.Learnt[0].Rule != "learnt.test" || len(l.Granted) != 0 {
			t.Fatalf("review: %+v, %v", l, err)
		}
		if got := verdict(t, s, "learnt.test"); got != "deny" {
			t.Errorf("a look granted it: %s", got)
		}
		if l, err = s.Review(ctx, control.ReviewRequest{Yes: true}); err != nil || len(l.Granted) != 1 || len(l.Learnt) != 0 {
			t.Fatalf("review --yes: %+v, %v", l, err)
		}
		if got := verdict(t, s, "learnt.test"); got != "allow" {
			t.Errorf("granted: %s", got)
		}
	})
}

func TestIdleStopEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opt := options(t, time.Now, "")
		s := start(t, opt)
		ctx, cancel := context.WithCancel(t.Context())
		s.quit = cancel
		done := make(chan struct{})
		go func() { s.tick(ctx); close(done) }()
		for _, q := range []control.RuleRequest{{Rules: []string{"session.test"}}, {Rules: []string{"perm.test"}, Level: state.Permanent}} {
			if _, err := s.Allow(ctx, q); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(idleStop - time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal("it stopped too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("it goes on")
		}
		cancel()
		<-done
		s.close()
		next := start(t, opt)
		defer next.close()
		if got := verdict(t, next, "session.test"); got != "deny" {
			t.Errorf("a session grant outlived the idle stop: %s", got)
		}
		if got := verdict(t, next, "perm.test"); got != "allow" {
			t.Errorf("control: %s", got)
		}
	})
}

func TestSessionSurvivesACrashAndARestart(t *testing.T) {
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	opt := options(t, c.now, "")
	s := start(t, opt)
	if _, err := s.Allow(t.Context(), control.RuleRequest{Rules: []string{"session.test"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	s.close()
	s = start(t, opt)
	if got := verdict(t, s, "session.test"); got != "allow" {
		t.Errorf("after a restart: %s", got)
	}
	if err := s.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	s.close()
	s = start(t, opt)
	defer s.close()
	if got := verdict(t, s, "session.test"); got != "deny" {
		t.Errorf("after a stop: %s", got)
	}
}

func TestFirstValueOfTheSwitchIsTheConfigsThenTheStores(t *testing.T) {
	s, _ := world(t, "[project]\nname = \"p\"\n[proxy]\nenforce = false\n")
	if got := verdict(t, s, "a.test"); got != "would_deny" {
		t.Fatalf("enforce = false: %s", got)
	}
	if _, err := s.Enforce(t.Context(), control.EnforceRequest{On: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := verdict(t, s, "a.test"); got != "deny" {
		t.Errorf("the config took the switch back: %s", got)
	}
}

func TestHitsAreCounted(t *testing.T) {
	s, _ := world(t, "")
	if _, err := s.Allow(t.Context(), control.RuleRequest{Rules: []string{"a.test"}, Reason: "ci"}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.record(&capture.Record{Host: "a.test", Port: 443, Verdict: capture.VerdictAllow, Rule: "a.test"})
	}
	rows, err := s.Grants(t.Context())
	if err != nil || len(rows) != 1 || rows[0].Hits != 3 || rows[0].Reason != "ci" || rows[0].Origin != "fy allow" {
		t.Errorf("%+v, %v", rows, err)
	}
}

// A grant that a denial covers, or that leads to no public address, is told for what it is.
func TestGrantsThatOpenNothingAreTold(t *testing.T) {
	s, _ := world(t, "")
	ctx := t.Context()
	if _, err := s.Deny(ctx, control.RuleRequest{Rules: []string{"*.no.test"}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Allow(ctx, control.RuleRequest{Rules: []string{"a.no.test", "b.test", "10.1.2.3", "192.0.2.1"}})
	if err != nil || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "a.no.test") {
		t.Errorf("notes %q, %v", got.Notes, err)
	}
	for target, want := range map[string]string{
		"a.no.test": "deny denied_rule", "b.test": "allow ", "192.0.2.1": "allow ",
		"10.1.2.3": "deny address_class", "https://10.1.2.3/": "deny address_class",
	} {
		w, err := s.Why(ctx, control.WhyRequest{Target: target})
		if got := w.Verdict + " " + w.Reason; err != nil || got != want {
			t.Errorf("%s: %s, want %s (%v)", target, got, want, err)
		}
		if target == "10.1.2.3" && w.Fix != "fy allow 10.1.2.3:443 --internal" {
			t.Errorf("fix %q", w.Fix)
		}
	}
}
