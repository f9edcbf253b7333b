package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/config"
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

	loading  sync.Mutex
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
	s.creds.loading.Lock() // what was read last is loaded last
	defer s.creds.loading.Unlock()
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

// redirected adds, to the raw addresses that a box may open, those that we answer ourselves.
func (s *Supervisor) redirected(granted []netip.Prefix) []netip.Prefix {
	for _, a := range s.creds.in.LocalAddrs() {
		if !slices.ContainsFunc(granted, func(p netip.Prefix) bool { return p.Contains(a) }) {
			granted = append(slices.Clone(granted), netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return granted
}
