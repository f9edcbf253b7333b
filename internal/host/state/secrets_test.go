package state

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func secretStore(t *testing.T) (*Secrets, Project) {
	t.Helper()
	dir := t.TempDir()
	l, err := NewLayout(func(k string) string {
		if k == "FOLDYARD_HOME" {
			return dir
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Project("acc")
	if err != nil {
		t.Fatal(err)
	}
	return OpenSecrets(p), p
}

func TestSecretsKeepEveryByte(t *testing.T) {
	s, p := secretStore(t)
	values := map[string]string{
		"FY_INJECT_PLAIN": "ghp_abc=def/+", "FY_INJECT_QUOTE": `"quoted" \ x`, "FY_INJECT_LINES": "-----BEGIN\nline\r\n-----END\n", "FY_INJECT_SPACE": " lead and trail ",
		"FY_INJECT_BYTES": "\x01\xff\xfe\t", "FY_INJECT_HASH": "#x", "FY_INJECT_UTF": "pässwörd",
	}
	for name, v := range values {
		if err := s.Set(t.Context(), name, []byte(v), nil); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range values {
		got, ok, err := s.Get(name)
		if err != nil || !ok || string(got) != want {
			t.Errorf("%s: %q, %v, %v", name, got, ok, err)
		}
	}
	info, err := os.Stat(p.Secrets())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, ok, err := s.Get("FY_INJECT_NONE"); ok || err != nil {
		t.Errorf("a secret that is not there: %v, %v", ok, err)
	}
	if ok, err := s.Remove(t.Context(), "FY_INJECT_PLAIN", "plain"); !ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := s.Remove(t.Context(), "FY_INJECT_PLAIN", "plain"); ok || err != nil {
		t.Error("removed twice", err)
	}
	names, err := s.Variables()
	if err != nil || len(names) != len(values)-1 {
		t.Errorf("%q, %v", names, err)
	}
}

func TestSecretsRefuse(t *testing.T) {
	s, _ := secretStore(t)
	for name, c := range map[string]struct{ variable, value string }{
		"empty": {"FY_X", ""}, "NUL": {"FY_X", "a\x00b"}, "lower case": {"fy_x", "v"}, "a line break in the name": {"A\nB", "v"}, "too long": {"FY_X", strings.Repeat("x", MaxSecret+1)},
	} {
		if err := s.Set(t.Context(), c.variable, []byte(c.value), nil); err == nil {
			t.Errorf("%s: stored", name)
		}
	}
	if err := s.Set(t.Context(), "FY_X", []byte("v"), nil); err != nil {
		t.Errorf("control: %v", err)
	}
}

// A store that is damaged, or that others may read, gives nothing and is left
// as it is; no error holds a value.
func TestDamagedSecretsAreLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"no key":        {"s3cr3t-line\n", 0o600},
		"twice":         {"A=s3cr3t\nA=t\n", 0o600},
		"bad quotes":    {"A=\"s3cr3t\n", 0o600},
		"others read":   {"A=s3cr3t\n", 0o640},
		"others write":  {"A=s3cr3t\n", 0o606},
		"lower case":    {"a=s3cr3t\n", 0o600},
		"binary before": {"\x00\x01=s3cr3t\n", 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := secretStore(t)
			if err := os.MkdirAll(p.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.Secrets(), []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(p.Secrets(), c.mode); err != nil {
				t.Fatal(err)
			}
			_, _, err := s.Get("B")
			errs := errors.Join(err, s.Set(t.Context(), "B", []byte("v"), nil))
			if err == nil || strings.Contains(errs.Error(), "s3cr3t") {
				t.Errorf("%v", errs)
			}
			after, err := os.ReadFile(p.Secrets())
			if err != nil || string(after) != c.text {
				t.Errorf("changed to %q, %v", after, err)
			}
		})
	}
}

func TestBoundsCover(t *testing.T) {
	b := Bound{Name: "github", Hosts: []string{"api.github.com", "github.com"}, Facts: []string{"header authorization", "kind static"}}
	for name, c := range map[string]struct {
		want Bound
		says string
	}{
		"the same":           {Bound{Name: "github", Hosts: b.Hosts, Facts: b.Facts}, ""},
		"fewer hosts":        {Bound{Name: "github", Hosts: b.Hosts[:1], Facts: b.Facts}, ""},
		"another host (A46)": {Bound{Name: "github", Hosts: []string{"api.github.com", "evil.test"}, Facts: b.Facts}, "github -> evil.test"},
		"another port":       {Bound{Name: "github", Hosts: []string{"api.github.com:8443"}, Facts: b.Facts}, "github -> api.github.com:8443"},
		"another header":     {Bound{Name: "github", Hosts: b.Hosts, Facts: []string{"header x-key", "kind static"}}, "github: header x-key"},
		"another kind":       {Bound{Name: "github", Hosts: b.Hosts, Facts: []string{"header authorization", "kind oauth-refresh"}}, "github: kind oauth-refresh"},
		"no longer narrowed": {Bound{Name: "github", Hosts: b.Hosts, Facts: []string{"kind static"}}, "no longer header authorization"},
	} {
		got := strings.Join(b.Covers(c.want), ", ")
		if (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
	if got := (Bound{}).Covers(Bound{Name: "x", Hosts: []string{"a.test"}}); len(got) != 1 {
		t.Errorf("nothing confirmed covers %v", got)
	}
}

func TestBindingsSurviveAndStampsChange(t *testing.T) {
	s, p := secretStore(t)
	b := Bound{Name: "demo", Hosts: []string{"b.test", "a.test"}, Facts: []string{"kind static"}, Since: time.Unix(1, 0).UTC()}
	if err := s.Set(t.Context(), "FY_INJECT_DEMO", []byte("v"), &b); err != nil {
		t.Fatal(err)
	}
	first, err := OpenSecrets(p).Bounds()
	if err != nil {
		t.Fatal(err)
	}
	want := b
	want.Hosts, want.Stamp = []string{"a.test", "b.test"}, first["demo"].Stamp
	if diff := cmp.Diff(map[string]Bound{"demo": want}, first); diff != "" || want.Stamp == "" {
		t.Error(diff)
	}
	if err := s.SwitchOff(t.Context(), "demo", "came back"); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Bounds(); got["demo"].Off != "came back" || got["demo"].Stamp != want.Stamp {
		t.Errorf("%+v", got)
	}
	if err := s.Bind(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Bounds(); got["demo"].Off != "" || got["demo"].Stamp == want.Stamp {
		t.Errorf("%+v", got)
	}
	if ok, err := s.Remove(t.Context(), "FY_INJECT_DEMO", "demo"); !ok || err != nil {
		t.Error(ok, err)
	}
	if got, err := s.Bounds(); len(got) != 0 || err != nil {
		t.Error(got, err)
	}
}

func TestSecretsAreSafeForConcurrentUse(t *testing.T) {
	_, p := secretStore(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := OpenSecrets(p)
			name := "FY_INJECT_" + string(rune('A'+i))
			for range 5 {
				if err := s.Set(context.Background(), name, []byte("value of "+name), &Bound{Name: strings.ToLower(name[10:])}); err != nil {
					t.Error(err)
				}
				if v, ok, err := s.Get(name); err != nil || !ok || string(v) != "value of "+name {
					t.Errorf("%s: %q, %v, %v", name, v, ok, err)
				}
			}
		})
	}
	wg.Wait()
	names, err := OpenSecrets(p).Variables()
	if err != nil || len(names) != 8 {
		t.Errorf("%q, %v", names, err)
	}
	if b, err := OpenSecrets(p).Bounds(); len(b) != 8 || err != nil {
		t.Errorf("%v, %v", b, err)
	}
}

// A temporary file of a crash is not left lying about.
func TestLeftoversAreSwept(t *testing.T) {
	s, p := secretStore(t)
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(p.Dir, ".secrets.env.123.tmp")
	if err := os.WriteFile(left, []byte("A=s3cr3t"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "FY_X", []byte("v"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("still there")
	}
}

func FuzzSecretsFile(f *testing.F) {
	f.Add([]byte("A=b\nC=\"d\\n\"\n# x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out []byte
		if eachSecret(data, func(name string, v []byte) bool {
			out = appendSecret(out, name, v)
			return true
		}) != nil {
			return
		}
		var again []byte
		if err := eachSecret(out, func(name string, v []byte) bool {
			again = appendSecret(again, name, v)
			return true
		}); err != nil || !bytes.Equal(out, again) {
			t.Errorf("%q became %q, %v", out, again, err)
		}
	})
}
