package policy

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const good = `{"version":1,"generation":7,"enforce":true,"allow":[{"rule":"a.test","level":"permanent","expires":null,"internal":false},` +
	`{"rule":"b.test","level":"once","expires":"2026-11-30T12:01:00Z","internal":true,"box":"box1"}],"deny":[],"passthrough":["p.test"]}`

func TestDecodeGood(t *testing.T) {
	s, err := Decode([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if s.Generation() != 7 || !s.Readable() || !s.Enforcing(now) {
		t.Errorf("generation %d, readable %v, enforcing %v", s.Generation(), s.Readable(), s.Enforcing(now))
	}
	if d := s.Connect(query(t, "b.test:443")); d.Verdict != Allow || !d.Internal || d.Level != Once || !d.Expires.Equal(soon) {
		t.Errorf("b.test: %s", show(d))
	}
	if d := s.Connect(query(t, "evil.test:443")); d.Verdict != Refuse {
		t.Errorf("evil.test: %s", show(d))
	}
}

// A2: a file that is empty, half, doubled, misspelt or of another version is
// never read as permission.
func TestDecodeRefuses(t *testing.T) {
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatalf("control: %v", err)
	}
	edit := func(old, new string) string {
		out := strings.Replace(good, old, new, 1)
		if out == good {
			t.Fatalf("%q is not in the good file", old)
		}
		return out
	}
	for name, in := range map[string]string{
		"empty":               "",
		"space":               " \n",
		"null":                "null",
		"array":               "[]",
		"string":              `"x"`,
		"no keys":             "{}",
		"version alone":       `{"version":1}`,
		"other version":       edit(`"version":1`, `"version":2`),
		"version 99":          `{"version":99,"enforce":false}`,
		"version text":        edit(`"version":1`, `"version":"1"`),
		"version fraction":    edit(`"version":1`, `"version":1.5`),
		"wrong types":         `{"version":1,"generation":"x","enforce":null,"allow":{}}`,
		"enforce null":        edit(`"enforce":true`, `"enforce":null`),
		"enforce text":        edit(`"enforce":true`, `"enforce":"false"`),
		"enforce number":      edit(`"enforce":true`, `"enforce":0`),
		"enforce missing":     edit(`"enforce":true,`, ``),
		"enforce twice":       edit(`"enforce":true`, `"enforce":true,"enforce":false`),
		"enforce in capitals": edit(`"enforce":true`, `"enforce":true,"Enforce":false`),
		"only in capitals":    edit(`"enforce":true`, `"Enforce":true`),
		"generation negative": edit(`"generation":7`, `"generation":-1`),
		"generation null":     edit(`"generation":7`, `"generation":null`),
		"allow null":          edit(`"deny":[]`, `"deny":null`),
		"allow an object":     edit(`"deny":[]`, `"deny":{}`),
		"deny missing":        edit(`"deny":[],`, ``),
		"passthrough missing": edit(`,"passthrough":["p.test"]`, ``),
		"passthrough null":    edit(`["p.test"]`, `null`),
		"passthrough entry":   edit(`["p.test"]`, `[null]`),
		"passthrough path":    edit(`["p.test"]`, `["p.test/x"]`),
		"passthrough method":  edit(`["p.test"]`, `["GET p.test"]`),
		"passthrough http":    edit(`["p.test"]`, `["http://p.test"]`),
		"passthrough star":    edit(`["p.test"]`, `["*"]`),
		"unknown key":         edit(`"deny":[]`, `"deny":[],"extra":1`),
		"unknown entry key":   edit(`"internal":false`, `"internal":false,"note":"x"`),
		"entry key twice":     edit(`"rule":"a.test"`, `"rule":"a.test","rule":"evil.test"`),
		"entry key capitals":  edit(`"rule":"a.test"`, `"rule":"a.test","RULE":"evil.test"`),
		"rule missing":        edit(`"rule":"a.test",`, ``),
		"rule null":           edit(`"rule":"a.test"`, `"rule":null`),
		"rule empty":          edit(`"rule":"a.test"`, `"rule":""`),
		"rule bad":            edit(`"rule":"a.test"`, `"rule":"a..test"`),
		"rule star":           edit(`"rule":"a.test"`, `"rule":"*"`),
		"level missing":       edit(`"level":"permanent",`, ``),
		"level unknown":       edit(`"level":"permanent"`, `"level":"forever"`),
		"level none":          edit(`"level":"permanent"`, `"level":"none"`),
		"level number":        edit(`"level":"permanent"`, `"level":3`),
		"level null":          edit(`"level":"permanent"`, `"level":null`),
		"level capitals":      edit(`"level":"permanent"`, `"level":"Permanent"`),
		"once for ever":       edit(`"level":"permanent"`, `"level":"once"`),
		"expires missing":     edit(`"expires":null,`, ``),
		"expires number":      edit(`"expires":null`, `"expires":0`),
		"expires text":        edit(`"expires":null`, `"expires":"never"`),
		"expires zero":        edit(`"expires":null`, `"expires":"0001-01-01T00:00:00Z"`),
		"internal missing":    edit(`,"internal":false`, ``),
		"internal null":       edit(`"internal":false`, `"internal":null`),
		"denial internal":     edit(`"deny":[]`, `"deny":[{"rule":"a.test","level":"session","expires":null,"internal":true}]`),
		"box null":            edit(`"box":"box1"`, `"box":null`),
		"box space":           edit(`"box":"box1"`, `"box":" box1"`),
		"trailing object":     good + "{}",
		"trailing brace":      good + "}",
		"trailing word":       good + " x",
		"trailing nul":        good + "\x00",
		"BOM":                 "\ufeff" + good,
		"not UTF-8":           edit("a.test", "a\xff.test"),
		"comment":             "// x\n" + good,
		"trailing comma":      edit(`"deny":[]`, `"deny":[],`) + ",",
		"too large":           good + strings.Repeat(" ", maxFile),
	} {
		s, err := Decode([]byte(in))
		if err == nil || s != nil {
			t.Errorf("%s: decoded to %v, %v", name, s, err)
		}
	}
	for n := range len(good) {
		if s, err := Decode([]byte(good[:n])); err == nil || s != nil {
			t.Errorf("the first %d bytes are taken for the whole", n)
		}
	}
}

func TestDecodeTakesSpaceAround(t *testing.T) {
	if _, err := Decode([]byte("\n " + good + " \n")); err != nil {
		t.Error(err)
	}
}

func TestEncodeDecode(t *testing.T) {
	f := file("+a.test", "-b.test", "~c.test", "!d.test")
	f.LearnUntil, f.Enforce = &soon, false
	b, err := Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(b)
	if err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if diff := cmp.Diff(f, got); diff != "" {
		t.Error(diff)
	}
	b, err = Encode(File{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Decode(b); err != nil || s.Enforcing(now) {
		t.Errorf("an empty file: %v in %s", err, b)
	}
	for name, f := range map[string]File{
		"bad rule":   {Allow: []Entry{{Rule: "*", Level: Session}}},
		"no level":   {Allow: []Entry{{Rule: "a.test"}}},
		"level 9":    {Allow: []Entry{{Rule: "a.test", Level: 9}}},
		"once":       {Allow: []Entry{{Rule: "a.test", Level: Once}}},
		"bad denial": {Deny: []Entry{{Rule: "", Level: Session}}},
		"bad pass":   {Passthrough: []string{"a.test/x"}},
	} {
		if b, err := Encode(f); err == nil {
			t.Errorf("%s: encoded to %s", name, b)
		}
	}
}

func TestEncodeDecodeIsIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, q := drawFile(t), drawQuery(t)
		b, err := Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Decode(b)
		if err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		if want, got := mustCompile(t, f).Request(q), s.Request(q); want.Verdict != got.Verdict || want.Rule != got.Rule || want.Reason != got.Reason {
			t.Fatalf("%s before, %s after", show(want), show(got))
		}
	})
}

func TestLevelText(t *testing.T) {
	for _, l := range []Level{Once, Session, Permanent} {
		b, err := l.MarshalText()
		var again Level
		if err != nil || again.UnmarshalText(b) != nil || again != l {
			t.Errorf("%v: %q, %v", l, b, err)
		}
	}
	for _, l := range []Level{LevelNone, 9} {
		if b, err := l.MarshalText(); err == nil {
			t.Errorf("level %d has the text %q", l, b)
		}
	}
}

// FuzzDecode: what is taken is also what encoding/json reads when told to be
// strict, keeps its meaning through Encode, and names each key exactly once.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{good, "", "{}", `{"version":1}`, good + "{}", strings.Replace(good, "enforce", "Enforce", 1),
		`{"version":1,"generation":0,"enforce":false,"learn_until":"2026-11-30T12:00:00Z","allow":[],"deny":[{"rule":"*.x.test","level":"session","expires":null,"internal":false}],"passthrough":[],"intercept":["a.test"]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			if s != nil {
				t.Fatal("a snapshot beside an error")
			}
			return
		}
		got, err := decode(b)
		if err != nil {
			t.Fatal(err)
		}
		var std File
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&std); err != nil || d.More() {
			t.Fatalf("encoding/json does not take it: %v", err)
		}
		if diff := cmp.Diff(std, got); diff != "" {
			t.Fatal(diff)
		}
		out, err := Encode(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(out)
		if err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if len(got.Intercept) == 0 { // omitted when empty
			got.Intercept, again.Intercept = nil, nil
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestPolicyFileIsBounded(t *testing.T) {
	at := good + strings.Repeat(" ", maxFile-len(good))
	if _, err := Decode([]byte(at)); err != nil {
		t.Fatalf("control: %v", err)
	}
	if _, err := Decode([]byte(at + " ")); err == nil {
		t.Error("a file that is too large was read")
	}
}
