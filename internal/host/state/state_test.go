package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func testLayout(t *testing.T) Layout {
	t.Helper()
	d := t.TempDir()
	l, err := NewLayout(func(k string) string { return map[string]string{"FOLDYARD_HOME": d}[k] })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testProject(t *testing.T) Project {
	t.Helper()
	p, err := testLayout(t).Project("acc")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ensure(); err != nil {
		t.Fatal(err)
	}
	return p
}

func openGrants(t *testing.T, p Project) *Grants {
	t.Helper()
	g, err := OpenGrants(p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestLayout(t *testing.T) {
	for _, tt := range []struct {
		env                  map[string]string
		config, state, cache string
	}{
		{map[string]string{"FOLDYARD_HOME": "/d/", "HOME": "/h"}, "/d", "/d", "/d/cache"},
		{map[string]string{"HOME": "/h"}, "/h/.config/foldyard", "/h/.local/state/foldyard", "/h/.cache/foldyard"},
		{map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "relative"}, "/h/.config/foldyard", "/s/foldyard", "/h/.cache/foldyard"},
	} {
		l, err := NewLayout(func(k string) string { return tt.env[k] })
		if err != nil || l.ConfigDir != tt.config || l.StateDir != tt.state || l.CacheDir != tt.cache {
			t.Errorf("%v: %+v, %v", tt.env, l, err)
		}
	}
	for _, env := range []map[string]string{{}, {"FOLDYARD_HOME": "d", "HOME": "/h"}, {"HOME": "h"}} {
		if l, err := NewLayout(func(k string) string { return env[k] }); err == nil {
			t.Errorf("%v: %+v", env, l)
		}
	}
}

func TestProjectNames(t *testing.T) {
	l := testLayout(t)
	for _, name := range []string{"a", "my.app_2-x", strings.Repeat("a", maxName)} {
		if _, err := l.Project(name); err != nil {
			t.Errorf("control %q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "-a", ".a", "a b", "a\n", "ä", strings.Repeat("a", maxName+1)} {
		if p, err := l.Project(name); err == nil {
			t.Errorf("%q became %s", name, p.Dir)
		}
	}
}

func TestSocketPathFitsTheKernel(t *testing.T) {
	long := "/" + strings.Repeat("d", 90)
	l, err := NewLayout(func(k string) string {
		return map[string]string{"FOLDYARD_HOME": long, "XDG_RUNTIME_DIR": "/run/user/1000"}[k]
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Project("acc")
	if err != nil {
		t.Fatal(err)
	}
	q, err := l.Project("other")
	if err != nil {
		t.Fatal(err)
	}
	sockets := []string{p.ControlSocket(), q.ControlSocket(), p.BoxSocket("b1"), p.BoxSocket("b2")}
	for _, s := range sockets {
		if len(s) > maxSocketPath || !strings.HasPrefix(s, "/run/user/1000/foldyard/") {
			t.Errorf("socket %s", s)
		}
	}
	if slices.Sort(sockets); len(slices.Compact(sockets)) != 4 {
		t.Errorf("sockets collide: %v", sockets)
	}
	short := testProject(t)
	if got := short.ControlSocket(); got != filepath.Join(short.Dir, "control.sock") && len(short.Dir) < 80 {
		t.Errorf("control: %s", got)
	}
}

func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two"} {
		if err := WriteAtomic(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(path, 10)
		if err != nil || string(got) != text {
			t.Errorf("read %q, %v", got, err)
		}
	}
	// It replaces a symbolic link, it does not write through it.
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := WriteAtomic(link, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(target); string(got) != "mine" {
		t.Errorf("written through the link: %q", got)
	}
	// A directory in the way fails and leaves nothing.
	if err := os.MkdirAll(filepath.Join(dir, "d", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteAtomic(filepath.Join(dir, "d"), nil, 0o600); err == nil {
		t.Error("replaced a directory")
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReadFileIsStrict(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]fs.FileMode{"good": 0o644, "open": 0o666, "private": 0o600} {
		if err := os.WriteFile(path(name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(path("good"), path("link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"good": true, "private": true, "open": false, "link": false, "fifo": false, ".": false} {
		if _, err := ReadFile(path(name), 10); (err == nil) != ok {
			t.Errorf("ReadFile %s: %v", name, err)
		}
	}
	if _, err := ReadSecret(path("private"), 10); err != nil {
		t.Errorf("control: %v", err)
	}
	if _, err := ReadSecret(path("good"), 10); err == nil {
		t.Error("a secret that everybody may read was read")
	}
	if _, err := ReadFile(path("none"), 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if _, err := ReadFile(path("good"), 0); err == nil {
		t.Error("more than the limit was read")
	}
}

func TestEnsureDirNarrows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := EnsureDir(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	link := dir + "-link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := EnsureDir(link); err == nil {
		t.Error("a symbolic link was taken for a directory of ours")
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	first, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := AcquireLock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := AcquireLock(t.Context(), path)
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	if err := first.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the waiter: %v", err)
	}
}

func TestDecodeStrict(t *testing.T) {
	type inner struct {
		A int `json:"a"`
	}
	type outer struct {
		Enforce bool             `json:"enforce"`
		Inner   *inner           `json:"inner"`
		List    []inner          `json:"list"`
		Map     map[string]inner `json:"map"`
		When    *time.Time       `json:"when"`
	}
	for _, s := range []string{
		`{}`, `{"enforce":true,"inner":{"a":1},"list":[{"a":1},{"a":2}],"map":{"x":{"a":1},"X":{"a":2}},"when":"2026-11-30T12:00:00Z"}`,
		` {"inner":null} `,
	} {
		if err := DecodeStrict([]byte(s), new(outer)); err != nil {
			t.Errorf("control %s: %v", s, err)
		}
	}
	for _, s := range []string{
		``, `{`, `[]x`, `{} {}`, `{"enforce":true}junk`,
		`{"enforce":true,"Enforce":false}`, `{"ENFORCE":false}`, `{"enforce":true,"enforce":false}`,
		`{"other":1}`, `{"inner":{"A":1}}`, `{"list":[{"a":1,"a":2}]}`, `{"map":{"x":{"b":1}}}`, `{"map":{"x":{},"x":{}}}`,
		`{"enforce":"yes"}`, `{"when":"yesterday"}`, strings.Repeat(`{"map":`, 100),
	} {
		if err := DecodeStrict([]byte(s), new(outer)); err == nil {
			t.Errorf("taken: %s", s)
		}
	}
}

func TestBoxes(t *testing.T) {
	p := testProject(t)
	for i, id := range []string{"b2", "b1"} {
		if err := WriteBox(p, Box{ID: id, Nonce: "n", Socket: p.BoxSocket(id), PID: 42, Created: noon.Add(time.Duration(i) * time.Second), Names: []string{"a.test"}}); err != nil {
			t.Fatal(err)
		}
	}
	boxes, err := ListBoxes(p)
	if err != nil || len(boxes) != 2 || boxes[0].ID != "b2" || boxes[0].Names[0] != "a.test" {
		t.Errorf("%+v, %v", boxes, err)
	}
	if err := os.WriteFile(p.BoxFile("b2"), []byte(`{"version":1`), 0o600); err != nil {
		t.Fatal(err)
	}
	boxes, err = ListBoxes(p)
	if d, ok := errors.AsType[*DamagedError](err); !ok || d.Path != p.BoxFile("b2") || len(boxes) != 1 {
		t.Errorf("damaged: %+v, %v", boxes, err)
	}
	for _, id := range []string{"../x", "", "A", "a/b"} {
		if err := WriteBox(p, Box{ID: id}); err == nil {
			t.Errorf("box id %q was written", id)
		}
	}
	for range 2 {
		if err := RemoveBox(p, "b1"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGrantsRoundTrip(t *testing.T) {
	p := testProject(t)
	g := openGrants(t, p)
	if f := g.File(); !f.Enforcing(noon) || len(f.Grants) != 0 {
		t.Errorf("an empty store: %+v", f)
	}
	_, err := g.Add(t.Context(), noon,
		Grant{Rule: "A.Test.", Reason: "ci", Origin: "cli", Level: Permanent},
		Grant{Rule: "once.test", Level: Once},
		Grant{Rule: "sess.test", Box: "b1"},
		Grant{Rule: "*.evil.test", Deny: true, Level: Permanent})
	if err != nil {
		t.Fatal(err)
	}
	f := openGrants(t, p).File()
	if diff := cmp.Diff(g.File(), f); diff != "" {
		t.Errorf("what was read differs from what was written:\n%s", diff)
	}
	if f.Generation != 1 || f.Grants[0].Rule != "a.test" || !f.Grants[1].Expires.Equal(noon.Add(DefaultOnce)) || f.Grants[2].Level != Session {
		t.Errorf("%+v", f)
	}
}

func TestGrantsAddAllOrNone(t *testing.T) {
	g := openGrants(t, testProject(t))
	for _, bad := range []Grant{
		{Rule: "*"},
		{Rule: "a.test:0"},
		{Rule: ""},
		{Rule: "a.test", Level: "forever"},
		{Rule: "a.test", Deny: true, Internal: true},
		{Rule: "a.test", Level: Permanent, Box: "b1"},
	} {
		if _, err := g.Add(t.Context(), noon, Grant{Rule: "good.test"}, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if f := openGrants(t, Project{Dir: filepath.Dir(g.Path())}).File(); len(f.Grants) != 0 || f.Generation != 0 {
		t.Errorf("half applied: %+v", f)
	}
}

func TestGrantsReplaceAndRevoke(t *testing.T) {
	g := openGrants(t, testProject(t))
	ctx := t.Context()
	for _, e := range []Grant{{Rule: "a.test"}, {Rule: "a.test", Level: Permanent}, {Rule: "a.test", Internal: true}, {Rule: "a.test", Deny: true}, {Rule: "b.test"}} {
		if _, err := g.Add(ctx, noon, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.AddHits(ctx, map[string]uint64{"a.test": 3}); err != nil {
		t.Fatal(err)
	}
	f := g.File()
	if len(f.Grants) != 4 || !f.Grants[0].Internal || f.Grants[0].Hits != 3 || f.Generation != 5 {
		t.Errorf("%+v", f)
	}
	if _, err := g.Revoke(ctx, "", "a.test", "none.test"); !errors.Is(err, ErrNoGrant) || len(g.File().Grants) != 4 {
		t.Errorf("err = %v, %d left", err, len(g.File().Grants))
	}
	f, err := g.Revoke(ctx, "", "A.test")
	if err != nil || len(f.Grants) != 1 || f.Grants[0].Rule != "b.test" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestGrantsEnd(t *testing.T) {
	g := openGrants(t, testProject(t))
	ctx := t.Context()
	if _, err := g.Add(ctx, noon, Grant{Rule: "o.test", Level: Once}, Grant{Rule: "s.test"}, Grant{Rule: "b.test", Box: "b1"}, Grant{Rule: "p.test", Level: Permanent}); err != nil {
		t.Fatal(err)
	}
	rules := func(f GrantFile) (out []string) {
		for _, e := range f.Grants {
			out = append(out, e.Rule)
		}
		return out
	}
	if f, err := g.EndBox(ctx, "b1"); err != nil || !slices.Equal(rules(f), []string{"o.test", "s.test", "p.test"}) {
		t.Errorf("box: %v, %v", rules(f), err)
	}
	if _, changed, err := g.Prune(ctx, noon.Add(DefaultOnce-1)); changed || err != nil {
		t.Errorf("pruned early: %v", err)
	}
	if f, changed, err := g.Prune(ctx, noon.Add(DefaultOnce)); !changed || err != nil || !slices.Equal(rules(f), []string{"s.test", "p.test"}) {
		t.Errorf("prune: %v, %v", rules(f), err)
	}
	if f, err := g.EndSession(ctx); err != nil || !slices.Equal(rules(f), []string{"p.test"}) {
		t.Errorf("session: %v, %v", rules(f), err)
	}
}

func TestLearningEndsByItself(t *testing.T) {
	g := openGrants(t, testProject(t))
	ctx := t.Context()
	end := noon.Add(time.Hour)
	f, err := g.SetEnforce(ctx, EnforceLearn, end)
	if err != nil || f.Enforcing(noon) || !f.Enforcing(end) {
		t.Errorf("%+v, %v", f, err)
	}
	if pf, err := f.Render(noon, nil, nil); err != nil || pf.Enforce || pf.LearnUntil == nil || !pf.LearnUntil.Equal(end) {
		t.Errorf("rendered %+v, %v", pf, err)
	}
	if err := g.AddLearned(ctx, noon, map[string]uint64{"a.test": 2, "b.test": 1}); err != nil {
		t.Fatal(err)
	}
	if f, _, err = g.Prune(ctx, end); err != nil || f.Enforce != EnforceOn || f.LearnUntil != nil || len(f.Learned) != 2 {
		t.Errorf("%+v, %v", f, err)
	}
	// A new window does not discard what is unreviewed (PRIOR 13.2, 51).
	if f, err = g.SetEnforce(ctx, EnforceLearn, end.Add(time.Hour)); err != nil || len(f.Learned) != 2 {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err = g.Add(ctx, noon, Grant{Rule: "a.test"}); err != nil || len(f.Learned) != 1 || f.Learned[0].Rule != "b.test" {
		t.Errorf("answered: %+v, %v", f, err)
	}
}

func TestSeedOnlyOnce(t *testing.T) {
	g := openGrants(t, testProject(t))
	if f, err := g.Seed(t.Context(), EnforceOff, time.Time{}); err != nil || f.Enforcing(noon) {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := g.SetEnforce(t.Context(), EnforceOn, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if f, err := g.Seed(t.Context(), EnforceOff, time.Time{}); err != nil || !f.Enforcing(noon) {
		t.Errorf("the configuration decided again: %+v, %v", f, err)
	}
}

// CASES A2, A33; PRIOR 13.2, 50: a damaged store refuses, names itself and is
// never overwritten.
func TestDamagedGrantsAreLeftAlone(t *testing.T) {
	good := `{"version":1,"generation":1,"enforce":"on","learn_until":null,"grants":[{"rule":"a.test","level":"session","expires":null,"internal":false,"reason":"","origin":"","added":"2026-11-30T12:00:00Z","hits":0,"box":""}],"learned":[]}`
	p := testProject(t)
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(p.Grants(), []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(good)
	g := openGrants(t, p)
	for name, s := range map[string]string{
		"empty":                 "",
		"half":                  good[:len(good)/2],
		"null":                  "null",
		"no version":            strings.Replace(good, `"version":1,`, "", 1),
		"newer":                 strings.Replace(good, `"version":1`, `"version":2`, 1),
		"no grants":             `{"version":1,"generation":1,"enforce":"on","learn_until":null,"learned":[]}`,
		"null grants":           `{"version":1,"generation":1,"enforce":"on","learn_until":null,"grants":null,"learned":[]}`,
		"trailing":              good + "{}",
		"two spellings":         strings.Replace(good, `"enforce":"on"`, `"enforce":"on","Enforce":"off"`, 1),
		"naive time":            strings.Replace(good, "12:00:00Z", "12:00:00", 1),
		"bad rule":              strings.Replace(good, "a.test", "*", 1),
		"rule in another form":  strings.Replace(good, "a.test", "A.test", 1),
		"unknown level":         strings.Replace(good, `"session"`, `"always"`, 1),
		"once without end":      strings.Replace(good, `"session"`, `"once"`, 1),
		"unknown switch":        strings.Replace(good, `"on"`, `"maybe"`, 1),
		"learning for ever":     strings.Replace(good, `"on"`, `"learn"`, 1),
		"NUL bytes after crash": strings.Repeat("\x00", 100),
	} {
		write(s)
		_, err := OpenGrants(p)
		if d, ok := errors.AsType[*DamagedError](err); !ok || d.Path != p.Grants() {
			t.Errorf("%s: err = %v, want one that names the file", name, err)
		}
		if _, err := g.Add(t.Context(), noon, Grant{Rule: "b.test"}); err == nil {
			t.Errorf("%s: changed", name)
		}
		if _, err := g.SetEnforce(t.Context(), EnforceOff, time.Time{}); err == nil {
			t.Errorf("%s: switched off", name)
		}
		if got, err := os.ReadFile(p.Grants()); err != nil || string(got) != s {
			t.Errorf("%s: overwritten by %q", name, got)
		}
	}
	write(good)
	if _, err := g.Add(t.Context(), noon, Grant{Rule: "b.test"}); err != nil {
		t.Errorf("control: %v", err)
	}
}

// PRIOR 13.2, 49: writers do not tear or lose each other's changes.
func TestGrantsManyWriters(t *testing.T) {
	p := testProject(t)
	var wg sync.WaitGroup
	const writers, each = 8, 5
	for i := range writers {
		wg.Go(func() {
			g, err := OpenGrants(p)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range each {
				rule := string(rune('a'+i)) + string(rune('a'+j)) + ".test"
				if _, err := g.Add(t.Context(), noon, Grant{Rule: rule}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if f := openGrants(t, p).File(); len(f.Grants) != writers*each || f.Generation != writers*each {
		t.Errorf("%d grants, generation %d", len(f.Grants), f.Generation)
	}
}

func TestRenderAndEffective(t *testing.T) {
	p := testProject(t)
	g := openGrants(t, p)
	if _, err := g.Add(t.Context(), noon, Grant{Rule: "a.test"}, Grant{Rule: "gone.test", Level: Once}, Grant{Rule: "no.a.test", Deny: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEffective(p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	pf, err := g.File().Render(noon.Add(time.Hour), []string{"t.test"}, []string{"i.test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteEffective(p, pf); err != nil {
		t.Fatal(err)
	}
	s, err := ReadEffective(p)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]policy.Verdict{"a.test": policy.Allow, "gone.test": policy.Refuse, "no.a.test": policy.Refuse, "x.test": policy.Refuse} {
		target, err := dest.Parse(host + ":443")
		if err != nil {
			t.Fatal(err)
		}
		if d := s.Connect(policy.Query{Target: target, Scheme: policy.SchemeHTTPS, Now: noon}); d.Verdict != want {
			t.Errorf("%s: %v", host, d)
		}
	}
	if err := os.WriteFile(p.Effective(), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEffective(p); err == nil {
		t.Error("a damaged file was obeyed")
	}
	moved, err := SetAside(p.Effective(), noon)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(moved); string(got) != "{}" {
		t.Errorf("moved aside: %q", got)
	}
	if again, err := SetAside(p.Effective(), noon); err != nil || again != "" {
		t.Errorf("nothing to move: %q, %v", again, err)
	}
}

func TestBind(t *testing.T) {
	l := testLayout(t)
	p, err := l.Bind("acc", "/src/acc", noon, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok, err := l.FindByPath("/src/acc"); err != nil || !ok || got.Name != "acc" {
		t.Errorf("%v %v %v", got, ok, err)
	}
	_, err = l.Bind("acc", "/src/other", noon, false)
	if e, ok := errors.AsType[*BoundElsewhereError](err); !ok || e.Path != "/src/acc" {
		t.Errorf("err = %v", err)
	}
	// A new name for the same checkout, and back again.
	for _, name := range []string{"new", "acc"} {
		if _, err := l.Bind(name, "/src/acc", noon, false); err != nil {
			t.Fatal(err)
		}
		if got, ok, err := l.FindByPath("/src/acc"); err != nil || !ok || got.Name != name {
			t.Errorf("%v %v %v", got, ok, err)
		}
	}
	// The name that was left is still the first checkout's.
	if _, err := l.Bind("new", "/src/other", noon, false); err == nil {
		t.Error("a left name was taken by another checkout")
	}
	if err := os.WriteFile(p.Bound(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Bind("acc", "/src/other", noon, true); err == nil {
		t.Error("a damaged binding was overwritten")
	}
	if _, _, err := l.FindByPath("/src/acc"); err == nil {
		t.Error("a damaged binding was passed over")
	}
}

// Whatever is done to a store, what it writes it reads, and no change but an
// allow can permit more.
func TestGrantsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := GrantFile{Version: grantsVersion, Grants: []Grant{}, Learned: []Learned{}}
		rules := []string{"a.test", "*.b.test", "c.test:5432", "10.0.0.0/8", "GET d.test/x"}
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			e := Grant{
				Rule:  rapid.SampledFrom(rules).Draw(t, "rule"),
				Level: rapid.SampledFrom([]string{Once, Session, Permanent}).Draw(t, "level"),
				Deny:  rapid.Bool().Draw(t, "deny"),
			}
			if err := f.add(noon, e); err != nil {
				t.Fatal(err)
			}
		}
		pf, err := f.Render(noon, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		data, err := policy.Encode(pf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := policy.Decode(data); err != nil {
			t.Fatalf("the proxy cannot read %s: %v", data, err)
		}
		if len(pf.Allow)+len(pf.Deny) != len(f.Grants) {
			t.Fatalf("%d entries of %d", len(pf.Allow)+len(pf.Deny), len(f.Grants))
		}
	})
}

func FuzzGrants(f *testing.F) {
	f.Add([]byte(`{"version":1,"generation":1,"enforce":"on","learn_until":null,"grants":[],"learned":[]}`))
	f.Add([]byte(`{"version":1,"Version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := decodeGrants(data)
		if err == nil && g.check() != nil {
			t.Errorf("taken, but it does not hold: %s", data)
		}
	})
}

func TestGrantsAreBounded(t *testing.T) {
	g := openGrants(t, testProject(t))
	if _, err := g.Update(t.Context(), func(f *GrantFile) error {
		for i := range maxGrants {
			f.Grants = append(f.Grants, Grant{Rule: fmt.Sprintf("a%d.test", i), Level: Permanent, Added: noon})
		}
		return nil
	}); err != nil {
		t.Fatalf("control: %v", err)
	}
	if _, err := g.Add(t.Context(), noon, Grant{Rule: "more.test"}); err == nil {
		t.Error("one more was taken")
	}
	if _, err := g.Update(t.Context(), func(f *GrantFile) error {
		for i := range maxLearned - 1 {
			f.Learned = append(f.Learned, Learned{Rule: fmt.Sprintf("b%d.test", i), First: noon, Last: noon, Count: 1})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := g.AddLearned(t.Context(), noon, map[string]uint64{"c.test": 1, "d.test": 1}); err != nil {
		t.Fatal(err)
	}
	if f := g.File(); len(f.Grants) != maxGrants || len(f.Learned) != maxLearned {
		t.Errorf("%d grants, %d learned", len(f.Grants), len(f.Learned))
	}
}
