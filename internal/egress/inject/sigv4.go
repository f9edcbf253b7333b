package inject

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/egress/policy"
)

// The box signs with dummy keys. What it signed is taken apart, checked, and
// signed again with the real ones, as of now (AWS Signature Version 4).

const (
	sigAlgorithm = "AWS4-HMAC-SHA256"
	sigEnd       = "aws4_request"
	sigTime      = "20060102T150405Z"
	sigUnsigned  = "UNSIGNED-PAYLOAD"
	sigStreaming = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	sigTrailer   = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	sigNoTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	// MaxHeld bounds a body that is read whole since its hash is signed, in bytes.
	MaxHeld = 8 << 20
	// maxPresigned bounds the life of a presigned query: it goes out now.
	maxPresigned = 300
)

type awsKeys struct {
	id              string
	secret, session Secret
}

// UseAWS signs with a secret that is access keys: {"access_key_id",
// "secret_access_key", "session_token"}, what a credential_process prints, or
// ID:SECRET[:TOKEN]. An empty region or service is what the box signed for.
func (r *Rule) UseAWS(src Source, region, service string) {
	r.Minter = &awsMinter{src, r.Name}
	r.sign = &signer{region: region, service: service}
	r.Header, r.Query, r.Prefix = "", "", ""
	r.Family = []string{"Authorization", "X-Amz-Security-Token"}
}

type awsMinter struct {
	src  Source
	name string
}

func (a *awsMinter) Mint(ctx context.Context, _ string) (Token, error) {
	v, err := a.src(ctx)
	if err != nil {
		return Token{}, err
	}
	keys, expires, err := parseKeys(v.Secret)
	if err != nil {
		return Token{}, &MintError{Why: err.Error(), Fix: "fy secret set " + a.name}
	}
	if expires.IsZero() {
		expires = v.Expires
	}
	return Token{keys: keys, Expires: expires, Scope: "signs as " + keys.id, Hide: []Secret{v.Secret}}, nil
}

func parseKeys(s Secret) (*awsKeys, time.Time, error) {
	var expires time.Time
	text := bytes.TrimSpace(s.bytes())
	if !bytes.HasPrefix(text, []byte("{")) {
		p := strings.SplitN(string(text), ":", 3)
		if len(p) < 2 || p[0] == "" || p[1] == "" {
			return nil, expires, errors.New("the secret is neither ID:SECRET nor JSON")
		}
		k := &awsKeys{id: p[0], secret: NewSecret([]byte(p[1]))}
		if len(p) == 3 {
			k.session = NewSecret([]byte(p[2]))
		}
		return k, expires, k.check()
	}
	var raw map[string]any
	if json.Unmarshal(text, &raw) != nil {
		return nil, expires, errors.New("the secret is not JSON")
	}
	get := func(names ...string) string {
		for _, n := range names {
			if v, ok := raw[n].(string); ok && v != "" {
				return v
			}
		}
		return ""
	}
	k := &awsKeys{
		id:      get("access_key_id", "AccessKeyId", "aws_access_key_id"),
		secret:  NewSecret([]byte(get("secret_access_key", "SecretAccessKey", "aws_secret_access_key"))),
		session: NewSecret([]byte(get("session_token", "SessionToken", "aws_session_token"))),
	}
	if e := get("Expiration", "expiration"); e != "" {
		t, err := time.Parse(time.RFC3339, e)
		if err != nil {
			return nil, expires, errors.New("the Expiration of the secret is no time")
		}
		expires = t
	}
	return k, expires, k.check()
}

func (k *awsKeys) check() error {
	if k.id == "" || k.secret.IsZero() {
		return errors.New("the secret wants access_key_id and secret_access_key")
	}
	for _, c := range []byte(k.id) {
		if c <= ' ' || c > '~' || c == '/' || c == ',' {
			return errors.New("the access key id holds what none holds")
		}
	}
	if strings.ContainsFunc(k.session.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the session token holds what none holds")
	}
	return nil
}

// signer is an aws-sigv4 rule's own part.
type signer struct {
	region, service string // "": what the box signed for
}

// signing is one request that is to be signed.
type signing struct {
	rule      *rule
	presigned bool
	region    string
	service   string
	signed    []string // names of the signed fields, lower case, sorted
	expires   int      // seconds, of a presigned query
	payload   string   // hash to sign; "" until the body was read
	held      bool     // the body is read whole before the head is sent
	form      bool     // and looked at
	chunked   *chunkSigner

	g *Grip
}

// begin takes apart how the box signed.
func (s *signer) begin(q *Request, r *rule) (*signing, *Refusal) {
	out := &signing{rule: r}
	bad := func(what string) *Refusal {
		return &Refusal{
			Status: http.StatusUnauthorized, Reason: policy.ReasonCredentialOff,
			What: "the request is not signed in a way that " + r.Name + " can sign again: " + what, Fix: "fy why " + q.Target.Host.String(),
		}
	}
	credential, signedList := "", ""
	auth := q.Header.Get("Authorization")
	_, query, _ := strings.Cut(q.Path, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return nil, bad("the query cannot be read")
	}
	switch {
	case auth != "" && params.Has("X-Amz-Algorithm"):
		return nil, bad("it has a signature in the header and one in the query")
	case auth != "":
		fields, ok := strings.CutPrefix(auth, sigAlgorithm+" ")
		if !ok {
			return nil, bad("the algorithm is not " + sigAlgorithm)
		}
		seen := 0
		for f := range strings.SplitSeq(fields, ",") {
			k, v, _ := strings.Cut(strings.TrimSpace(f), "=")
			switch k {
			case "Credential":
				credential, seen = v, seen|1
			case "SignedHeaders":
				signedList, seen = v, seen|2
			case "Signature":
				if !isHex(v) {
					return nil, bad("the signature is not one")
				}
				seen |= 4
			default:
				return nil, bad("an unknown part of the Authorization field")
			}
		}
		if seen != 7 {
			return nil, bad("Credential, SignedHeaders or Signature is missing")
		}
	default:
		out.presigned = true
		for _, name := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Expires"} {
			if len(params[name]) != 1 {
				return nil, bad(name + " is missing, or comes twice")
			}
		}
		if params.Get("X-Amz-Algorithm") != sigAlgorithm || !isHex(params.Get("X-Amz-Signature")) {
			return nil, bad("the query is not signed with " + sigAlgorithm)
		}
		n, err := strconv.Atoi(params.Get("X-Amz-Expires"))
		if err != nil || n < 1 || n > 604800 {
			return nil, bad("X-Amz-Expires is no number of seconds up to a week")
		}
		out.expires = min(n, maxPresigned)
		credential, signedList = params.Get("X-Amz-Credential"), params.Get("X-Amz-SignedHeaders")
	}
	part := strings.Split(credential, "/")
	if len(part) != 5 || part[4] != sigEnd || !isDigits(part[1], 8) || !isName(part[2]) || !isName(part[3]) {
		return nil, bad("the credential scope is not one")
	}
	if !slices.Contains(r.Dummies, part[0]) {
		return nil, bad("the access key is not the placeholder")
	}
	out.region, out.service = part[2], part[3]
	if s.region != "" && s.region != out.region || s.service != "" && s.service != out.service {
		return nil, bad(fmt.Sprintf("region %s and service %s are not the rule's", out.region, out.service))
	}
	for name := range strings.SplitSeq(signedList, ";") {
		if name == "" || strings.ToLower(name) != name || strings.ContainsAny(name, " :,/") {
			return nil, bad("the list of signed fields is not one")
		}
		out.signed = append(out.signed, name)
	}
	if !slices.Contains(out.signed, "host") {
		return nil, bad("Host is not signed")
	}
	if refusal := out.body(q, params); refusal != "" {
		return nil, bad(refusal)
	}
	return out, nil
}

// body chooses what hash of the body is signed.
func (s *signing) body(q *Request, params url.Values) string {
	s.payload = q.Header.Get("X-Amz-Content-Sha256")
	if s.presigned && s.payload == "" {
		s.payload = params.Get("X-Amz-Content-Sha256")
		if s.payload == "" && s.service == "s3" {
			s.payload = sigUnsigned
		}
	}
	s.form = q.Body && s.service != "s3" && !strings.HasPrefix(q.Header.Get("Content-Type"), "application/x-amz-json")
	switch {
	case s.payload == sigStreaming || s.payload == sigTrailer:
		if s.presigned || !q.Body {
			return "a streaming hash without a stream"
		}
		s.chunked = &chunkSigner{trailer: s.payload == sigTrailer}
		s.form = false
	case s.payload == sigUnsigned || s.payload == sigNoTrailer || isHex(s.payload):
	case s.payload != "":
		return "the hash of the body is of an unknown kind"
	case !q.Body:
		s.payload = hexSum(nil)
	default:
		s.held = true
	}
	s.held = s.held || s.form
	return ""
}

// ready signs, unless the body has to be read first.
func (s *signing) ready(g *Grip) *Refusal {
	s.g = g
	if s.held {
		return nil
	}
	s.sign()
	return nil
}

// Holds returns how many bytes of the body are to be read, and given to Hold,
// before the head is sent; 0: none.
func (g *Grip) Holds() int64 {
	if g == nil || g.signing == nil || !g.signing.held {
		return 0
	}
	return MaxHeld
}

// Hold signs over the body, which was read whole.
func (g *Grip) Hold(body []byte) *Refusal {
	s := g.signing
	if s.form {
		if refusal := g.issuingForm(s.rule, body); refusal != nil {
			return refusal
		}
	}
	if s.payload == "" || isHex(s.payload) {
		s.payload = hexSum(body)
	}
	g.req.Length = int64(len(body))
	if g.req.Header.Get("X-Amz-Content-Sha256") != "" && isHex(s.payload) {
		g.req.Header.Set("X-Amz-Content-Sha256", s.payload)
	}
	s.sign()
	return nil
}

// TooLarge is the refusal of a body that is longer than Holds.
func (g *Grip) TooLarge() *Refusal {
	return &Refusal{
		Status: http.StatusRequestEntityTooLarge, Reason: policy.ReasonLimit,
		What: fmt.Sprintf("the body is over %d MiB and its hash has to be signed", MaxHeld>>20),
		Fix:  "sign with X-Amz-Content-Sha256, which most clients can",
	}
}

// sign puts date, session token and signature on the request.
func (s *signing) sign() {
	g, q, k := s.g, &s.g.req, s.g.tok.keys
	now := g.in.cfg.Now().UTC()
	stamp := now.Format(sigTime)
	scope := strings.Join([]string{stamp[:8], s.region, s.service, sigEnd}, "/")
	signed := slices.DeleteFunc(slices.Clone(s.signed), func(n string) bool { return n == "x-amz-security-token" })
	if s.presigned {
		for _, name := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token"} {
			g.Path = withoutParameter(g.Path, name, func(string) {})
		}
	} else {
		q.Header.Set("X-Amz-Date", stamp)
		if !slices.Contains(signed, "x-amz-date") {
			signed = append(signed, "x-amz-date")
		}
		q.Header.Rewrite(func(name, value string) (string, bool) {
			return value, !strings.EqualFold(name, "Date") || slices.Contains(signed, "date")
		})
		if !k.session.IsZero() {
			q.Header.Set("X-Amz-Security-Token", k.session.Reveal())
			signed = append(signed, "x-amz-security-token")
		}
	}
	values := s.fields(signed)
	signed = slices.DeleteFunc(signed, func(n string) bool { _, ok := values[n]; return !ok })
	slices.Sort(signed)
	signed = slices.Compact(signed)
	list := strings.Join(signed, ";")
	if s.presigned {
		for _, p := range [][2]string{
			{"X-Amz-Algorithm", sigAlgorithm},
			{"X-Amz-Credential", k.id + "/" + scope},
			{"X-Amz-Date", stamp},
			{"X-Amz-Expires", strconv.Itoa(s.expires)},
			{"X-Amz-SignedHeaders", list},
			{"X-Amz-Security-Token", k.session.Reveal()},
		} {
			if p[1] != "" {
				g.Path = withParameter(g.Path, p[0], p[1])
			}
		}
	}
	path, query, _ := strings.Cut(g.Path, "?")
	var b strings.Builder
	b.WriteString(q.Method + "\n" + s.uri(path) + "\n" + canonicalQuery(query) + "\n")
	for _, n := range signed {
		b.WriteString(n + ":" + values[n] + "\n")
	}
	b.WriteString("\n" + list + "\n" + s.payload)
	key := signingKey(k, stamp[:8], s.region, s.service)
	signature := hex.EncodeToString(mac(key, sigAlgorithm+"\n"+stamp+"\n"+scope+"\n"+hexSum([]byte(b.String()))))
	if s.presigned {
		g.Path = withParameter(g.Path, "X-Amz-Signature", signature)
	} else {
		q.Header.Set("Authorization", sigAlgorithm+" Credential="+k.id+"/"+scope+", SignedHeaders="+list+", Signature="+signature)
	}
	if s.chunked != nil {
		s.chunked.key, s.chunked.stamp, s.chunked.scope, s.chunked.previous = key, stamp, scope, signature
		s.chunked.fail = func(why string) error {
			refusal := &Refusal{Status: http.StatusBadRequest, Reason: policy.ReasonBadRequest, What: "the aws-chunked body is malformed: " + why}
			g.tripped.Store(refusal)
			return refusal
		}
	}
}

// fields returns the canonical values of the fields called names that will be
// sent.
func (s *signing) fields(names []string) map[string]string {
	q := &s.g.req
	out := map[string]string{}
	q.Header.Rewrite(func(name, value string) (string, bool) {
		n := strings.ToLower(name)
		if slices.Contains(names, n) {
			v := strings.Join(strings.Fields(value), " ")
			if old, ok := out[n]; ok {
				v = old + "," + v
			}
			out[n] = v
		}
		return value, true
	})
	for _, hop := range []string{"connection", "transfer-encoding", "te", "upgrade", "expect", "content-length"} {
		delete(out, hop) // ours to send, or not to
	}
	if slices.Contains(names, "content-length") && q.Length >= 0 && q.Body {
		out["content-length"] = strconv.FormatInt(q.Length, 10)
	}
	out["host"] = q.Host
	return out
}

// uri is the canonical path: S3 encodes once, all others twice.
func (s *signing) uri(path string) string {
	if path == "" {
		return "/"
	}
	if s.service == "s3" || s.service == "s3-object-lambda" || s.service == "s3express" || s.service == "s3-outposts" {
		if plain, err := url.PathUnescape(path); err == nil {
			return sigEncode(plain, true)
		}
	}
	return sigEncode(path, true)
}

func canonicalQuery(query string) string {
	if query == "" {
		return ""
	}
	var pairs []string
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		pairs = append(pairs, sigEncode(unescaped(k), false)+"="+sigEncode(unescaped(v), false))
	}
	slices.SortFunc(pairs, func(a, b string) int {
		ak, av, _ := strings.Cut(a, "=")
		bk, bv, _ := strings.Cut(b, "=")
		if c := strings.Compare(ak, bk); c != 0 {
			return c
		}
		return strings.Compare(av, bv)
	})
	return strings.Join(pairs, "&")
}

func unescaped(s string) string {
	if plain, err := url.QueryUnescape(s); err == nil {
		return plain
	}
	return s
}

func sigEncode(s string, slash bool) string {
	keep := "-._~"
	if slash {
		keep += "/"
	}
	return string(percent([]byte(s), keep, "0123456789ABCDEF"))
}

func signingKey(k *awsKeys, day, region, service string) []byte {
	key := append([]byte("AWS4"), k.secret.bytes()...)
	out := mac(mac(mac(mac(key, day), region), service), sigEnd)
	clear(key)
	return out
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text)) // never fails
	return h.Sum(nil)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// isHex reports whether s is a SHA-256 in hexadecimal.
func isHex(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

func isDigits(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789") == ""
}

func isName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
