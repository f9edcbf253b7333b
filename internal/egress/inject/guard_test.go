package inject

import (
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"

	"foldyard/internal/egress/policy"
)

// The token of a box's way out goes nowhere: not to a host without a rule, not to one with, not in a body, and not by a CONNECT.
func TestTokenOfTheWayOutIsGuarded(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef01234567"
	in := map[string]string{
		"a field":                  "GET https://other.test/\nX: " + token,
		"as it stands in FY_PROXY": "GET https://other.test/\nX: http://box:" + token + "@192.168.5.2:41000",
		"in basic":                 "GET https://other.test/\nAuthorization: Basic " + base64.StdEncoding.EncodeToString([]byte("box:"+token)),
		"the query":                "GET https://other.test/?t=" + token,
		"to a host with a rule":    "GET https://api.test/\nX: " + token,
		"over plain http":          "GET http://other.test/\nX: " + token,
	}
	b := newBench(t, demo())
	for name, text := range in {
		if _, refusal := b.Head(t.Context(), ask(text)); refusal != nil {
			t.Errorf("control, %s: refused before it was a token: %+v", name, refusal)
		}
	}
	b.Guard([]string{token})
	for name, text := range in {
		_, refusal := b.Head(t.Context(), ask(text))
		if refusal == nil || refusal.Reason != policy.ReasonDummyElsewhere || strings.Contains(refusal.What+refusal.Detail, token) || !strings.Contains(refusal.What, "way out") {
			t.Errorf("%s: %+v", name, refusal)
		}
	}
	if len(b.alerts) != len(in) {
		t.Errorf("%d alerts, want %d", len(b.alerts), len(in))
	}
	q := ask("GET https://other.test/\nX: " + token)
	if r := b.Connect("box1", q.Target, q.Header); r == nil {
		t.Error("a CONNECT carries it")
	}
	for _, url := range []string{"https://other.test/", "https://api.test/"} {
		g, refusal := b.Head(t.Context(), ask("POST "+url+"\nContent-Type: application/json\nContent-Length: 1"))
		if refusal != nil || !g.Reads() {
			t.Fatalf("%s: %+v", url, refusal)
		}
		var stopped *Refusal
		if _, err := io.ReadAll(g.Request(strings.NewReader(`{"env":"` + token + `"}`))); !errors.As(err, &stopped) || stopped.Reason != policy.ReasonDummyElsewhere {
			t.Errorf("%s: in a body: %v", url, err)
		}
	}
	// Rules that are loaded later keep it, and the rules keep what they had.
	if err := b.Load([]Rule{demo()}); err != nil {
		t.Fatal(err)
	}
	if _, refusal := b.Head(t.Context(), ask(in["a field"])); refusal == nil {
		t.Error("another load of the rules forgets it")
	}
	q = ask("GET https://api.test/\nAuthorization: Bearer " + theDummy)
	if _, refusal := b.Head(t.Context(), q); refusal != nil || !strings.Contains(fields(q.Header), theSecret) {
		t.Errorf("the rule: %+v, %s", refusal, fields(q.Header))
	}
	b.Guard(nil)
	if _, refusal := b.Head(t.Context(), ask(in["a field"])); refusal != nil {
		t.Errorf("the box has ended, and it is refused: %+v", refusal)
	}
}

// It is guarded where there is no rule at all, too.
func TestTokenIsGuardedWithoutRules(t *testing.T) {
	b := newBench(t)
	b.Guard([]string{"0123456789abcdef"})
	if _, refusal := b.Head(t.Context(), ask("GET https://other.test/\nX: 0123456789abcdef")); refusal == nil {
		t.Error("it went out")
	}
	if _, refusal := b.Head(t.Context(), ask("GET https://other.test/\nX: 0123456789abcde")); refusal != nil {
		t.Errorf("control: %+v", refusal)
	}
}
