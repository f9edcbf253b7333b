package inject

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
)

// services are fakes of real services, by host.
type services map[string]http.HandlerFunc

func (s services) Do(r *http.Request) (*http.Response, error) {
	h := s[r.URL.Host]
	if h == nil || r.URL.Scheme != "https" {
		return nil, fmt.Errorf("dial %s: no such service", r.URL.Host)
	}
	w := httptest.NewRecorder()
	h(w, r)
	return w.Result(), nil
}

// testKey is made once: it takes a while.
var testKey = must(rsa.GenerateKey(rand.Reader, 2048))

func keyPEM(pkcs8 bool) string {
	b := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(testKey)}
	if pkcs8 {
		b = &pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(testKey))}
	}
	return string(pem.EncodeToMemory(b))
}

// claims verifies a JWT as a service does.
func claims(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts in a JWT", len(parts))
	}
	enc := base64.RawURLEncoding
	var head struct{ Alg, Typ string }
	ok(t, json.Unmarshal(must(enc.DecodeString(parts[0])), &head))
	if head.Alg != "RS256" || head.Typ != "JWT" {
		t.Fatalf("head %+v", head)
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	ok(t, rsa.VerifyPKCS1v15(&testKey.PublicKey, crypto.SHA256, sum[:], must(enc.DecodeString(parts[2]))))
	var c map[string]any
	ok(t, json.Unmarshal(must(enc.DecodeString(parts[1])), &c))
	return c
}

// github is the part of the API that answers Apps, as its documentation has it.
func github(t *testing.T, now func() time.Time, permissions map[string]string) http.HandlerFunc {
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if r.Method != http.MethodPost || r.URL.Path != "/app/installations/99/access_tokens" || !bearer {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		c := claims(t, token)
		iat, exp := time.Unix(int64(c["iat"].(float64)), 0), time.Unix(int64(c["exp"].(float64)), 0)
		if c["iss"] != "42" || iat.After(now()) || exp.Sub(now()) > 10*time.Minute || exp.Before(now()) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"message":"'Expiration time' claim ('exp') must be a numeric value: %s"}`, token)
			return
		}
		var q struct {
			Repositories []string
			Permissions  map[string]string
		}
		ok(t, json.NewDecoder(r.Body).Decode(&q))
		n++
		w.WriteHeader(http.StatusCreated)
		writeJSON(w, map[string]any{
			"token": fmt.Sprintf("ghs_installation0token%018d", n), "expires_at": now().Add(time.Hour).UTC().Format(time.RFC3339),
			"permissions": permissions, "repository_selection": "selected", "repositories": []map[string]string{{"full_name": "octo/" + strings.Join(q.Repositories, "+")}},
		})
	}
}

func appRule(src Source, s services, now func() time.Time, app GitHubApp) Rule {
	r := Rule{Name: "app", Kind: "github-app", Hosts: hosts("api.github.com"), Header: "Authorization", Prefix: "Bearer ", Dummies: []string{"ghs_dummydummydummy"}}
	r.UseGitHubApp(src, s, now, app)
	return r
}

func TestGitHubApp(t *testing.T) {
	for _, pkcs8 := range []bool{false, true} {
		b := newBench(t)
		s := services{}
		s["api.github.com"] = github(t, b.clock, map[string]string{"contents": "read", "metadata": "read"})
		app := GitHubApp{App: "42", Installation: "99", Repositories: []string{"hello"}, Permissions: map[string]string{"contents": "read"}}
		ok(t, b.Load([]Rule{appRule(fixed(keyPEM(pkcs8)), s, b.clock, app)}))
		q := ask("GET https://api.github.com/repos/octo/hello\nAuthorization: Bearer ghs_dummydummydummy")
		g, r := b.Head(t.Context(), q)
		if r != nil {
			t.Fatalf("%+v", r)
		}
		if got := q.Header.Get("Authorization"); got != "Bearer ghs_installation0token000000000000000001" {
			t.Errorf("got %q", got)
		}
		st := b.Status()[0]
		if st.Scope != "contents:read metadata:read on octo/hello" || !st.Expires.Equal(b.clock().Add(time.Hour)) || st.Read.IsZero() {
			t.Errorf("status %+v", st)
		}
		if text := b.Scrub(g.tok.Hide[0].Reveal()); strings.Trim(text, "*") != "" {
			t.Errorf("the assertion is shown in records: %s", text)
		}
	}
}

func TestGitHubAppFailures(t *testing.T) {
	now := time.Now
	good := services{"api.github.com": github(t, now, map[string]string{"contents": "write", "metadata": "read"})}
	for name, c := range map[string]struct {
		src  Source
		s    services
		app  GitHubApp
		says string
	}{
		"no key":           {fixed("no key"), good, GitHubApp{App: "42", Installation: "99"}, "no PEM"},
		"another app":      {fixed(keyPEM(false)), good, GitHubApp{App: "43", Installation: "99"}, "answered 401"},
		"no such install":  {fixed(keyPEM(false)), good, GitHubApp{App: "42", Installation: "98"}, "answered 404"},
		"unreachable":      {fixed(keyPEM(false)), services{}, GitHubApp{App: "42", Installation: "99"}, "cannot be reached"},
		"wider than asked": {fixed(keyPEM(false)), good, GitHubApp{App: "42", Installation: "99", Permissions: map[string]string{"contents": "read"}}, "other permissions"},
		"more than asked":  {fixed(keyPEM(false)), good, GitHubApp{App: "42", Installation: "99", Permissions: map[string]string{"issues": "read"}}, "more permissions"},
		"redirect": {fixed(keyPEM(false)), services{"api.github.com": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://evil.test/", http.StatusTemporaryRedirect)
		}}, GitHubApp{App: "42", Installation: "99"}, "answered 307"},
		"no JSON": {fixed(keyPEM(false)), services{"api.github.com": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }}, GitHubApp{App: "42", Installation: "99"}, "no JSON"},
		"missing": {func(context.Context) (Value, error) {
			return Value{}, &MintError{Why: "no secret is set for it", Fix: "fy secret set app", Missing: true}
		}, good, GitHubApp{App: "42", Installation: "99"}, "no secret is set"},
	} {
		b := newBench(t)
		b.now = time.Now()
		ok(t, b.Load([]Rule{appRule(c.src, c.s, now, c.app)}))
		q := ask("GET https://api.github.com/x\nAuthorization: Bearer ghs_dummydummydummy")
		_, r := b.Head(t.Context(), q)
		if r == nil || !strings.Contains(r.What, c.says) {
			t.Errorf("%s: %+v", name, r)
			continue
		}
		if want := http.StatusBadGateway; name != "missing" && r.Status != want {
			t.Errorf("%s: status %d", name, r.Status)
		}
		if text := r.What + r.Fix + r.Detail; strings.Contains(text, "eyJ") || strings.Contains(text, "PRIVATE") {
			t.Errorf("%s: %s", name, text)
		}
		if strings.Contains(fields(q.Header), "dummy") {
			t.Errorf("%s: the dummy is still there", name)
		}
	}
}

func TestGitHubEnterpriseIsAskedItself(t *testing.T) {
	r := Rule{Hosts: hosts("github.com", "ghes.test")}
	if got := githubAPI(&r); got != "https://ghes.test/api/v3" {
		t.Errorf("got %s", got)
	}
}

// tokenServer is a token endpoint of RFC 6749 that rotates refresh tokens.
type tokenServer struct {
	t      *testing.T
	valid  string
	secret string
	n      int
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ok(s.t, r.ParseForm())
	fail := func(code string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":%q,"error_description":"%s"}`, code, r.PostForm.Encode())
	}
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/token" || r.PostForm.Get("grant_type") != "refresh_token":
		fail("invalid_request")
	case r.PostForm.Get("client_id") != "client" || r.PostForm.Get("client_secret") != s.secret:
		fail("invalid_client")
	case r.PostForm.Get("refresh_token") != s.valid:
		fail("invalid_grant")
	default:
		s.n++
		s.valid = fmt.Sprintf("refresh-token-number-%d", s.n)
		writeJSON(w, map[string]any{"access_token": fmt.Sprintf("access-token-number-%d", s.n), "token_type": "bearer", "expires_in": "3600", "refresh_token": s.valid, "scope": "read"})
	}
}

func TestOAuthRefreshRotates(t *testing.T) {
	for _, form := range []string{"refresh-token-number-0", `{"refresh_token":"refresh-token-number-0","client_secret":"client-secret-0123456789"}`} {
		b := newBench(t)
		srv := &tokenServer{t: t, valid: "refresh-token-number-0"}
		if form[0] == '{' {
			srv.secret = "client-secret-0123456789"
		}
		stored := form
		src := func(context.Context) (Value, error) { return Value{Secret: NewSecret([]byte(stored))}, nil }
		keep := func(_ context.Context, s Secret) error { stored = s.Reveal(); return nil }
		r := Rule{Name: "oauth", Kind: "oauth-refresh", Hosts: hosts("api.test"), Header: "Authorization", Prefix: "Bearer ", Dummies: []string{"dummy-oauth-token"}}
		r.UseOAuth(src, keep, services{"auth.test": srv.ServeHTTP}, b.clock, OAuth{TokenURL: "https://auth.test/token", ClientID: "client"})
		ok(t, b.Load([]Rule{r}))
		for n := 1; n < 4; n++ {
			if got, refusal, _ := b.get(t); refusal != nil || got != fmt.Sprintf("Bearer access-token-number-%d", n) {
				t.Fatalf("%q, %+v", got, refusal)
			}
			if !strings.Contains(stored, fmt.Sprintf("refresh-token-number-%d", n)) || (stored[0] == '{') != (form[0] == '{') {
				t.Errorf("stored %q", stored)
			}
			b.pass(2 * time.Hour)
		}
		if got := b.Scrub("x refresh-token-number-2 client-secret-0123456789"); form[0] == '{' && strings.Contains(got, "number") || strings.Contains(got, "refresh-token-number-2") {
			t.Errorf("shown in records: %q", got)
		}
	}
}

// A rotated token that cannot be stored is not used up.
func TestOAuthRefreshThatCannotBeStored(t *testing.T) {
	b := newBench(t)
	srv := &tokenServer{t: t, valid: "refresh-token-number-0"}
	r := Rule{Name: "oauth", Hosts: hosts("api.test"), Header: "Authorization", Prefix: "Bearer "}
	r.UseOAuth(fixed("refresh-token-number-0"), func(context.Context, Secret) error { return errors.New("disk full") }, services{"auth.test": srv.ServeHTTP}, b.clock, OAuth{TokenURL: "https://auth.test/token", ClientID: "client"})
	ok(t, b.Load([]Rule{r}))
	for n := 1; n < 4; n++ {
		if got, refusal, _ := b.get(t); refusal != nil || got != fmt.Sprintf("Bearer access-token-number-%d", n) {
			t.Fatalf("%q, %+v", got, refusal)
		}
		b.pass(2 * time.Hour)
	}
	if !strings.Contains(b.Status()[0].Scope, "could not be stored") {
		t.Errorf("status does not say so: %+v", b.Status()[0])
	}
}

func TestOAuthErrorsDoNotEcho(t *testing.T) {
	b := newBench(t)
	r := Rule{Name: "oauth", Hosts: hosts("api.test"), Header: "Authorization", Prefix: "Bearer "}
	r.UseOAuth(fixed("refresh-token-revoked-123"), nil, services{"auth.test": (&tokenServer{t: t, valid: "x"}).ServeHTTP}, b.clock, OAuth{TokenURL: "https://auth.test/token", ClientID: "client"})
	ok(t, b.Load([]Rule{r}))
	_, refusal, _ := b.get(t)
	if refusal == nil || !strings.Contains(refusal.What, "answered 400 invalid_grant") || refusal.Fix != "fy secret set oauth" {
		t.Fatalf("%+v", refusal)
	}
	if strings.Contains(fmt.Sprint(*refusal), "revoked-123") {
		t.Errorf("the refusal holds the refresh token: %+v", refusal)
	}
}

func TestAnswersOfTokenEndpointsAreBounded(t *testing.T) {
	for pad, whole := range map[int]bool{maxReply - 100: true, maxReply: false} {
		b := newBench(t)
		r := Rule{Name: "oauth", Hosts: hosts("api.test"), Header: "Authorization", Prefix: "Bearer "}
		r.UseOAuth(fixed("refresh-token-0123456789"), nil, services{"auth.test": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"access_token":"access-token-0123456789","token_type":"Bearer","x":%q}`, strings.Repeat("x", pad))
		}}, b.clock, OAuth{TokenURL: "https://auth.test/token", ClientID: "client"})
		ok(t, b.Load([]Rule{r}))
		if _, refusal, _ := b.get(t); (refusal == nil) != whole {
			t.Errorf("%d bytes more: %+v", pad, refusal)
		}
	}
}

// A client in the box that refreshes by itself gets the dummy back.
func TestOAuthEndpointAnswersWithTheDummy(t *testing.T) {
	b := newBench(t)
	r := Rule{Name: "oauth", Hosts: hosts("api.test"), Header: "Authorization", Prefix: "Bearer ", Dummies: []string{"dummy-oauth-token"}}
	r.UseOAuth(fixed("x"), nil, services{}, b.clock, OAuth{TokenURL: "https://auth.test/token"})
	ok(t, b.Load([]Rule{r}))
	at := func(s string) dest.Target { return must(dest.Parse(s)) }
	h := b.Endpoint(at("auth.test:443"), "POST", "/token?x=1")
	if h == nil || b.Endpoint(at("auth.test:443"), "GET", "/token") != nil || b.Endpoint(at("auth.test:443"), "POST", "/other") != nil || b.Endpoint(at("other.test:443"), "POST", "/token") != nil {
		t.Fatal("the endpoint is not known, or too well")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/token", nil))
	var got map[string]any
	ok(t, json.Unmarshal(w.Body.Bytes(), &got))
	if got["access_token"] != "dummy-oauth-token" || got["token_type"] != "Bearer" {
		t.Errorf("%v", got)
	}
}

func gcpBench(t *testing.T, secret string, s services) *bench {
	t.Helper()
	b := newBench(t)
	r := Rule{Name: "gcp", Kind: "gcp-metadata", Hosts: hosts("*.googleapis.com"), Header: "Authorization", Prefix: "Bearer ", Dummies: []string{"ya29.foldyard-dummy-0123456789"}}
	r.UseGCP(fixed(secret), s, b.clock, GCP{Project: "my-project"})
	ok(t, b.Load([]Rule{r}))
	return b
}

func TestGCPServiceAccount(t *testing.T) {
	var b *bench
	s := services{"oauth2.googleapis.com": func(w http.ResponseWriter, r *http.Request) {
		ok(t, r.ParseForm())
		c := claims(t, r.PostForm.Get("assertion"))
		if r.PostForm.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || c["iss"] != "sa@p.iam.test" || c["aud"] != "https://oauth2.googleapis.com/token" || c["scope"] != cloudPlatform ||
			int64(c["exp"].(float64))-int64(c["iat"].(float64)) > 3600 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		writeJSON(w, map[string]any{"access_token": "ya29.real-token-0123456789", "expires_in": 3599, "token_type": "Bearer"})
	}}
	key := must(json.Marshal(map[string]string{"type": "service_account", "client_email": "sa@p.iam.test", "private_key_id": "k", "private_key": keyPEM(true), "token_uri": "https://oauth2.googleapis.com/token"}))
	b = gcpBench(t, string(key), s)

	q := ask("GET https://storage.googleapis.com/storage/v1/b\nAuthorization: Bearer ya29.foldyard-dummy-0123456789")
	if _, r := b.Head(t.Context(), q); r != nil {
		t.Fatalf("%+v", r)
	}
	if got := q.Header.Get("Authorization"); got != "Bearer ya29.real-token-0123456789" {
		t.Errorf("not swapped: %q", got)
	}
	for _, own := range []string{"", "\nAuthorization: Bearer the-box-has-one"} {
		q := ask("GET https://storage.googleapis.com/public" + own)
		if g, r := b.Head(t.Context(), q); r != nil || g.Rule != "" || strings.Contains(fields(q.Header), "real") {
			t.Errorf("%q: put on a request without the dummy: %q", own, fields(q.Header))
		}
	}
	if _, r := b.Head(t.Context(), ask("GET https://googleapis.com.evil.test/\nAuthorization: Bearer ya29.foldyard-dummy-0123456789")); r == nil || r.Reason != policy.ReasonDummyElsewhere {
		t.Errorf("elsewhere: %+v", r)
	}
	if st := b.Status()[0]; !strings.Contains(st.Scope, "as sa@p.iam.test") {
		t.Errorf("%+v", st)
	}
}

func TestGCPUser(t *testing.T) {
	s := services{"oauth2.googleapis.com": func(w http.ResponseWriter, r *http.Request) {
		ok(t, r.ParseForm())
		if r.PostForm.Get("refresh_token") != "1//refresh" || r.PostForm.Get("client_id") != "c" || r.PostForm.Get("client_secret") != "s" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		writeJSON(w, map[string]any{"access_token": "ya29.user-token-0123456789", "expires_in": 3599, "token_type": "Bearer"})
	}}
	b := gcpBench(t, `{"type":"authorized_user","client_id":"c","client_secret":"s","refresh_token":"1//refresh"}`, s)
	q := ask("GET https://www.googleapis.com/x\nAuthorization: Bearer ya29.foldyard-dummy-0123456789")
	if _, r := b.Head(t.Context(), q); r != nil || q.Header.Get("Authorization") != "Bearer ya29.user-token-0123456789" {
		t.Errorf("%q, %+v", fields(q.Header), r)
	}
}

func TestMetadataServerHandsOutDummies(t *testing.T) {
	b := gcpBench(t, "{}", services{})
	for _, target := range []string{"169.254.169.254:80", "metadata.google.internal:80"} {
		h := b.Local(must(dest.Parse(target)))
		if h == nil {
			t.Fatalf("%s is not answered", target)
		}
		for _, c := range []struct {
			path, flavor string
			status       int
			body         string
		}{
			{"/", "", 200, "computeMetadata/\n"},
			{"/computeMetadata/v1/instance/service-accounts/default/token", "", 403, ""},
			{"/computeMetadata/v1/instance/service-accounts/default/token", "Google", 200, `"access_token":"ya29.foldyard-dummy-0123456789"`},
			{"/computeMetadata/v1/instance/service-accounts/default/token?scopes=x", "Google", 200, `"token_type":"Bearer"`},
			{"/computeMetadata/v1/instance/service-accounts/default@foldyard.internal/token", "Google", 200, `dummy`},
			{"/computeMetadata/v1/instance/service-accounts/default/?recursive=true", "Google", 200, `"email"`},
			{"/computeMetadata/v1/instance/service-accounts/?recursive=true", "Google", 200, `"default"`},
			{"/computeMetadata/v1/instance/service-accounts/", "Google", 200, "default/\n"},
			{"/computeMetadata/v1/instance/service-accounts/default/email", "Google", 200, "default@foldyard.internal"},
			{"/computeMetadata/v1/instance/service-accounts/default/scopes", "Google", 200, cloudPlatform},
			{"/computeMetadata/v1/instance/service-accounts/default/identity?audience=x", "Google", 403, ""},
			{"/computeMetadata/v1/project/project-id", "Google", 200, "my-project"},
			{"/computeMetadata/v1/universe/universe-domain", "Google", 200, "googleapis.com"},
			{"/computeMetadata/v1/instance/attributes/ssh-keys", "Google", 404, ""},
			{"/computeMetadata/v1/instance/service-accounts/other/token", "Google", 404, ""},
		} {
			r := httptest.NewRequest("GET", c.path, nil)
			r.Header.Set("Metadata-Flavor", c.flavor)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) || w.Header().Get("Metadata-Flavor") != "Google" {
				t.Errorf("%s: %d %q, want %d %q", c.path, w.Code, w.Body, c.status, c.body)
			}
		}
	}
	if len(b.LocalAddrs()) != 1 {
		t.Error("the wall is not told")
	}
	if b.Local(must(dest.Parse("169.254.169.254:443"))) != nil || b.Local(must(dest.Parse("metadata.google.internal.test:80"))) != nil {
		t.Error("answers for others")
	}
	if newBench(t, demo()).Local(must(dest.Parse("169.254.169.254:80"))) != nil {
		t.Error("answers without a rule")
	}
}

// registryServer and its realm speak as the distribution specification says.
func registryServices(t *testing.T, realm string) services {
	return services{
		"registry.test": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" || r.Header.Get("Authorization") != "" {
				t.Errorf("the registry was asked for %s with %q", r.URL, r.Header.Get("Authorization"))
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="registry.test",scope="x, y"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"auth.test": func(w http.ResponseWriter, r *http.Request) {
			user, password, basic := r.BasicAuth()
			if !basic || user != "me" || password != "password-0123456789" || r.URL.Query().Get("service") != "registry.test" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			writeJSON(w, map[string]any{"token": "registry-token-for-" + r.URL.Query().Get("scope"), "expires_in": 300})
		},
		"basic.test": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	}
}

func TestRegistryMintsForTheRepository(t *testing.T) {
	p, _ := PresetNamed("docker-registry")
	make := func(realm string, on ...string) *bench {
		b := newBench(t)
		r := Rule{Name: "reg", Kind: "static", Preset: p.Name, Hosts: hosts(on...), Header: p.Header, Prefix: p.Prefix, Family: p.Family}
		r.UseRegistry(fixed("me:password-0123456789"), registryServices(t, realm), b.clock)
		ok(t, b.Load([]Rule{r}))
		return b
	}
	b := make("https://auth.test/token", "registry.test", "auth.test", "basic.test")
	for in, want := range map[string]string{
		"GET https://registry.test/v2/":                                    "Bearer registry-token-for-",
		"GET https://registry.test/v2/lib/app/manifests/latest":            "Bearer registry-token-for-repository:lib/app:pull",
		"HEAD https://registry.test/v2/lib/app/blobs/sha256:00":            "Bearer registry-token-for-repository:lib/app:pull",
		"POST https://registry.test/v2/lib/app/blobs/uploads/":             "Bearer registry-token-for-repository:lib/app:pull,push",
		"PUT https://registry.test/v2/lib/app/manifests/1":                 "Bearer registry-token-for-repository:lib/app:pull,push",
		"GET https://registry.test/v2/_catalog":                            "Bearer registry-token-for-registry:catalog:*",
		"GET https://basic.test/v2/x/tags/list":                            "Basic " + base64.StdEncoding.EncodeToString([]byte("me:password-0123456789")),
		"GET https://registry.test/v2/a/manifests/b/manifests/latest?ns=x": "Bearer registry-token-for-repository:a/manifests/b:pull",
	} {
		q := ask(in)
		if _, r := b.Head(t.Context(), q); r != nil || q.Header.Get("Authorization") != want {
			t.Errorf("%s: %q, %+v", in, q.Header.Get("Authorization"), r)
		}
	}
	// The box's own dance for a token would end with a real one in the box.
	if _, r := b.Head(t.Context(), ask("GET https://auth.test/token?scope=repository:lib/app:pull")); r == nil || r.Reason != policy.ReasonCredentialIssuing {
		t.Errorf("%+v", r)
	}
	for _, realm := range []string{"https://evil.test/token", "http://auth.test/token", "https://u:p@auth.test/token", "nonsense"} {
		_, r := make(realm, "registry.test", "auth.test").Head(t.Context(), ask("GET https://registry.test/v2/x/manifests/1"))
		if r == nil || r.Reason != policy.ReasonMintFailed {
			t.Errorf("realm %s: %+v", realm, r)
		}
	}
}

func TestParseChallenge(t *testing.T) {
	scheme, p := parseChallenge(`Bearer realm="https://a/\"t",service=reg , scope="a:b:c,d",error=x`)
	if scheme != "Bearer" || p["realm"] != `https://a/"t` || p["service"] != "reg " || p["scope"] != "a:b:c,d" || p["error"] != "x" {
		t.Errorf("%s %q", scheme, p)
	}
	for _, s := range []string{"", "Bearer", `Bearer realm="`, `Bearer realm="\`, "Bearer =", "Bearer a", strings.Repeat("Bearer a=b,", 9)} {
		parseChallenge(s) // must not panic or hang
	}
}

func TestPresetsAreWhole(t *testing.T) {
	var names []string
	for _, p := range Presets() {
		names = append(names, p.Name)
		if p.Header == "" {
			t.Errorf("%s has no header", p.Name)
		}
	}
	if want := []string{"anthropic", "openai", "npm", "pypi", "docker-registry", "git-https"}; !slices.Equal(names, want) {
		t.Errorf("presets %v", names)
	}
	for _, c := range []struct{ preset, secret, want string }{
		{"anthropic", "sk-ant-x-0123456789", "X-Api-Key: sk-ant-x-0123456789"},
		{"openai", "sk-x-0123456789", "Authorization: Bearer sk-x-0123456789"},
		{"npm", "npm_x0123456789", "Authorization: Bearer npm_x0123456789"},
		{"pypi", "pypi-x0123456789", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("__token__:pypi-x0123456789"))},
		{"git-https", "me:pw", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("me:pw"))},
	} {
		p, _ := PresetNamed(c.preset)
		r := Rule{Name: "p", Kind: "static", Preset: p.Name, Hosts: hosts("p.test"), Header: p.Header, Prefix: p.Prefix, User: p.User, Family: p.Family, Dummies: []string{"dummy-preset"}}
		r.UseStatic(fixed(c.secret))
		b := newBench(t, r)
		q := ask("GET https://p.test/x\nAuthorization: Bearer dummy-preset\nX-Api-Key: dummy-preset")
		if p.Name != "anthropic" {
			q = ask("GET https://p.test/x\nAuthorization: Bearer dummy-preset")
		}
		if _, refusal := b.Head(t.Context(), q); refusal != nil || fields(q.Header) != c.want {
			t.Errorf("%s: %q, %+v", c.preset, fields(q.Header), refusal)
		}
	}
}

func TestBasicPairIsMaskedInEveryForm(t *testing.T) {
	r := demo(func(r *Rule) { r.Prefix = "Basic "; r.UseStatic(fixed("me:" + theSecret)) })
	b := newBench(t, r)
	_, _, g := b.get(t)
	if recoded, refusal := g.Answer(200, H2{http.Header{"Content-Type": {"text/plain"}}}, false); recoded || refusal != nil {
		t.Fatal(refusal)
	}
	pair := base64.StdEncoding.EncodeToString([]byte("me:" + theSecret))
	text := "Basic " + pair + "|" + theSecret + "|me:" + theSecret + "|" + base64.StdEncoding.EncodeToString([]byte("xx me:"+theSecret+" yy"))
	got := string(must(io.ReadAll(g.Body(strings.NewReader(text)))))
	if strings.Contains(got, theSecret) || strings.Contains(got, pair) || len(got) != len(text) {
		t.Errorf("got %q", got)
	}
	for _, p := range strings.Split(got, "|") {
		if plain, err := base64.StdEncoding.DecodeString(p); err == nil && strings.Contains(string(plain), theSecret) {
			t.Errorf("decodes: %q", plain)
		}
	}
}
