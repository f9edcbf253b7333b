package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

// Bounds of what gives us a secret.
const (
	commandTime = 30 * time.Second
	commandLife = time.Hour        // of a value without a ttl
	fileLife    = time.Minute      // before a file is read again
	ghLife      = 15 * time.Minute // before gh is asked again
	maxAlerts   = 20
	alertEvery  = time.Minute
)

// credentials are the supervisor's side of package inject: where secrets come from, and what the operator confirmed.
type credentials struct {
	in    *inject.Injector
	store *state.Secrets
	http  *http.Client

	revoking atomic.Bool

	mu     sync.Mutex // guards the fields that follow
	fault  error      // why no rule has a secret
	alerts []alert    // the newest last, each of its kind once in alertEvery
}

type alert struct {
	at    time.Time
	times int
	inject.Alert
}

// told adds an alert, and tells whether it is news: a box may set one off a thousand times a second.
func (c *credentials) told(a inject.Alert, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.alerts {
		if old := &c.alerts[i]; old.Alert == a && now.Sub(old.at) < alertEvery {
			old.times++
			return false
		}
	}
	if len(c.alerts) == maxAlerts && now.Sub(c.alerts[0].at) < maxAlerts*time.Second/2 {
		return false // a flood of them, each a little different
	}
	c.alerts = append(c.alerts, alert{now, 1, a})
	if n := len(c.alerts); n > maxAlerts {
		c.alerts = slices.Delete(c.alerts, 0, n-maxAlerts)
	}
	return true
}

// openCredentials makes the injector; its rules come with loadCredentials.
func (s *Supervisor) openCredentials() {
	c := &s.creds
	c.store = state.OpenSecrets(s.opt.Project)
	c.in = inject.New(inject.Config{Now: s.now, Alert: s.alert, Off: s.switchOff})
	// The operator's own endpoints: they may be private, and there is no proxy but the dialer's.
	c.http = &http.Client{
		Timeout:       commandTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableCompression: true,
			MaxIdleConns:       4, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: commandTime,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, errors.New("a credential is minted over https only")
			},
			DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				t, err := dest.Parse(addr)
				if err != nil {
					return nil, err
				}
				nc, _, err := s.dialer.DialTLS(ctx, t, true, "http/1.1")
				if err != nil {
					return nil, err
				}
				return nc, nil
			},
		},
	}
}

func (s *Supervisor) closeCredentials() {
	if s.creds.in != nil {
		s.creds.in.Close()
		s.creds.http.CloseIdleConnections()
	}
}

// loadCredentials makes the configuration's rules, and what is confirmed of them, the ones in force from the next request on.
// What cannot be read leaves every rule without a credential.
func (s *Supervisor) loadCredentials() {
	cfg := s.cfg.Load()
	bounds, fault := s.creds.store.Bounds()
	var rules []inject.Rule
	for i := range cfg.Inject {
		rules = append(rules, s.injectRule(cfg, &cfg.Inject[i], bounds, fault))
	}
	if err := s.creds.in.Load(rules); err != nil {
		s.log.Error("credentials not loaded: no rule has one", slog.String("error", err.Error()))
		fault = errors.Join(fault, err)
		for i := range rules {
			rules[i] = off(rules[i], "the rules could not be loaded", "fy config check")
		}
		if s.creds.in.Load(rules) != nil {
			_ = s.creds.in.Load(nil) // an empty list is never refused
		}
	}
	s.creds.mu.Lock()
	s.creds.fault = fault
	s.creds.mu.Unlock()
	if fault != nil {
		s.log.Error("credentials are off", slog.String("error", fault.Error()))
	}
}

func off(r inject.Rule, why, fix string) inject.Rule {
	out := inject.Rule{Name: r.Name, Kind: r.Kind, Preset: r.Preset, Hosts: r.Hosts, Header: r.Header, Query: r.Query, Family: r.Family, Path: r.Path, Methods: r.Methods, Dummies: r.Dummies, Off: why, Fix: fix}
	if out.Header == "" && out.Query == "" {
		out.Header = "Authorization"
	}
	return out
}

func (s *Supervisor) injectRule(cfg *config.Effective, c *config.Inject, bounds map[string]state.Bound, fault error) inject.Rule {
	want := c.Bound()
	r := inject.Rule{
		Name: c.Name, Kind: c.Kind, Preset: c.Preset, Header: c.Header, Query: c.Query, Prefix: c.Prefix,
		Path: c.Path, Methods: c.Methods, Issuing: c.Issuing,
		Dummies: slices.Sorted(maps.Values(c.Env)),
	}
	r.Dummies = slices.Compact(r.Dummies)
	for _, h := range want.Hosts {
		rule, err := policy.ParseRule(h)
		if err != nil {
			return off(r, "a host of the rule is none", "fy config check")
		}
		r.Hosts = append(r.Hosts, rule)
	}
	if p, ok := inject.PresetNamed(c.Preset); ok {
		r.User, r.Family = p.User, p.Family
	}
	if c.Kind == "github-app" || c.Kind == "gh-cli" {
		r.User = "x-access-token"
	}
	if c.Kind == "gcp-metadata" {
		// The box must know it by sight, also after this process was replaced. It is no secret.
		sum := sha256.Sum256([]byte("foldyard dummy " + s.opt.Project.Name + " " + c.Name))
		r.Dummies = slices.Insert(r.Dummies, 0, "ya29.foldyard-dummy-"+hex.EncodeToString(sum[:12]))
	}
	bound, confirmed := bounds[c.Name]
	switch missing := bound.Covers(want); {
	case fault != nil:
		return off(r, "the store of secrets cannot be read", "fy secret list")
	case c.Kind == "command": // only the operator's own file may say so, hosts and all
	case !confirmed || len(bound.Hosts) == 0:
		return off(r, "no secret is set for it", s.setCommand(cfg, c))
	case bound.Off != "":
		return off(r, bound.Off, "fy secret bind "+c.Name)
	case len(missing) > 0:
		return off(r, "the operator has not confirmed "+strings.Join(missing[:min(len(missing), 3)], ", "), "fy secret bind "+c.Name)
	}
	r.Key = keyOf(c, cfg.Secrets[c.Name], bound.Stamp)
	src := s.source(cfg, c)
	switch c.Kind {
	case "github-app":
		r.UseGitHubApp(src, s.creds.http, s.now, inject.GitHubApp{App: c.AppID, Installation: c.InstallationID, Repositories: c.Repositories, Permissions: c.Permissions})
	case "oauth-refresh":
		r.UseOAuth(src, s.keeper(cfg, c), s.creds.http, s.now, inject.OAuth{TokenURL: c.TokenURL, ClientID: c.ClientID, Scopes: c.Scopes})
	case "aws-sigv4":
		r.UseAWS(src, c.Region, c.Service)
	case "gcp-metadata":
		r.UseGCP(src, s.creds.http, s.now, inject.GCP{Project: c.GCPProject, Scopes: c.Scopes})
	case "static", "gh-cli", "command":
		if c.Preset == "docker-registry" {
			r.UseRegistry(src, s.creds.http, s.now)
		} else {
			r.UseStatic(src)
		}
	default:
		return off(r, "the kind is unknown", "fy config check")
	}
	return r
}

// keyOf tells one credential from the next: whatever decides it is in.
func keyOf(c *config.Inject, src config.Source, stamp string) string {
	b, err := json.Marshal([]any{c, src, stamp})
	if err != nil {
		return "" // never kept
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// setCommand is what gives a rule its secret.
func (s *Supervisor) setCommand(cfg *config.Effective, c *config.Inject) string {
	if from := cfg.Secrets[c.Name].From; from != "" && from != "store" || c.Kind == "gh-cli" {
		return "fy secret bind " + c.Name
	}
	return "fy secret set " + c.Name
}

// source reads a rule's secret from where config.toml says.
func (s *Supervisor) source(cfg *config.Effective, c *config.Inject) inject.Source {
	from, fix := cfg.Secrets[c.Name], s.setCommand(cfg, c)
	missing := func(why string, err error) error {
		return &inject.MintError{Why: why, Fix: fix, Missing: true, Err: err}
	}
	lives := func(d time.Duration) time.Time {
		if t := c.TTL.Duration(); t > 0 {
			d = t
		}
		if d == 0 {
			return time.Time{}
		}
		return s.now().Add(d)
	}
	switch {
	case c.Kind == "command":
		return s.command(c.Command, lives, commandLife)
	case c.Kind == "gh-cli" && from.From != "command" && from.From != "env" && from.From != "file":
		return s.command([]string{"gh", "auth", "token", "--hostname", ghHost(c)}, lives, ghLife)
	case from.From == "command":
		return s.command(from.Command, lives, commandLife)
	case from.From == "env":
		return func(context.Context) (inject.Value, error) {
			v := s.opt.Getenv(from.Env)
			if v == "" {
				return inject.Value{}, missing("the variable of its secret is not set where the supervisor was started", nil)
			}
			return inject.Value{Secret: inject.NewSecret([]byte(v)), Expires: lives(0)}, nil
		}
	case from.From == "file":
		return func(context.Context) (inject.Value, error) {
			b, err := state.ReadSecret(from.File, state.MaxSecret)
			if err != nil {
				return inject.Value{}, missing("the file of its secret cannot be read", err)
			}
			return inject.Value{Secret: inject.NewSecret(bytes.TrimRight(b, "\r\n")), Expires: lives(fileLife)}, nil
		}
	}
	return func(context.Context) (inject.Value, error) {
		b, ok, err := s.creds.store.Get(config.SecretVariable(c.Name))
		if err != nil {
			return inject.Value{}, missing("the store of secrets cannot be read", err)
		}
		if !ok {
			return inject.Value{}, missing("no secret is set for it", nil)
		}
		return inject.Value{Secret: inject.NewSecret(b), Expires: lives(0)}, nil
	}
}

func ghHost(c *config.Inject) string {
	for _, h := range c.Hosts {
		if h != "api.github.com" && h != "github.com" && !strings.Contains(h, "*") {
			host, _, _ := strings.Cut(h, ":")
			return host
		}
	}
	return "github.com"
}

// keeper stores a refresh token that its service has replaced. nil: its source is not ours to write.
func (s *Supervisor) keeper(cfg *config.Effective, c *config.Inject) func(context.Context, inject.Secret) error {
	if from := cfg.Secrets[c.Name].From; from != "" && from != "store" {
		return nil
	}
	name := config.SecretVariable(c.Name)
	return func(ctx context.Context, v inject.Secret) error {
		b := []byte(v.Reveal())
		defer clear(b)
		return s.creds.store.Set(ctx, name, b, nil)
	}
}

// passedOn are the variables that a secret's command gets: what password managers need to find their files, and no more.
func passedOn() []string {
	return []string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR",
		"XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "DBUS_SESSION_BUS_ADDRESS",
		"GNUPGHOME", "PASSWORD_STORE_DIR", "GH_CONFIG_DIR", "OP_ACCOUNT", "DISPLAY", "WAYLAND_DISPLAY",
	}
}

// command runs a program that prints the value, or {"value", "ttl"}. Nothing that it prints reaches an error or a log.
func (s *Supervisor) command(argv []string, lives func(time.Duration) time.Time, life time.Duration) inject.Source {
	return func(ctx context.Context) (inject.Value, error) {
		failed := func(why string, err error) (inject.Value, error) {
			return inject.Value{}, &inject.MintError{Why: "the command of its secret " + why, Fix: "run it by hand: it is in config.toml", Err: err}
		}
		ctx, cancel := context.WithTimeout(ctx, commandTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir, cmd.WaitDelay = "/", time.Second
		cmd.Env = []string{}
		for _, name := range passedOn() {
			if v := s.opt.Getenv(name); v != "" {
				cmd.Env = append(cmd.Env, name+"="+v)
			}
		}
		out := &limited{most: state.MaxSecret}
		cmd.Stdout = out
		err := cmd.Run()
		defer func() { clear(out.b) }()
		switch {
		case ctx.Err() != nil:
			return failed("took too long", nil)
		case out.over:
			return failed("printed too much", nil)
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
			return failed("was not found", nil)
		case err != nil:
			return failed("ended with an error", exitOnly(err))
		}
		return commandValue(out.b, lives, life, failed)
	}
}

func commandValue(b []byte, lives func(time.Duration) time.Time, life time.Duration, failed func(string, error) (inject.Value, error)) (inject.Value, error) {
	text := bytes.TrimSpace(b)
	var object struct {
		Value *string         `json:"value"`
		TTL   json.RawMessage `json:"ttl"`
	}
	if bytes.HasPrefix(text, []byte("{")) && json.Unmarshal(text, &object) == nil && object.Value != nil {
		text = []byte(*object.Value)
		if len(object.TTL) > 0 {
			d, err := parseTTL(object.TTL)
			if err != nil {
				return failed("printed a ttl that is no duration", nil)
			}
			life = d
		}
	}
	if len(text) == 0 {
		return failed("printed nothing", nil)
	}
	return inject.Value{Secret: inject.NewSecret(bytes.Clone(text)), Expires: lives(life)}, nil
}

// parseTTL reads seconds, or a duration in quotes.
func parseTTL(raw json.RawMessage) (time.Duration, error) {
	text := strings.Trim(string(raw), `"`)
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		text = fmt.Sprintf("%fs", n)
	}
	d, err := time.ParseDuration(text)
	if err == nil && (d <= 0 || d > 365*24*time.Hour) {
		err = errors.New("out of range")
	}
	return d, err
}

// exitOnly keeps of a failure only how the program ended.
func exitOnly(err error) error {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return errors.New(e.ProcessState.String())
	}
	return errors.New("it could not be started")
}

// limited keeps what is written, up to a bound.
type limited struct {
	b    []byte
	most int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if len(l.b)+len(p) > l.most {
		l.over = true
		return 0, io.ErrShortWrite
	}
	l.b = append(l.b, p...)
	return len(p), nil
}

// alert shows the operator what happened with a credential, and does what config.toml says about it.
func (s *Supervisor) alert(a inject.Alert) {
	if a.Reason == policy.ReasonDummyElsewhere && s.cfg.Load().Tripwire.Revoke && s.creds.revoking.CompareAndSwap(false, true) {
		s.serving.Go(func() {
			defer s.creds.revoking.Store(false)
			s.revokeSession(a.Box)
		})
	}
	if !s.creds.told(a, s.now()) {
		return
	}
	s.capture.Audit(&capture.Event{Event: "alert", Rule: a.Rule, Box: a.Box, Reason: string(a.Reason), Detail: a.Host + ": " + a.Detail})
	s.log.Warn("credential alert", slog.String("reason", string(a.Reason)), slog.String("rule", a.Rule), slog.String("box", a.Box), slog.String("host", a.Host))
}

// revokeSession takes the session grants of a box away, the project's among them: it uses those too.
func (s *Supervisor) revokeSession(box string) {
	if !slices.ContainsFunc(s.grants.File().Grants, func(g state.Grant) bool {
		return !g.Deny && g.Level != state.Permanent && (g.Box == "" || g.Box == box)
	}) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_, err := s.grants.EndSession(ctx)
	if err == nil {
		_, err = s.grants.EndBox(ctx, box)
	}
	if err == nil {
		err = s.apply()
	}
	if err != nil {
		s.log.Error("session grants not revoked", slog.String("box", box), slog.String("error", err.Error()))
		return
	}
	s.capture.Audit(&capture.Event{Event: "revoked", Box: box, Reason: string(policy.ReasonDummyElsewhere), Detail: "session grants, by [tripwire] revoke"})
}

// switchOff stores that a rule is off, so that a restart does not switch it on again.
func (s *Supervisor) switchOff(rule, why string) {
	s.serving.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := s.creds.store.SwitchOff(ctx, rule, why); err != nil {
			s.log.Error("rule is off, but only until the supervisor ends", slog.String("rule", rule), slog.String("error", err.Error()))
		}
		s.capture.Audit(&capture.Event{Event: "credential off", Rule: rule, Reason: string(policy.ReasonRedacted), Detail: why})
	})
}

// credentialNotes are what status says about credentials.
func (s *Supervisor) credentialNotes() []string {
	var out []string
	snap := s.effective.Snapshot()
	for _, r := range s.creds.in.Status() {
		if r.Off != "" {
			out = append(out, fmt.Sprintf("no credential %s: %s: %s", r.Rule, r.Off, r.Fix))
		}
		for _, h := range r.Hosts {
			if t, err := dest.ParseAuthority(h, 443); err == nil && !snap.Granted(t.Host, "", s.now()) {
				out = append(out, fmt.Sprintf("the credential %s goes to %s, which is not granted: fy allow %s", r.Rule, h, h))
			}
		}
	}
	s.creds.mu.Lock()
	defer s.creds.mu.Unlock()
	if s.creds.fault != nil {
		out = append(out, "credentials are off: "+s.creds.fault.Error())
	}
	for _, a := range s.creds.alerts {
		times := ""
		if a.times > 1 {
			times = fmt.Sprintf(", %d times", a.times)
		}
		out = append(out, fmt.Sprintf("alert %s%s: %s: %s (%s, box %s): fy log --denied", a.at.UTC().Format("15:04:05Z"), times, a.Reason, a.Detail, a.Host, a.Box))
	}
	return out
}

// credentialList is the rules as status shows them.
func (s *Supervisor) credentialList() []control.Credential {
	var out []control.Credential
	for _, r := range s.creds.in.Status() {
		out = append(out, control.Credential{
			Name: r.Rule, Kind: r.Kind, Place: r.Place, Hosts: r.Hosts, Path: r.Path, Off: r.Off, Fix: r.Fix,
			Scope: r.Scope, Read: r.Read, Expires: r.Expires,
		})
	}
	return out
}

// wouldCarry says which credential a request would carry, nil if none.
func (s *Supervisor) wouldCarry(q policy.Query, d policy.Decision) *string {
	if q.Scheme == policy.SchemeHTTP || q.Target.Port == 80 {
		return nil
	}
	path := q.Path
	if path == "" {
		path = "/"
	}
	r, ok := s.creds.in.Would(q.Target, q.Method, path)
	if !ok {
		return nil
	}
	text := fmt.Sprintf("%s (%s, %s)", r.Rule, r.Kind, r.Place)
	switch {
	case r.Off != "":
		text += ": off: " + r.Off + ": " + r.Fix
	case d.Verdict != policy.Allow:
		text += ": not without a grant"
	default:
		if r.Scope != "" {
			text += ": " + r.Scope
		}
		if !r.Read.IsZero() {
			text += ", read " + r.Read.UTC().Format("2006-01-02 15:04:05Z")
		}
		if !r.Expires.IsZero() {
			text += ", until " + r.Expires.UTC().Format("2006-01-02 15:04:05Z")
		}
	}
	return &text
}

// redirected adds, to the raw addresses that a box may open, those that we answer ourselves.
func (s *Supervisor) redirected(granted []netip.Prefix) []netip.Prefix {
	for _, a := range s.creds.in.LocalAddrs() {
		if !slices.ContainsFunc(granted, func(p netip.Prefix) bool { return p.Contains(a) }) {
			granted = append(slices.Clone(granted), netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return granted
}
