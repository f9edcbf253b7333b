package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/state"
	"foldyard/internal/testkit"
)

const secretText = "s3cr3t-VALUE-0123456789"

// sourced is a supervisor that has only what reading secrets takes.
func sourced(t *testing.T, env map[string]string) *Supervisor {
	t.Helper()
	dir := t.TempDir()
	l, err := state.NewLayout(func(k string) string { return map[string]string{"FOLDYARD_HOME": dir}[k] })
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Project("acc")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s := &Supervisor{now: func() time.Time { return at }}
	s.opt.Project, s.opt.Getenv = p, func(k string) string { return env[k] }
	s.creds.store = state.OpenSecrets(p)
	return s
}

func readFrom(t *testing.T, s *Supervisor, src config.Source, c config.Inject) (string, time.Duration, error) {
	t.Helper()
	cfg := &config.Effective{Secrets: map[string]config.Source{c.Name: src}}
	v, err := s.source(cfg, &c)(t.Context())
	if err != nil {
		return "", 0, err
	}
	life := time.Duration(0)
	if !v.Expires.IsZero() {
		life = v.Expires.Sub(s.now())
	}
	return v.Secret.Reveal(), life, nil
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	testkit.WriteExecutable(t, path, "#!/bin/sh\n"+text)
	return path
}

func TestSourcesOfSecrets(t *testing.T) {
	s := sourced(t, map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "DEMO": secretText, "AWS_SECRET_ACCESS_KEY": "not for commands"})
	if err := s.creds.store.Set(t.Context(), "FY_INJECT_DEMO", []byte(secretText), nil); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secretText+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	demo := config.Inject{Name: "demo", Kind: "static"}
	for name, c := range map[string]struct {
		src  config.Source
		rule config.Inject
		want string
		life time.Duration
	}{
		"store":        {config.Source{}, demo, secretText, 0},
		"env":          {config.Source{From: "env", Env: "DEMO"}, demo, secretText, 0},
		"file":         {config.Source{From: "file", File: file}, demo, secretText, fileLife},
		"command":      {config.Source{From: "command", Command: []string{"echo", secretText}}, demo, secretText, commandLife},
		"command JSON": {config.Source{From: "command", Command: []string{"echo", `{"value":"` + secretText + `","ttl":90}`}}, demo, secretText, 90 * time.Second},
		"ttl in words": {config.Source{From: "command", Command: []string{"echo", `{"value":"x","ttl":"2m"}`}}, demo, "x", 2 * time.Minute},
		"other JSON":   {config.Source{From: "command", Command: []string{"echo", `{"AccessKeyId":"x"}`}}, demo, `{"AccessKeyId":"x"}`, commandLife},
		"kind command": {config.Source{}, config.Inject{Name: "c", Kind: "command", Command: []string{"printf", "%s", secretText}}, secretText, commandLife},
		"environment":  {config.Source{From: "command", Command: []string{script(t, `echo "$HOME,$AWS_SECRET_ACCESS_KEY,$DEMO,$PWD"`)}}, demo, "/nowhere,,,/", commandLife},
	} {
		got, life, err := readFrom(t, s, c.src, c.rule)
		if err != nil || got != c.want || life != c.life {
			t.Errorf("%s: %q for %v, %v, want %q for %v", name, got, life, err, c.want, c.life)
		}
	}
}

// What a command prints, on either stream, reaches no error.
func TestSourcesThatFail(t *testing.T) {
	s := sourced(t, map[string]string{"PATH": "/usr/bin:/bin"})
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte(secretText), 0o644); err != nil {
		t.Fatal(err)
	}
	demo := config.Inject{Name: "demo", Kind: "static"}
	command := func(text string) config.Source {
		return config.Source{From: "command", Command: []string{script(t, text)}}
	}
	for name, c := range map[string]struct {
		src     config.Source
		says    string
		missing bool
	}{
		"store":             {config.Source{}, "no secret is set", true},
		"env":               {config.Source{From: "env", Env: "NONE"}, "is not set where the supervisor was started", true},
		"file":              {config.Source{From: "file", File: "/nowhere/secret"}, "cannot be read", true},
		"file others read":  {config.Source{From: "file", File: open}, "cannot be read", true},
		"no such command":   {config.Source{From: "command", Command: []string{"no-such-program-here"}}, "was not found", false},
		"no such path":      {config.Source{From: "command", Command: []string{"/no/such/program"}}, "was not found", false},
		"ends badly":        {command("echo " + secretText + "; echo " + secretText + " >&2; exit 3"), "ended with an error", false},
		"prints nothing":    {command("true"), "printed nothing", false},
		"prints for ever":   {command("exec yes " + secretText), "printed too much", false},
		"a ttl that is odd": {command(`echo '{"value":"x","ttl":-1}'`), "no duration", false},
	} {
		_, _, err := readFrom(t, s, c.src, demo)
		e, ok := errors.AsType[*inject.MintError](err)
		if !ok || !strings.Contains(e.Why, c.says) || e.Missing != c.missing || e.Fix == "" {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: the error holds the secret: %v", name, err)
		}
	}
}

func TestCommandThatHangsIsEnded(t *testing.T) {
	s := sourced(t, map[string]string{"PATH": "/usr/bin:/bin"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := s.command([]string{script(t, "exec sleep 60")}, func(time.Duration) time.Time { return time.Time{} }, 0)(ctx)
	if err == nil || time.Since(start) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestRotatedTokensAreStored(t *testing.T) {
	s := sourced(t, nil)
	c := &config.Inject{Name: "oauth", Kind: "oauth-refresh"}
	keep := s.keeper(&config.Effective{}, c)
	if err := keep(t.Context(), inject.NewSecret([]byte("rotated"))); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := s.creds.store.Get("FY_INJECT_OAUTH"); !ok || err != nil || string(v) != "rotated" {
		t.Errorf("%q, %v, %v", v, ok, err)
	}
	if s.keeper(&config.Effective{Secrets: map[string]config.Source{"oauth": {From: "command"}}}, c) != nil {
		t.Error("writes what is not ours")
	}
}

func TestKeysOfCredentials(t *testing.T) {
	a := &config.Inject{Name: "a", Kind: "static"}
	b := *a
	b.Path = "/x"
	if keyOf(a, config.Source{}, "1") != keyOf(a, config.Source{}, "1") {
		t.Error("the same credential is minted anew at each load")
	}
	for name, other := range map[string]string{"stamp": keyOf(a, config.Source{}, "2"), "source": keyOf(a, config.Source{From: "env"}, "1"), "rule": keyOf(&b, config.Source{}, "1")} {
		if other == keyOf(a, config.Source{}, "1") {
			t.Errorf("another %s is taken for the same credential", name)
		}
	}
}

func TestAlertsAreFolded(t *testing.T) {
	var c credentials
	at := time.Unix(1000, 0)
	a := inject.Alert{Reason: policy.ReasonDummyElsewhere, Rule: "demo", Box: "b", Host: "x.test:443"}
	news := 0
	for range 1000 {
		if c.told(a, at) {
			news++
		}
	}
	if news != 1 || len(c.alerts) != 1 || c.alerts[0].times != 1000 {
		t.Errorf("%d told, %+v", news, c.alerts)
	}
	for i := range 1000 {
		a.Host = strings.Repeat("x", i) + ".test"
		if c.told(a, at) {
			news++
		}
	}
	if news > maxAlerts+1 || len(c.alerts) > maxAlerts {
		t.Errorf("%d told in one second", news)
	}
	if !c.told(a, at.Add(time.Hour)) {
		t.Error("silent for ever")
	}
}

// The control API never carries a value: its types have no place for one.
func TestStatusHoldsNoValue(t *testing.T) {
	s := sourced(t, nil)
	s.creds.in = inject.New(inject.Config{Now: s.now})
	defer s.creds.in.Close()
	rule, err := policy.ParseRule("api.test")
	if err != nil {
		t.Fatal(err)
	}
	r := inject.Rule{Name: "demo", Kind: "static", Hosts: []policy.Rule{rule}, Header: "Authorization"}
	r.UseStatic(func(context.Context) (inject.Value, error) {
		return inject.Value{Secret: inject.NewSecret([]byte(secretText))}, nil
	})
	if err := s.creds.in.Load([]inject.Rule{r}); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(s.credentialList())
	if err != nil || !strings.Contains(string(b), `"api.test"`) || strings.Contains(string(b), "s3cr3t") {
		t.Errorf("%s, %v", b, err)
	}
}
