package config

import (
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"foldyard/internal/box"
	"foldyard/internal/egress/inject"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/state"
)

// SecretVariable returns the variable that a rule's secret is kept under. It
// follows from the rule's name, so that no config can aim at another's secret;
// names that fold to one variable are an error.
func SecretVariable(name string) string {
	return "FY_INJECT_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, name)
}

// fixedHosts are the hosts of the kinds that always talk to one service.
var fixedHosts = map[string][]string{
	"github-app":   {"api.github.com"},
	"gh-cli":       {"api.github.com"},
	"gcp-metadata": {"*.googleapis.com"},
}

// bearers are the kinds that mint bearer tokens.
var bearers = []string{"github-app", "gh-cli", "oauth-refresh", "gcp-metadata"}

var (
	tokenRE  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") })
	methodRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Z-]*$`) })
	digitsRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]+$`) })
)

// hopHeaders are headers that no credential may travel in: they steer the
// message, or the proxy owns them.
var hopHeaders = []string{"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization", "proxy-connection", "keep-alive", "expect"}

// injectRule is a rule with its hosts parsed.
type injectRule struct {
	*Inject
	key   string
	hosts []policy.Rule
}

func (c *checker) inject(f *File) {
	var rules []injectRule
	folded := map[string]string{}
	for i := range f.Inject {
		r := injectRule{Inject: &f.Inject[i], key: fmt.Sprintf("inject[%d]", i)}
		c.injectName(r, folded)
		c.injectKind(r)
		c.injectPlace(r)
		r.hosts = c.injectHosts(r)
		for _, other := range rules {
			c.overlap(other, r)
		}
		rules = append(rules, r)
	}
	c.dummies(rules, f.Box.Env)
}

func (c *checker) injectName(r injectRule, folded map[string]string) {
	if r.Name == "" {
		c.bad(r.key, "wants a name")
		return
	}
	if err := state.CheckName(r.Name); err != nil {
		c.bad(r.key+".name", "%s", err)
		return
	}
	variable := SecretVariable(r.Name)
	switch other, taken := folded[variable]; {
	case taken && other == r.Name:
		c.bad(r.key+".name", "%s comes twice", r.Name)
	case taken:
		c.bad(r.key+".name", "%s and %s would share one secret, %s: rename one", other, r.Name, variable)
	default:
		folded[variable] = r.Name
	}
}

// injectKind sets the default kind and refuses fields of another one.
func (c *checker) injectKind(r injectRule) {
	if r.Kind == "" {
		r.Kind = "static"
	}
	if r.Preset != "" && r.Kind != "static" && r.Kind != "command" && r.Kind != "gh-cli" && r.Kind != "github-app" {
		c.bad(r.key+".preset", "goes with kind = \"static\", not %q", r.Kind)
	}
	if r.Preset == "docker-registry" && r.Kind != "static" {
		c.bad(r.key+".kind", "preset docker-registry mints its own tokens from user:password: kind is static")
	}
	if r.Kind == "command" && !c.at[r.key+".kind"].operator {
		c.bad(r.key+".kind", "runs a program on the host, so it may only be set in the operator's config.toml")
	}
	t := reflect.TypeFor[Inject]()
	for f := range t.Fields() {
		kinds, key := f.Tag.Get("kind"), r.key+"."+f.Tag.Get("toml")
		if kinds != "" && c.set(key) && !slices.Contains(strings.Split(kinds, ","), r.Kind) {
			c.bad(key, "is no field of kind = %q, only of %s", r.Kind, strings.ReplaceAll(kinds, ",", ", "))
		}
	}
	need := func(field, value string) {
		if value == "" {
			c.bad(r.key, "kind = %q wants %s", r.Kind, field)
		}
	}
	switch r.Kind {
	case "github-app":
		for _, f := range [][2]string{{"app_id", r.AppID}, {"installation_id", r.InstallationID}} {
			field, v := f[0], f[1]
			if need(field, v); v != "" && !digitsRE().MatchString(v) {
				c.bad(r.key+"."+field, "want digits, got %s", quote(v))
			}
		}
		for i, repo := range r.Repositories {
			if state.CheckName(strings.TrimPrefix(repo, ".")) != nil {
				c.bad(fmt.Sprintf("%s.repositories[%d]", r.key, i), "want the bare name of a repository, got %s", quote(repo))
			}
		}
	case "oauth-refresh":
		if need("token_url", r.TokenURL); r.TokenURL != "" {
			if u, err := url.Parse(r.TokenURL); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
				c.bad(r.key+".token_url", "want an https URL")
			}
		}
	case "command":
		if len(r.Command) == 0 {
			c.bad(r.key, "kind = %q wants command", r.Kind)
		}
	}
}

// injectPlace checks where the credential goes and on which requests.
func (c *checker) injectPlace(r injectRule) {
	switch {
	case r.Header != "" && r.Query != "":
		c.bad(r.key+".query", "header and query together: a credential goes to one place")
	case c.set(r.key+".header") && (!tokenRE().MatchString(r.Header) || slices.Contains(hopHeaders, strings.ToLower(r.Header))):
		c.bad(r.key+".header", "%s cannot carry a credential", quote(r.Header))
	case c.set(r.key+".query") && (r.Query == "" || strings.ContainsAny(r.Query, "&=#?+% ") || !printable(r.Query)):
		c.bad(r.key+".query", "want the name of one query parameter, got %s", quote(r.Query))
	}
	if p, ok := inject.PresetNamed(r.Preset); ok {
		if r.Header == "" && r.Query == "" {
			r.Header = p.Header
			if !c.set(r.key + ".prefix") {
				r.Prefix = p.Prefix
			}
		}
	} else if r.Header == "" && r.Query == "" && r.Kind != "aws-sigv4" {
		r.Header = "Authorization"
		if !c.set(r.key+".prefix") && slices.Contains(bearers, r.Kind) {
			r.Prefix = "Bearer "
		}
	}
	if r.Kind == "aws-sigv4" {
		for _, field := range []string{"header", "query", "prefix"} {
			if c.set(r.key + "." + field) {
				c.bad(r.key+"."+field, "kind = \"aws-sigv4\" puts a signature where the box put its own")
			}
		}
	}
	if !printable(r.Prefix) {
		c.bad(r.key+".prefix", "holds what no header may hold")
	}
	if r.Query != "" && r.Prefix != "" {
		c.bad(r.key+".prefix", "goes with a header, not with query")
	}
	if r.Path != "" {
		if norm, err := policy.NormalPath(r.Path); err != nil || norm != r.Path {
			c.bad(r.key+".path", "want a path in its normal form, without *, such as \"/repos/\", got %s", quote(r.Path))
		} else if strings.Contains(r.Path, "*") {
			c.bad(r.key+".path", "is the start of a path, not a pattern")
		}
	}
	for i, m := range r.Methods {
		switch {
		case !methodRE().MatchString(m):
			c.bad(fmt.Sprintf("%s.methods[%d]", r.key, i), "want a method in capitals, got %s", quote(m))
		case m == "TRACE" || m == "OPTIONS" || m == "CONNECT":
			c.bad(fmt.Sprintf("%s.methods[%d]", r.key, i), "%s never carries a credential", m)
		}
	}
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

func (c *checker) injectHosts(r injectRule) []policy.Rule {
	usual := false
	if len(r.Hosts) == 0 {
		p, preset := inject.PresetNamed(r.Preset)
		switch {
		case preset && len(p.Hosts) > 0:
			r.Hosts = p.Hosts
		case preset:
			r.Hosts = slices.Clone(c.bundles[r.Preset])
		default:
			r.Hosts = slices.Clone(fixedHosts[r.Kind])
		}
		usual = len(r.Hosts) > 0
		switch {
		case usual:
		case preset:
			c.bad(r.key, "wants hosts: preset %s finds none in the configuration of its clients on this computer", r.Preset)
		case r.Preset == "":
			c.bad(r.key, "wants hosts, or a preset that fills them in")
		}
	}
	var rules []policy.Rule
	const most = 50 // so that comparing every rule with every other stays quick
	if len(r.Hosts) > most {
		c.bad(r.key+".hosts", "%d hosts, at most %d", len(r.Hosts), most)
		return nil
	}
	for i, h := range r.Hosts {
		rule, err := policy.ParseRule(h)
		key := fmt.Sprintf("%s.hosts[%d]", r.key, i)
		switch {
		case err != nil:
			c.bad(key, "%s", err)
		case rule.NeedsIntercept() || strings.Contains(h, "/"):
			c.bad(key, "want HOST or HOST:PORT, got %s: path and methods are keys of their own", quote(h))
		case strings.HasPrefix(h, "*") && rule.Wide() && !usual && !c.at[key].operator:
			c.bad(key, "%s covers hosts of strangers, who would get the credential: name the hosts, or set the rule in config.toml", quote(h))
		default:
			rules = append(rules, rule)
		}
	}
	return rules
}

// overlap names both rules when one request could get two credentials.
func (c *checker) overlap(a, b injectRule) {
	if a.Name == b.Name {
		return // told already
	}
	if !strings.HasPrefix(a.Path, b.Path) && !strings.HasPrefix(b.Path, a.Path) {
		return
	}
	if len(a.Methods) > 0 && len(b.Methods) > 0 && !slices.ContainsFunc(a.Methods, func(m string) bool { return slices.Contains(b.Methods, m) }) {
		return
	}
	for _, x := range a.hosts {
		for _, y := range b.hosts {
			if x.Overlaps(y) {
				c.bad(b.key, "the rules %s and %s overlap: a request to %s could get either credential; tell them apart by path or methods", a.Name, b.Name, y)
				return
			}
		}
	}
}

// dummies checks the placeholder variables of all rules together.
func (c *checker) dummies(rules []injectRule, boxEnv map[string]string) {
	owner, holder := map[string]injectRule{}, map[string]injectRule{}
	for _, r := range rules {
		for _, name := range slices.Sorted(maps.Keys(r.Env)) {
			key, value := join(r.key+".env", name), r.Env[name]
			if err := box.CheckVariable(name, value); err != nil {
				c.bad(key, "%s", err)
			}
			if value == "" || !printable(value) {
				c.bad(key, "want a placeholder of printable characters")
			}
			if n := len(value); n > 0 && n < inject.MinDummy {
				c.warn(c.at[key], key, "a placeholder of %d bytes is too short to be told from other text: %d or more are watched for", n, inject.MinDummy)
			}
			if _, ok := boxEnv[name]; ok {
				c.bad(key, "is set by [box] env too")
			}
			if first, ok := owner[name]; ok && first.Env[name] != value {
				c.bad(key, "the rules %s and %s give it different placeholders", first.Name, r.Name)
			}
			if first, ok := holder[value]; ok && first.Name != r.Name && value != "" {
				c.warn(c.at[key], key, "the rules %s and %s share a placeholder, so neither can tell whose it is when it turns up elsewhere", first.Name, r.Name)
			}
			owner[name], holder[value] = r, r
		}
	}
}

// Bound returns what a rule asks its secret to be bound to: where it goes, and
// what decides what it can do there.
func (r Inject) Bound() state.Bound {
	b := state.Bound{Name: r.Name, Hosts: []string{}, Facts: []string{"kind " + r.Kind}}
	for _, h := range r.Hosts {
		if rule, err := policy.ParseRule(h); err == nil {
			b.Hosts = append(b.Hosts, rule.String())
		}
	}
	fact := func(name, value string) {
		if value != "" {
			b.Facts = append(b.Facts, name+" "+value)
		}
	}
	fact("preset", r.Preset)
	fact("header", strings.ToLower(r.Header))
	fact("query", r.Query)
	fact("token_url", r.TokenURL)
	fact("app_id", r.AppID)
	fact("installation_id", r.InstallationID)
	fact("region", r.Region)
	fact("service", r.Service)
	list := func(name string, values []string) {
		fact(name, strings.Join(slices.Sorted(slices.Values(values)), " "))
	}
	list("repositories", r.Repositories)
	list("scopes", r.Scopes)
	var permissions []string
	for k, v := range r.Permissions {
		permissions = append(permissions, k+":"+v)
	}
	list("permissions", permissions)
	slices.Sort(b.Hosts)
	b.Hosts = slices.Compact(b.Hosts)
	slices.Sort(b.Facts)
	return b
}
