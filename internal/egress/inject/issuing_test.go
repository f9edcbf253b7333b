package inject

import (
	"strings"
	"testing"

	"foldyard/internal/egress/policy"
)

// A45: an endpoint that answers with a credential is refused, its neighbours
// are not.
func TestIssuingEndpoints(t *testing.T) {
	at := func(host, kind, preset string) Rule {
		return demo(func(r *Rule) {
			r.Name, r.Hosts, r.Kind, r.Preset = strings.NewReplacer(".", "-", "*", "x").Replace(host), hosts(host), kind, preset
			r.Dummies = nil
		})
	}
	rules := []Rule{
		at("api.github.com", "static", ""), at("ghes.test", "github-app", ""), at("git.test", "static", "git-https"),
		at("*.amazonaws.com", "static", ""), at("*.googleapis.com", "static", ""),
		at("api.openai.com", "static", "openai"), at("api.anthropic.com", "static", "anthropic"),
		at("npm.test", "static", "npm"), at("pypi.test", "static", "pypi"), at("registry.test", "static", "docker-registry"),
		at("plain.test", "static", ""), at("oauth.test", "oauth-refresh", ""),
	}
	rules[len(rules)-1].Endpoint = "oauth.test:443/x/token"
	b := newBench(t, rules...)
	for _, c := range []struct {
		in     string
		issues bool
	}{
		{"POST https://api.github.com/app/installations/42/access_tokens", true},
		{"GET https://api.github.com/app/installations/42", false},
		{"POST https://api.github.com/app/installations/42/access_tokens/", true},
		{"POST https://api.github.com//app/installations/42/access_tokens", true},
		{"POST https://api.github.com/app%2Finstallations/42/Access_Tokens", true},
		{"POST https://api.github.com/app/installations/42/access_tokens?x=1", true},
		{"POST https://api.github.com/app/installations/42/access_tokens;v=1", true},
		{"POST https://api.github.com/repos/o/r/keys", true},
		{"GET https://api.github.com/repos/o/r/keys", false},
		{"POST https://api.github.com/repos/o/r/issues", false},
		{"PUT https://api.github.com/repos/o/r/actions/secrets/TOKEN", true},
		{"PUT https://api.github.com/repos/o/r/environments/e/secrets/TOKEN", true},
		{"GET https://api.github.com/repos/o/r/actions/secrets/TOKEN", false},
		{"PUT https://api.github.com/repos/o/r/contents/secrets/x/y", false},
		{"POST https://api.github.com/orgs/o/actions/runners/registration-token", true},
		{"POST https://ghes.test/api/v3/app/installations/1/access_tokens", true},
		{"POST https://ghes.test/api/v3/repos/o/r/keys", true},
		{"POST https://git.test/login/oauth/access_token", true},
		{"POST https://git.test/o/r.git/git-receive-pack", false},

		{"POST https://sts.amazonaws.com/?Action=AssumeRole&Version=2011-06-15", true},
		{"GET https://sts.amazonaws.com/?Action=assume%52ole", true},
		{"GET https://sts.amazonaws.com/?Action=GetCallerIdentity", false},
		{"GET https://b--usw2-az1--x-s3.s3express.amazonaws.com/?session", true},
		{"GET https://s3.amazonaws.com/b?list-type=2", false},
		{"GET https://api.github.com/copilot_internal/v2/token", true},
		{"GET https://api.github.com/repos/o/r/keys\nX-HTTP-Method-Override: post", true},
		{"POST https://iam.amazonaws.com/?action=CreateAccessKey", true},
		{"POST https://ecr.amazonaws.com/\nX-Amz-Target: AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", true},
		{"POST https://ecr.amazonaws.com/\nX-Amz-Target: AmazonEC2ContainerRegistry_V20150921.ListImages", false},
		{"POST https://x.amazonaws.com/service/Y/operation/GetCredentials", true},
		{"GET https://portal.sso.amazonaws.com/federation/credentials?account_id=1", true},

		{"POST https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b:generateAccessToken", true},
		{"POST https://iam.googleapis.com/v1/projects/p/serviceAccounts/a@b/keys", true},
		{"GET https://iam.googleapis.com/v1/projects/p/serviceAccounts/a@b/keys", false},
		{"POST https://sts.googleapis.com/v1/token", true},
		{"GET https://storage.googleapis.com/storage/v1/b", false},

		{"POST https://api.openai.com/v1/responses", false},
		{"POST https://api.openai.com/v1/realtime/client_secrets", true},
		{"POST https://api.openai.com/v1/organization/projects/p/service_accounts", true},
		{"POST https://api.anthropic.com/v1/messages", false},
		{"POST https://api.anthropic.com/v1/organizations/api_keys", true},
		{"POST https://npm.test/-/npm/v1/tokens", true},
		{"PUT https://npm.test/-/user/org.couchdb.user:me", true},
		{"PUT https://npm.test/@scope%2Fname", false},
		{"POST https://npm.test/repo/-/npm/v1/oidc/token/exchange/package/x", true},
		{"POST https://pypi.test/_/oidc/mint-token", true},
		{"POST https://pypi.test/legacy/", false},
		{"GET https://registry.test/token?service=x&scope=repository:a:pull", true},
		{"POST https://registry.test/v2/users/login", true},
		{"GET https://registry.test/v2/token/manifests/latest", false},
		{"POST https://plain.test/oauth/token", true},
		{"POST https://plain.test/api/v4/projects/1/access_tokens", true},
		{"POST https://plain.test/token", false},
		{"POST https://oauth.test/x/token", true},
		{"POST https://oauth.test/x/Token/", true},
		{"POST https://oauth.test/x", false},
	} {
		_, r := b.Head(t.Context(), ask(c.in))
		if got := r != nil && r.Reason == policy.ReasonCredentialIssuing; got != c.issues || r != nil && !got {
			t.Errorf("%s: %+v, want refused: %v", c.in, r, c.issues)
		}
	}
	rules[0].Issuing = true
	ok(t, b.Load(rules))
	if _, r := b.Head(t.Context(), ask("POST https://api.github.com/repos/o/r/keys")); r != nil {
		t.Errorf("opened by the operator: %v", r)
	}
}
