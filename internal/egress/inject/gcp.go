package inject

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"foldyard/internal/egress/dest"
)

// GCP says what the metadata server tells the box.
type GCP struct {
	Project string
	Scopes  []string // of the tokens; nil: cloud-platform
}

const cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"

// UseGCP mints access tokens with a service account's key or a user's refresh
// token, in the JSON that gcloud writes, and answers the box as the metadata
// server does, with the rule's first dummy.
func (r *Rule) UseGCP(src Source, doer Doer, now func() time.Time, g GCP) {
	if len(g.Scopes) == 0 {
		g.Scopes = []string{cloudPlatform}
	}
	r.Minter = &gcp{g, src, doer, now, r.Name}
	r.Swap = true
	r.local = &local{g}
}

type gcp struct {
	GCP
	src  Source
	doer Doer
	now  func() time.Time
	name string
}

func (g *gcp) Mint(ctx context.Context, _ string) (Token, error) {
	v, err := g.src(ctx)
	if err != nil {
		return Token{}, err
	}
	fix := "fy secret set " + g.name
	var key struct {
		Type         string `json:"type"`
		Email        string `json:"client_email"`
		KeyID        string `json:"private_key_id"`
		PrivateKey   string `json:"private_key"`
		TokenURI     string `json:"token_uri"`
		ClientID     string `json:"client_id"`
		ClientSecret string `json:"client_secret"`
		RefreshToken string `json:"refresh_token"`
	}
	if json.Unmarshal(v.Secret.bytes(), &key) != nil {
		return Token{}, &MintError{Why: "the secret is not the JSON of a service account or of gcloud", Fix: fix}
	}
	where := key.TokenURI
	if where == "" {
		where = "https://oauth2.googleapis.com/token"
	}
	if u, err := url.Parse(where); err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return Token{}, &MintError{Why: "the token_uri of the secret is no https URL", Fix: fix}
	}
	var form url.Values
	who := key.Email
	hide := []Secret{NewSecret([]byte(key.ClientSecret)), NewSecret([]byte(key.RefreshToken))}
	switch key.Type {
	case "service_account":
		rsaKey, err := parseKey([]byte(key.PrivateKey))
		if err != nil {
			return Token{}, &MintError{Why: err.Error(), Fix: fix}
		}
		now := g.now()
		assertion, err := jwt(rsaKey, key.KeyID, map[string]any{
			"iss": key.Email, "aud": where, "scope": strings.Join(g.Scopes, " "), "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		})
		if err != nil {
			return Token{}, &MintError{Why: err.Error(), Fix: fix}
		}
		form = url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}}
		hide = append(hide, NewSecret([]byte(assertion)))
	case "authorized_user":
		form = url.Values{"grant_type": {"refresh_token"}, "refresh_token": {key.RefreshToken}, "client_id": {key.ClientID}, "client_secret": {key.ClientSecret}}
		who = "the user of the secret"
	default:
		return Token{}, &MintError{Why: "the secret is of a type that is neither service_account nor authorized_user", Fix: fix}
	}
	q, err := post(ctx, where, "application/x-www-form-urlencoded", []byte(form.Encode()))
	if err != nil {
		return Token{}, err
	}
	var got grant
	if err := reply(g.doer, q, fix, &got); err != nil {
		return Token{}, err
	}
	t, err := got.token(g.now(), hide...)
	if t.Scope == "" {
		t.Scope = "scopes " + strings.Join(g.Scopes, " ")
	}
	t.Scope = "as " + who + ", " + t.Scope
	return t, err
}

// local is the metadata server of a rule.
type local struct{ GCP }

// Local returns what answers a target that is a service of the box's own
// machine: the metadata server, if a rule has one. Nil: nothing does.
func (in *Injector) Local(t dest.Target) http.Handler {
	if in == nil || t.Port != 80 {
		return nil
	}
	name := t.Host.Name()
	if name != "metadata.google.internal" && name != "metadata" && t.Host.Addr() != metadataAddr() {
		return nil
	}
	for _, r := range in.set.Load().rules {
		if r.local != nil && len(r.Dummies) > 0 {
			return &metadata{in, r}
		}
	}
	return nil
}

func metadataAddr() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 169, 254}) }

// LocalAddrs returns the addresses that Local answers for: the wall has to let
// them through to us.
func (in *Injector) LocalAddrs() []netip.Addr {
	if in.Local(dest.Target{Host: dest.HostFromAddr(metadataAddr()), Port: 80}) == nil {
		return nil
	}
	return []netip.Addr{metadataAddr()}
}

type metadata struct {
	in   *Injector
	rule *rule
}

// ServeHTTP answers as the metadata server of a Compute Engine instance does.
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Metadata-Flavor", "Google")
	h.Set("Server", "Metadata Server for VM")
	fail := func(status int) {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, http.StatusText(status)+"\n") // the box may be gone
	}
	text := func(s string) {
		h.Set("Content-Type", "application/text")
		_, _ = io.WriteString(w, s) // likewise
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		fail(http.StatusMethodNotAllowed)
		return
	case path == "":
		text("computeMetadata/\n")
		return
	case r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "":
		fail(http.StatusForbidden)
		return
	}
	const base = "/computeMetadata/v1/"
	const email = "default@foldyard.internal"
	g := m.rule.local.GCP
	rest, ok := strings.CutPrefix(path, base)
	rest = strings.TrimPrefix(rest, "instance/service-accounts/"+email)
	account, isAccount := strings.CutPrefix(rest, "instance/service-accounts/default")
	if !isAccount && strings.HasPrefix(path, base+"instance/service-accounts/"+email) {
		account, isAccount = rest, true
	}
	switch {
	case !ok && path != strings.TrimSuffix(base, "/"):
		fail(http.StatusNotFound)
	case !ok:
		text("instance/\nproject/\nuniverse/\n")
	case isAccount:
		m.account(w, r, account, email, text, fail)
	case rest == "instance":
		text("service-accounts/\nzone\n")
	case rest == "instance/service-accounts" && r.URL.Query().Get("recursive") == "true":
		writeJSON(w, map[string]any{"default": m.described(email), email: m.described(email)})
	case rest == "instance/service-accounts":
		text("default/\n" + email + "/\n")
	case rest == "instance/zone":
		text("projects/0/zones/us-central1-a")
	case rest == "project/project-id" && g.Project != "":
		text(g.Project)
	case rest == "project/numeric-project-id":
		text("0")
	case rest == "universe/universe-domain" || rest == "universe/universe_domain":
		text("googleapis.com")
	default:
		fail(http.StatusNotFound)
	}
}

func (m *metadata) described(email string) map[string]any {
	return map[string]any{"aliases": []string{"default"}, "email": email, "scopes": m.rule.local.Scopes}
}

func (m *metadata) account(w http.ResponseWriter, r *http.Request, what, email string, text func(string), fail func(int)) {
	switch what {
	case "":
		if r.URL.Query().Get("recursive") == "true" {
			writeJSON(w, m.described(email))
			return
		}
		text("aliases\nemail\nscopes\ntoken\n")
	case "/email":
		text(email)
	case "/aliases":
		text("default\n")
	case "/scopes":
		text(strings.Join(m.rule.local.Scopes, "\n") + "\n")
	case "/token":
		// Never a real one: it is swapped on its way to the service.
		writeJSON(w, map[string]any{"access_token": m.rule.Dummies[0], "expires_in": 3599, "token_type": "Bearer"})
	case "/identity": // a credential in itself, for whatever audience the box names
		fail(http.StatusForbidden)
	default:
		fail(http.StatusNotFound)
	}
}
