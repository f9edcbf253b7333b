package inject

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// UseRegistry mints the bearer tokens of a container registry, one for each
// repository, with user:password. The realm that a registry names must be a
// host of the rule: the password goes there.
func (r *Rule) UseRegistry(src Source, doer Doer, now func() time.Time) {
	r.Minter = &registry{src, doer, now, r.Name, r.Hosts}
	r.scope = registryScope
}

type registry struct {
	src   Source
	doer  Doer
	now   func() time.Time
	name  string
	hosts []policy.Rule
}

// registryScope names the host and, in the words of the token specification,
// what a request wants to do there.
func registryScope(t dest.Target, method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	rest, ok := strings.CutPrefix(path, "/v2/")
	scope := ""
	switch {
	case !ok || rest == "":
	case rest == "_catalog":
		scope = "registry:catalog:*"
	default:
		for _, kind := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
			i := strings.LastIndex(rest, kind)
			if i <= 0 {
				continue
			}
			name := rest[:i]
			actions := "pull"
			switch {
			case method == http.MethodDelete:
				actions = "delete"
			case method != http.MethodGet && method != http.MethodHead, kind == "/blobs/" && strings.HasPrefix(rest[i+len(kind):], "uploads/"):
				actions = "pull,push"
			}
			if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-/") == "" {
				scope = "repository:" + name + ":" + actions
			}
			break
		}
	}
	return t.String() + " " + scope
}

func (g *registry) Mint(ctx context.Context, scope string) (Token, error) {
	v, err := g.src(ctx)
	if err != nil {
		return Token{}, err
	}
	fix := "fy secret set " + g.name
	pair, err := basic(v.Secret.Reveal())
	if err != nil {
		return Token{}, &MintError{Why: err.Error(), Fix: fix}
	}
	host, scope, _ := strings.Cut(scope, " ")
	scheme, params, err := g.challenge(ctx, host)
	if err != nil {
		return Token{}, err
	}
	hide := []Secret{v.Secret, NewSecret([]byte(pair))}
	if _, password, ok := strings.Cut(v.Secret.Reveal(), ":"); ok {
		hide = append(hide, NewSecret([]byte(password)))
	}
	if strings.EqualFold(scheme, "Basic") {
		return Token{Value: NewSecret([]byte(pair)), Scheme: "Basic", Expires: g.now().Add(time.Hour), Hide: hide}, nil
	}
	if !strings.EqualFold(scheme, "Bearer") {
		return Token{}, &MintError{Why: "the registry asks for neither Basic nor Bearer"}
	}
	realm, err := url.Parse(params["realm"])
	if err != nil || realm.Scheme != "https" || realm.User != nil {
		return Token{}, &MintError{Why: "the registry names a realm that is no https URL"}
	}
	if !g.covers(realm) {
		return Token{}, &MintError{Why: "the registry wants the password at a host that the rule does not name", Fix: "add the realm's host to hosts of " + g.name}
	}
	query := realm.Query()
	if params["service"] != "" {
		query.Set("service", params["service"])
	}
	if scope != "" {
		query.Set("scope", scope)
	}
	realm.RawQuery = query.Encode()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), http.NoBody)
	if err != nil {
		return Token{}, &MintError{Why: "the registry names a realm that is no URL"}
	}
	q.Header.Set("Authorization", "Basic "+pair)
	q.Header.Set("User-Agent", "foldyard")
	var got struct {
		grant
		Token string `json:"token"`
	}
	if err := reply(g.doer, q, fix, &got); err != nil {
		return Token{}, err
	}
	if got.AccessToken == "" {
		got.AccessToken = got.Token
	}
	if got.ExpiresIn == 0 {
		got.ExpiresIn = 60 // as the specification says
	}
	t, err := got.token(g.now(), hide...)
	t.Scope = strings.TrimPrefix(scope, "repository:")
	return t, err
}

// covers reports whether the realm is a host of the rule.
func (g *registry) covers(realm *url.URL) bool {
	t, err := dest.ParseAuthority(realm.Host, 443)
	if err != nil {
		return false
	}
	r := rule{Rule: Rule{Hosts: g.hosts}}
	return r.coversTarget(policy.RuleFor(t), t)
}

// challenge asks the registry, without a credential, what it wants.
func (g *registry) challenge(ctx context.Context, host string) (scheme string, params map[string]string, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+strings.TrimSuffix(host, ":443")+"/v2/", http.NoBody)
	if err != nil {
		return "", nil, &MintError{Why: "the registry's host is not one"}
	}
	q.Header.Set("User-Agent", "foldyard")
	resp, err := g.doer.Do(q)
	if err != nil {
		return "", nil, &MintError{Why: "the registry cannot be reached", Err: err}
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // only so that the connection can be used again
	if resp.StatusCode != http.StatusUnauthorized {
		return "Basic", nil, nil // it wants nothing here, but may elsewhere
	}
	scheme, params = parseChallenge(resp.Header.Get("WWW-Authenticate"))
	return scheme, params, nil
}

// parseChallenge reads one challenge of RFC 9110, 11.6.1.
func parseChallenge(s string) (scheme string, params map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	params = map[string]string{}
	for rest = strings.TrimSpace(rest); rest != ""; {
		name, after, ok := strings.Cut(rest, "=")
		if !ok {
			break
		}
		var value string
		if strings.HasPrefix(after, `"`) {
			end := 1
			for end < len(after) && after[end] != '"' {
				if after[end] == '\\' && end+1 < len(after) {
					end++
				}
				value += string(after[end])
				end++
			}
			after = after[min(end+1, len(after)):]
		} else {
			value, _, _ = strings.Cut(after, ",")
			after = after[len(value):]
		}
		params[strings.ToLower(strings.TrimSpace(name))] = value
		rest = strings.TrimLeft(after, ", ")
	}
	return scheme, params
}
