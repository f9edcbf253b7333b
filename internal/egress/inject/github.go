package inject

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// GitHubApp says whose installation tokens to mint.
type GitHubApp struct {
	App, Installation string            // ids
	Repositories      []string          // narrows the token; nil: all of the installation
	Permissions       map[string]string // likewise
}

// UseGitHubApp mints installation tokens with the App's private key.
func (r *Rule) UseGitHubApp(src Source, doer Doer, now func() time.Time, app GitHubApp) {
	r.Minter = &githubApp{app, src, doer, now, r.Name, githubAPI(r)}
}

// githubAPI is the base of the API: of github.com, or of the server that the
// rule names.
func githubAPI(r *Rule) string {
	for _, h := range r.Hosts {
		if s := h.String(); s != "github.com" && s != "api.github.com" && !strings.Contains(s, "*") && !strings.HasSuffix(s, ".githubusercontent.com") {
			return "https://" + s + "/api/v3"
		}
	}
	return "https://api.github.com"
}

type githubApp struct {
	GitHubApp
	src  Source
	doer Doer
	now  func() time.Time
	name string
	api  string
}

func (a *githubApp) Mint(ctx context.Context, _ string) (Token, error) {
	v, err := a.src(ctx)
	if err != nil {
		return Token{}, err
	}
	fix := "fy secret set " + a.name
	key, err := parseKey(v.Secret.bytes())
	if err != nil {
		return Token{}, &MintError{Why: err.Error(), Fix: fix}
	}
	now := a.now()
	// A minute back for a clock that is ahead; GitHub takes ten minutes at most.
	assertion, err := jwt(key, "", map[string]any{"iss": a.App, "iat": now.Add(-time.Minute).Unix(), "exp": now.Add(8 * time.Minute).Unix()})
	if err != nil {
		return Token{}, &MintError{Why: err.Error(), Fix: fix}
	}
	body, err := json.Marshal(struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions,omitempty"`
	}{a.Repositories, a.Permissions})
	if err != nil {
		return Token{}, err
	}
	q, err := post(ctx, a.api+"/app/installations/"+a.Installation+"/access_tokens", "application/json", body)
	if err != nil {
		return Token{}, err
	}
	q.Header.Set("Authorization", "Bearer "+assertion)
	q.Header.Set("Accept", "application/vnd.github+json")
	q.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	var got struct {
		Token       string            `json:"token"`
		ExpiresAt   time.Time         `json:"expires_at"`
		Permissions map[string]string `json:"permissions"`
		Selection   string            `json:"repository_selection"`
		Repos       []struct {
			FullName string `json:"full_name"`
		} `json:"repositories"`
	}
	if err := reply(a.doer, q, fix, &got); err != nil {
		return Token{}, err
	}
	if got.Token == "" || got.ExpiresAt.IsZero() {
		return Token{}, &MintError{Why: "GitHub answered without a token"}
	}
	for p, want := range a.Permissions { // what it was narrowed to it must not exceed
		if have := got.Permissions[p]; have != "" && have != want {
			return Token{}, &MintError{Why: "the token has other permissions than the rule asks for", Fix: "fy config show"}
		}
	}
	if len(a.Permissions) > 0 {
		for p := range got.Permissions {
			if _, asked := a.Permissions[p]; !asked && p != "metadata" {
				return Token{}, &MintError{Why: "the token has more permissions than the rule asks for", Fix: "fy config show"}
			}
		}
	}
	var can []string
	for p, level := range got.Permissions {
		can = append(can, p+":"+level)
	}
	slices.Sort(can)
	scope := strings.Join(can, " ")
	switch {
	case len(got.Repos) > 0:
		var names []string
		for _, r := range got.Repos {
			names = append(names, r.FullName)
		}
		scope += " on " + strings.Join(names[:min(len(names), 5)], ", ")
		if len(names) > 5 {
			scope += fmt.Sprintf(" and %d more", len(names)-5)
		}
	case got.Selection != "":
		scope += " on " + got.Selection + " repositories"
	}
	return Token{Value: NewSecret([]byte(got.Token)), Expires: got.ExpiresAt, Scope: strings.TrimSpace(scope), Hide: []Secret{NewSecret([]byte(assertion))}}, nil
}
