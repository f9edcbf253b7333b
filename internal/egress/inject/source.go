package inject

import (
	"bytes"
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
	"net/url"
	"strings"
	"time"
)

// Value is a secret as its source has it now.
type Value struct {
	Secret  Secret
	Expires time.Time // zero: until the rules are loaded again
}

// Source reads a rule's secret. What it returns is its own copy. A secret that
// is not there is a *MintError that says so.
type Source func(ctx context.Context) (Value, error)

// Doer sends a minter's request. It verifies certificates, follows no redirect
// and has no cookies.
type Doer interface {
	Do(r *http.Request) (*http.Response, error)
}

// UseStatic makes the secret itself the credential.
func (r *Rule) UseStatic(src Source) { r.Minter = static(src) }

type static Source

func (s static) Mint(ctx context.Context, _ string) (Token, error) {
	v, err := s(ctx)
	if err != nil {
		return Token{}, err
	}
	return Token{Value: v.Secret, Expires: v.Expires}, nil
}

// maxReply bounds what a token endpoint answers.
const maxReply = 1 << 20

// reply sends a request and decodes the JSON that comes back into v. The error
// holds nothing of what was sent or came back but the status.
func reply(doer Doer, r *http.Request, fix string, v any) error {
	what := "the token endpoint at " + r.URL.Hostname()
	resp, err := doer.Do(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // its text would hold the URL
		}
		return &MintError{Why: what + " cannot be reached", Err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	switch {
	case err != nil:
		return &MintError{Why: what + " broke off", Err: err}
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		e := &MintError{Why: fmt.Sprintf("%s answered %d%s", what, resp.StatusCode, oauthError(body))}
		if resp.StatusCode >= 400 && resp.StatusCode < 500 {
			e.Fix = fix
		}
		return e
	case len(body) > maxReply || json.Unmarshal(body, v) != nil:
		return &MintError{Why: what + " answered something that is no JSON"}
	}
	return nil
}

// oauthError returns the error code of RFC 6749, 5.2, if it is one of the
// known: anything else could be an echo.
func oauthError(body []byte) string {
	var e struct{ Error json.RawMessage }
	var code string
	if json.Unmarshal(body, &e) != nil || json.Unmarshal(e.Error, &code) != nil {
		return ""
	}
	switch code {
	case "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope":
		return " " + code
	}
	return ""
}

func post(ctx context.Context, where, contentType string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, where, bytes.NewReader(body))
	if err != nil {
		return nil, &MintError{Why: "the token endpoint's URL is not one"}
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "foldyard")
	return r, nil
}

// grant is the answer of RFC 6749, 5.1.
type grant struct {
	AccessToken  string  `json:"access_token"`
	TokenType    string  `json:"token_type"`
	ExpiresIn    seconds `json:"expires_in"`
	RefreshToken string  `json:"refresh_token"`
	Scope        string  `json:"scope"`
}

// seconds are a number that some services write as a string.
type seconds int64

func (s *seconds) UnmarshalJSON(b []byte) error {
	var n json.Number
	if err := json.Unmarshal(bytes.Trim(b, `"`), &n); err != nil {
		return err
	}
	f, err := n.Float64()
	*s = seconds(f)
	return err
}

func (g grant) token(now time.Time, hide ...Secret) (Token, error) {
	if g.AccessToken == "" {
		return Token{}, &MintError{Why: "the token endpoint answered without an access token"}
	}
	if g.TokenType != "" && !strings.EqualFold(g.TokenType, "Bearer") {
		return Token{}, &MintError{Why: "the token is of a type that is not Bearer"}
	}
	t := Token{Value: NewSecret([]byte(g.AccessToken)), Hide: hide}
	if g.Scope != "" {
		t.Scope = "scopes " + g.Scope
	}
	if g.ExpiresIn > 0 {
		t.Expires = now.Add(time.Duration(min(g.ExpiresIn, 1<<31)) * time.Second)
	}
	return t, nil
}

// parseKey reads a PEM private key, PKCS#1 or PKCS#8.
func parseKey(pemText []byte) (*rsa.PrivateKey, error) {
	b, _ := pem.Decode(pemText)
	if b == nil {
		return nil, errors.New("the secret is no PEM private key")
	}
	if k, err := x509.ParsePKCS1PrivateKey(b.Bytes); err == nil {
		return k, nil
	}
	if k, err := x509.ParsePKCS8PrivateKey(b.Bytes); err == nil {
		if k, ok := k.(*rsa.PrivateKey); ok {
			return k, nil
		}
	}
	return nil, errors.New("the secret is no RSA private key")
}

// jwt returns claims signed with RS256 (RFC 7515, 7518).
func jwt(key *rsa.PrivateKey, keyID string, claims map[string]any) (string, error) {
	head := map[string]any{"alg": "RS256", "typ": "JWT"}
	if keyID != "" {
		head["kid"] = keyID
	}
	h, err := json.Marshal(head)
	if err != nil {
		return "", err
	}
	c, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding
	text := enc.EncodeToString(h) + "." + enc.EncodeToString(c)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("the private key cannot sign")
	}
	return text + "." + enc.EncodeToString(sig), nil
}
