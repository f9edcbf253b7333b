package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"foldyard/internal/egress/dest"
)

// OAuth says where a refresh token is exchanged.
type OAuth struct {
	TokenURL string // https
	ClientID string
	Scopes   []string
}

// UseOAuth mints access tokens with a refresh token. The secret is the refresh
// token, or {"refresh_token", "client_secret", "client_id"}. A refresh token
// that the service replaces is given to keep, in the form that the secret had.
func (r *Rule) UseOAuth(src Source, keep func(context.Context, Secret) error, doer Doer, now func() time.Time, o OAuth) {
	r.Minter = &oauth{OAuth: o, src: src, keep: keep, doer: doer, now: now, name: r.Name}
	if u, err := url.Parse(o.TokenURL); err == nil {
		if t, err := dest.ParseAuthority(u.Host, 443); err == nil {
			r.Endpoint = t.String() + plainPath(u.Path)
		}
	}
}

type oauth struct {
	OAuth
	src  Source
	keep func(context.Context, Secret) error
	doer Doer
	now  func() time.Time
	name string

	// The last exchange's, if it could not be kept. Mint is not concurrent.
	from, rotated Secret
}

type refresh struct {
	Token        string `json:"refresh_token"`
	ClientID     string `json:"client_id,omitempty"`
	ClientSecret string `json:"client_secret,omitempty"`
	plain        bool
}

func parseRefresh(s Secret) (refresh, error) {
	text := bytes.TrimSpace(s.bytes())
	if !bytes.HasPrefix(text, []byte("{")) {
		return refresh{Token: string(text), plain: true}, nil
	}
	var r refresh
	if json.Unmarshal(text, &r) != nil || r.Token == "" {
		return r, &MintError{Why: "the secret is JSON without refresh_token"}
	}
	return r, nil
}

func (r refresh) secret() Secret {
	if r.plain {
		return NewSecret([]byte(r.Token))
	}
	b, err := json.Marshal(r) //nolint:gosec // G117: the form that the secret had
	if err != nil {
		return Secret{}
	}
	return NewSecret(b)
}

func (o *oauth) Mint(ctx context.Context, _ string) (Token, error) {
	v, err := o.src(ctx)
	if err != nil {
		return Token{}, err
	}
	use := v.Secret
	if !o.rotated.IsZero() && o.from.Equal(v.Secret) {
		use = o.rotated // what is stored was used up
	}
	fix := "fy secret set " + o.name
	r, err := parseRefresh(use)
	if err != nil {
		return Token{}, err
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {r.Token}}
	client := o.ClientID
	if r.ClientID != "" {
		client = r.ClientID
	}
	if len(o.Scopes) > 0 {
		form.Set("scope", strings.Join(o.Scopes, " "))
	}
	if client != "" {
		form.Set("client_id", client)
	}
	if r.ClientSecret != "" {
		form.Set("client_secret", r.ClientSecret)
	}
	q, err := post(ctx, o.TokenURL, "application/x-www-form-urlencoded", []byte(form.Encode()))
	if err != nil {
		return Token{}, err
	}
	var got grant
	if err := reply(o.doer, q, fix, &got); err != nil {
		return Token{}, err
	}
	hide := []Secret{NewSecret([]byte(r.Token)), NewSecret([]byte(r.ClientSecret))}
	t, err := got.token(o.now(), hide...)
	if err != nil {
		return Token{}, err
	}
	if got.RefreshToken != "" && got.RefreshToken != r.Token {
		r.Token = got.RefreshToken
		t.Hide = append(t.Hide, NewSecret([]byte(r.Token)))
		o.from, o.rotated = v.Secret, r.secret()
		if o.keep == nil || o.keep(ctx, o.rotated) != nil {
			t.Scope = strings.TrimSpace(t.Scope + " (its new refresh token could not be stored: it is lost when the supervisor ends)")
		}
	}
	return t, nil
}

// Endpoint returns what answers a request to a token endpoint of a rule: the
// rule's dummy, and nothing of ours. Nil: it is none.
func (in *Injector) Endpoint(t dest.Target, method, path string) http.Handler {
	if in == nil || method != http.MethodPost {
		return nil
	}
	for _, r := range in.set.Load().rules {
		if r.Endpoint == "" || len(r.Dummies) == 0 || r.Issuing || r.Endpoint != t.String()+plainPath(path) {
			continue
		}
		dummy := r.Dummies[0]
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			writeJSON(w, map[string]any{"access_token": dummy, "token_type": "Bearer", "expires_in": 3600, "refresh_token": dummy})
		})
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // the box may be gone
}
