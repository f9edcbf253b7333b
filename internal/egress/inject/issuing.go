package inject

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"foldyard/internal/egress/policy"
)

// issuer is an endpoint that answers with a credential. A box that could call
// it with ours would hold a real one.
type issuer struct {
	on      string // a host, *.suffix, or the word that issuesFor gives a rule; "": every host
	methods string // "": all
	path    string // glob of path.Match, lower case; a leading ** is any start
	action  string // of the AWS protocols, lower case; with it path is not looked at
}

// issuers are the endpoints that are refused with a credential of ours unless
// the rule opens them.
func issuers() []issuer {
	return []issuer{
		// What many services have in common (RFC 6749, RFC 8693).
		{"", "POST", "/oauth/token", ""},
		{"", "POST", "/oauth2/token", ""},
		{"", "POST", "/oauth2/v?/token", ""},
		{"", "POST", "/login/oauth/access_token", ""},
		{"", "POST", "/login/device/code", ""},
		{"", "POST", "**/access_tokens", ""},
		{"", "POST", "**/personal_access_tokens", ""},

		// GitHub, GitHub Enterprise.
		{"github", "POST", "**/app/installations/*/access_tokens", ""},
		{"github", "POST", "**/app-manifests/*/conversions", ""},
		{"github", "POST,PATCH", "**/applications/*/token", ""},
		{"github", "POST", "**/applications/*/token/scoped", ""},
		{"github", "POST,PUT", "**/authorizations", ""},
		{"github", "PUT", "**/authorizations/clients/*", ""},
		{"github", "PUT", "**/authorizations/clients/*/*", ""},
		{"github", "POST", "**/repos/*/*/keys", ""},
		{"github", "POST", "**/user/keys", ""},
		{"github", "POST", "**/user/gpg_keys", ""},
		{"github", "POST", "**/user/ssh_signing_keys", ""},
		{"github", "PUT", "**/secrets/*", ""},
		{"github", "PUT", "**/secrets/*/repositories", ""},
		{"github", "PUT", "**/secrets/*/repositories/*", ""},
		{"github", "POST", "**/actions/runners/registration-token", ""},
		{"github", "POST", "**/actions/runners/remove-token", ""},
		{"github", "POST", "**/actions/runners/generate-jitconfig", ""},
		{"github", "GET", "**/copilot_internal/token", ""},
		{"github", "GET", "**/copilot_internal/v2/token", ""},

		// AWS: the action, in whatever protocol.
		{"aws", "", "", "assumerole"},
		{"aws", "", "", "assumerolewithsaml"},
		{"aws", "", "", "assumerolewithwebidentity"},
		{"aws", "", "", "assumeroot"},
		{"aws", "", "", "getsessiontoken"},
		{"aws", "", "", "getfederationtoken"},
		{"aws", "", "", "getdelegatedaccesstoken"},
		{"aws", "", "", "getwebidentitytoken"},
		{"aws", "", "", "createaccesskey"},
		{"aws", "", "", "createloginprofile"},
		{"aws", "", "", "updateloginprofile"},
		{"aws", "", "", "createservicespecificcredential"},
		{"aws", "", "", "resetservicespecificcredential"},
		{"aws", "", "", "uploadsigningcertificate"},
		{"aws", "", "", "uploadsshpublickey"},
		{"aws", "", "", "createvirtualmfadevice"},
		{"aws", "", "", "getauthorizationtoken"},
		{"aws", "", "", "getcredentialsforidentity"},
		{"aws", "", "", "getopenidtoken"},
		{"aws", "", "", "getopenidtokenfordeveloperidentity"},
		{"aws", "", "", "getclustercredentials"},
		{"aws", "", "", "getclustercredentialswithiam"},
		{"aws", "", "", "getcredentials"},
		{"aws", "", "", "getrolecredentials"},
		{"aws", "", "", "createtoken"},
		{"aws", "", "", "createtokenwithiam"},
		{"aws", "", "", "createapikey"},
		{"aws", "", "", "createkeysandcertificate"},
		{"aws", "", "", "createkeypair"},
		{"aws", "", "", "importkeypair"},
		{"aws", "", "", "getpassworddata"},
		{"aws", "", "", "createsession"},
		{"aws", "POST", "/v1/authorization-token", ""},
		{"aws", "GET", "/federation/credentials", ""},
		{"aws", "POST", "/sessions", ""},
		{"aws", "POST", "/token", ""},
		{"aws", "GET", "/role-aliases/*/credentials", ""},
		{"aws", "GET,POST", "/federation", ""},
		{"aws", "GET", "/access-grants/data-access", ""},
		{"aws", "GET", "/v20180820/accessgrantsinstance/dataaccess", ""},

		// Google.
		{"google", "POST", "**/serviceaccounts/*:generateaccesstoken", ""},
		{"google", "POST", "**/serviceaccounts/*:generateidtoken", ""},
		{"google", "POST", "**/serviceaccounts/*:signblob", ""},
		{"google", "POST", "**/serviceaccounts/*:signjwt", ""},
		{"google", "POST", "**/serviceaccounts/*/keys", ""},
		{"google", "POST", "**/serviceaccounts/*/keys:upload", ""},
		{"google", "POST", "**/locations/*/keys", ""},
		{"google", "GET", "**/keys/*/keystring", ""},
		{"google", "POST", "**/hmackeys", ""},
		{"google", "POST", "**/projects/*/hmackeys", ""},
		{"google", "POST", "/v1/token", ""},
		{"google", "POST", "/v1beta/token", ""},
		{"google", "POST", "/v1/oauthtoken", ""},
		{"google", "POST", "/token", ""},
		{"google", "POST", "/oauth2/v?/token", ""},

		// Model services.
		{"api.anthropic.com", "POST", "/v1/organizations/api_keys", ""},
		{"api.anthropic.com", "POST", "/v1/organizations/api_keys/*", ""},
		{"api.anthropic.com", "POST", "/v1/organizations/invites", ""},
		{"api.anthropic.com", "POST", "/api/oauth/claude_cli/create_api_key", ""},
		{"api.anthropic.com", "POST", "/v1/oauth/token", ""},
		{"api.openai.com", "POST", "/v1/organization/admin_api_keys", ""},
		{"api.openai.com", "POST", "/v1/organization/invites", ""},
		{"api.openai.com", "POST", "/v1/organization/projects/*/service_accounts", ""},
		{"api.openai.com", "POST", "/v1/realtime/sessions", ""},
		{"api.openai.com", "POST", "/v1/realtime/client_secrets", ""},
		{"api.openai.com", "POST", "/v1/realtime/transcription_sessions", ""},
		{"api.openai.com", "POST", "/v1/chatkit/sessions", ""},

		// Package registries: by preset, for they live anywhere.
		{"npm", "POST,PUT", "**/-/npm/v1/tokens", ""},
		{"npm", "PUT", "**/-/user/*", ""},
		{"npm", "PUT", "**/-/user/*/*", ""},
		{"npm", "PUT", "**/-/user/*/*/*", ""},
		{"npm", "POST", "**/-/v1/login", ""},
		{"npm", "POST", "**/-/npm/v1/oidc/token/exchange/package/*", ""},
		{"npm", "POST", "**/-/npm/v1/oidc/token/exchange/package/*/*", ""},
		{"pypi", "POST", "/_/oidc/mint-token", ""},
		{"pypi", "POST", "/_/oidc/*/mint-token", ""},
		{"pypi", "POST", "/manage/account/token", ""},
		{"docker-registry", "", "**/token", ""},
		{"docker-registry", "", "**/auth", ""},
		{"docker-registry", "POST", "**/users/login", ""},
		{"docker-registry", "POST", "**/auth/token", ""},
		{"docker-registry", "POST", "**/access-tokens", ""},
	}
}

// byWord sorts the issuers by what they are on.
func byWord(list []issuer) map[string][]issuer {
	out := map[string][]issuer{}
	for _, e := range list {
		out[e.on] = append(out[e.on], e)
	}
	return out
}

// issuesFor returns the words, of which there are n, whose endpoints concern a
// rule of this kind or preset at this host.
func issuesFor(r *rule, host string) (words [8]string, n int) {
	add := func(w string) {
		if !slices.Contains(words[:n], w) {
			words[n] = w
			n++
		}
	}
	add("")
	add(r.Preset)
	add(host)
	if r.Kind == "github-app" || r.Kind == "gh-cli" || r.Preset == "git-https" || under(host, "github.com", "ghe.com") || strings.HasPrefix(host, "github.") {
		add("github")
	}
	if r.Kind == "aws-sigv4" || under(host, "amazonaws.com", "amazonaws.com.cn", "api.aws", "aws.dev") {
		add("aws")
	}
	if r.Kind == "gcp-metadata" || under(host, "googleapis.com") {
		add("google")
	}
	return words, n
}

func under(host string, suffixes ...string) bool {
	for _, s := range suffixes {
		if rest, ok := strings.CutSuffix(host, s); ok && (rest == "" || rest[len(rest)-1] == '.') {
			return true
		}
	}
	return false
}

// issuing refuses a request with the credential of r that would be answered
// with another one.
func (g *Grip) issuing(r *rule) *Refusal {
	if r.Issuing {
		return nil
	}
	q := &g.req
	host, other := q.Target.Host.String(), override(q.Header)
	p := "" // worked out once there is something to hold against it
	plain := func() string {
		if p == "" {
			p = plainPath(q.Path)
		}
		return p
	}
	if r.Endpoint != "" && q.Target.String()+plain() == r.Endpoint {
		return g.issues(r)
	}
	if g.issuers(r, host, func(e *issuer) bool {
		if e.action != "" {
			return actionOf(q, plain(), e.action)
		}
		return (e.hasMethod(q.Method) || other != "" && e.hasMethod(other)) && globbed(e.path, plain())
	}) {
		return g.issues(r)
	}
	return nil
}

func (e *issuer) hasMethod(m string) bool {
	if e.methods == "" {
		return true
	}
	for rest, more := e.methods, true; more; {
		var one string
		if one, rest, more = strings.Cut(rest, ","); one == m {
			return true
		}
	}
	return false
}

// issuingForm is issuing for the actions that a form names in its body.
func (g *Grip) issuingForm(r *rule, body []byte) *Refusal {
	if r.Issuing {
		return nil
	}
	values, _ := url.ParseQuery(string(body)) // what can be read of it
	named := func(action string) bool {
		for k, vs := range values {
			if strings.EqualFold(k, "Action") && slices.ContainsFunc(vs, func(v string) bool { return strings.EqualFold(v, action) }) {
				return true
			}
		}
		return false
	}
	if g.issuers(r, g.req.Target.Host.String(), func(e *issuer) bool { return e.action != "" && named(e.action) }) {
		return g.issues(r)
	}
	return nil
}

func (g *Grip) issuers(r *rule, host string, match func(*issuer) bool) bool {
	words, n := issuesFor(r, host)
	for _, w := range words[:n] {
		list := g.in.issuers[w]
		for i := range list {
			if match(&list[i]) {
				return true
			}
		}
	}
	return false
}

func (g *Grip) issues(r *rule) *Refusal {
	return &Refusal{
		Status: http.StatusForbidden, Reason: policy.ReasonCredentialIssuing,
		What: fmt.Sprintf("%s answers here with a credential, which the box would then hold", g.req.Target.Host),
		Fix:  "call it outside the box, or set issuing = true for " + r.Name + " in config.toml",
	}
}

// override returns the method that a request wants to be taken for, by the
// fields that some frameworks obey; "" if none.
func override(h Header) string {
	for _, name := range []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"} {
		if m := h.Get(name); m != "" {
			return strings.ToUpper(strings.TrimSpace(m))
		}
	}
	return ""
}

// plainPath is a path as the most liberal of origins might read it.
func plainPath(target string) string {
	p, _, _ := strings.Cut(target, "?")
	for range 3 {
		plain, err := url.PathUnescape(p)
		if err != nil || plain == p {
			break
		}
		p = plain
	}
	segments := strings.Split(strings.ToLower(strings.ReplaceAll(p, `\`, "/")), "/")
	for i, s := range segments {
		s, _, _ = strings.Cut(s, ";")
		segments[i] = strings.TrimSpace(s)
	}
	return path.Clean("/" + strings.Join(segments, "/"))
}

// globbed matches the pattern of an issuer.
func globbed(pattern, p string) bool {
	rest, anywhere := strings.CutPrefix(pattern, "**")
	if !anywhere {
		ok, err := path.Match(pattern, p)
		return err != nil || ok
	}
	for {
		if ok, err := path.Match(rest, p); err != nil || ok {
			return true
		}
		i := strings.IndexByte(p[min(1, len(p)):], '/')
		if i < 0 {
			return false
		}
		p = p[i+1:]
	}
}

// actionOf reports whether a request's head names an action: the query
// protocol, the JSON protocols, or the last segment of a path.
func actionOf(q *Request, p, action string) bool {
	if target := q.Header.Get("X-Amz-Target"); target != "" {
		if _, name, ok := strings.Cut(target, "."); ok && strings.EqualFold(name, action) {
			return true
		}
	}
	_, query, _ := strings.Cut(q.Path, "?")
	for part := range strings.SplitSeq(query, "&") {
		k, v, _ := strings.Cut(part, "=")
		k, err1 := url.QueryUnescape(k)
		v, err2 := url.QueryUnescape(v)
		if err1 == nil && err2 == nil && strings.EqualFold(k, "Action") && strings.EqualFold(v, action) {
			return true
		}
		if action == "createsession" && err1 == nil && strings.EqualFold(k, "session") { // of S3 Express
			return true
		}
	}
	return strings.HasSuffix(p, "/operation/"+action)
}
