package secrets

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secret makes a value that occurs nowhere else.
func secret(prefix string) string { return prefix + rand.Text() }

// all are the secrets of the session, by what they are.
type all map[string]string

func TestNoSecretEverLiesAnywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	w := newWorld(t)
	if err := w.canBox(); err != nil {
		t.Skipf("this computer makes no boxes: %v", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	s := all{
		"static": secret("tok-"), "query": secret("qry-"), "password": secret("pwd-"), "custom": secret("key-"),
		"private key": strings.Split(keyPEM, "\n")[3], "installation token": secret("ghs_"),
		"refresh token": secret("rft-"), "rotated refresh token": secret("rot-"), "access token": secret("acc-"),
		"aws secret": secret("aws/"), "aws session": secret("ses-"), "gcp token": secret("ya29."),
		"gh token": secret("gho_"), "command": secret("cmd-"), "env": secret("env-"), "file": secret("fil-"),
		"registry password": secret("reg-"), "registry token": secret("rtk-"),
	}
	w.serve(services(w, s))
	w.env = []string{"OPERATORS_TOKEN=" + s["env"]}
	at := func(host string) string { return host + ":" + w.port }
	resolver := w.resolve()
	w.write("file-secret", s["file"]+"\n", 0o600)
	w.write("gh/gh", "#!/bin/sh\n[ \"$*\" = 'auth token --hostname github.test' ] && cat "+w.path("gh/answer")+"\n", 0o755)
	w.write("gh/answer", s["gh token"]+"\n", 0o600)
	w.write("gh/answer2", `{"value":"`+s["command"]+`","ttl":60}`, 0o600)
	w.write("state/config.toml", fmt.Sprintf(`
[upstream]
resolver = %q
ca = [%q]
[secrets.from-file]
from = "file"
file = %q
[secrets.from-env]
from = "env"
env = "OPERATORS_TOKEN"
[secrets.from-command]
from = "command"
command = ["cat", %q]
[[projects.acc.inject]]
name = "operator"
kind = "command"
command = ["cat", %q]
hosts = [%q]
prefix = "Bearer "
`, resolver, w.path("ca.pem"), w.path("file-secret"), w.path("gh/answer2"), w.path("gh/answer2"), at("operator.test")), 0o600)

	rule := func(name, kind, host, more string) string {
		return fmt.Sprintf("[[inject]]\nname = %q\nkind = %q\nhosts = [%q]\nenv = { DUMMY_%s = \"dummy-for-%s\" }\n%s\n",
			name, kind, at(host), strings.ToUpper(strings.ReplaceAll(name, "-", "_")), name, more)
	}
	bearer := `prefix = "Bearer "`
	w.write("repo/foldyard.toml", "[project]\nname = \"acc\"\n"+
		rule("static", "static", "static.test", bearer)+
		rule("query", "static", "query.test", `query = "token"`)+
		rule("basic", "static", "basic.test", `prefix = "Basic "`)+
		rule("custom", "static", "custom.test", `header = "X-Api-Key"`)+
		rule("app", "github-app", "ghes.test", "app_id = \"42\"\ninstallation_id = \"99\"")+
		rule("oauth", "oauth-refresh", "oauth.test", fmt.Sprintf("token_url = \"https://%s/token\"\nclient_id = \"client\"", at("auth.test")))+
		rule("aws", "aws-sigv4", "aws.test", "")+
		rule("gcp", "gcp-metadata", "gcp.test", "gcp_project = \"my-project\"")+
		rule("gh", "gh-cli", "github.test", "")+
		rule("from-file", "static", "file.test", bearer)+
		rule("from-command", "static", "command.test", bearer)+
		rule("from-env", "static", "env.test", bearer)+
		fmt.Sprintf("[[inject]]\nname = \"reg\"\npreset = \"docker-registry\"\nhosts = [%q, %q]\n", at("registry.test"), at("realm.test")), 0o644)
	w.must("", "config", "adopt")

	account, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "sa@test", "private_key": keyPEM, "token_uri": "https://" + at("auth.test") + "/gcp"})
	if err != nil {
		t.Fatal(err)
	}
	set := func(name, value string) { t.Helper(); w.must(value+"\n", "secret", "set", name) }
	set("static", s["static"])
	set("query", s["query"])
	set("basic", "me:"+s["password"])
	set("custom", s["custom"])
	set("app", keyPEM)
	set("oauth", s["refresh token"])
	set("aws", "AKIAREALREALREAL0000:"+s["aws secret"]+":"+s["aws session"])
	set("gcp", string(account))
	set("reg", "me:"+s["registry password"])
	for _, name := range []string{"gh", "from-file", "from-command", "from-env"} {
		if out, err := w.fy("x\n", "secret", "set", name); err == nil {
			t.Errorf("secret set %s, whose secret comes from elsewhere: %s", name, out)
		}
		w.must("", "secret", "bind", name)
	}
	hosts := []string{"static.test", "query.test", "basic.test", "custom.test", "ghes.test", "oauth.test", "aws.test", "gcp.test", "github.test", "file.test", "command.test", "env.test", "operator.test", "registry.test", "other.test"}
	for _, h := range hosts {
		w.must("", "allow", "--internal", at(h))
	}
	w.must("", "up")

	// The box uses each credential, and tries to see it.
	awsAuth := "Authorization: AWS4-HMAC-SHA256 Credential=dummy-for-aws/20260101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256, Signature=" + strings.Repeat("0", 64)
	sh := fmt.Sprintf(`
p=%s
ask() { curl -sS -i -m 20 "$@"; echo; }
ask -H "Authorization: Bearer $DUMMY_STATIC" https://static.test:$p/reflect
ask --http1.1 "https://query.test:$p/reflect?token=$DUMMY_QUERY"
ask -u "me:$DUMMY_BASIC" https://basic.test:$p/reflect
ask -H "X-Api-Key: $DUMMY_CUSTOM" https://custom.test:$p/reflect
ask -H "Authorization: Bearer $DUMMY_APP" https://ghes.test:$p/api/v3/repos/o/r
ask -X POST https://ghes.test:$p/api/v3/app/installations/99/access_tokens
ask -H "Authorization: Bearer $DUMMY_OAUTH" https://oauth.test:$p/reflect
ask -H %q -H 'X-Amz-Content-Sha256: UNSIGNED-PAYLOAD' -X PUT -d body https://aws.test:$p/bucket/key
tok=$(curl -sS -m 20 -H 'Metadata-Flavor: Google' http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token)
echo "metadata: $tok"
raw=$(curl -sS -m 20 -H 'Metadata-Flavor: Google' http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token)
echo "raw metadata: $raw"
tok=${tok#*'"access_token":"'}; tok=${tok%%%%'"'*}
ask -H "Authorization: Bearer $tok" https://gcp.test:$p/reflect
ask -H "Authorization: Bearer $DUMMY_GH" https://github.test:$p/reflect
ask https://file.test:$p/reflect
ask https://command.test:$p/reflect
ask https://operator.test:$p/reflect
ask https://env.test:$p/reflect
ask https://registry.test:$p/v2/lib/app/manifests/latest
ask "https://registry.test:$p/v2/token?scope=x"
ask -H "Authorization: Bearer $DUMMY_STATIC" https://other.test:$p/reflect
echo == what the box sees
env
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'
cat /proc/*/maps >/dev/null 2>&1
find / -xdev -type f -size -2000k \( -path '/proc/*' -o -path '/sys/*' -o -path '/usr/*' -o -path '/lib*' -o -path '/bin/*' -o -path '/sbin/*' \) -prune -o -type f -readable -print0 2>/dev/null | xargs -0 cat 2>/dev/null
cat "$PWD"/* 2>/dev/null
true
`, w.port, awsAuth)
	got := w.must("", "exec", "--", "bash", "-c", sh)

	t.Run("each service got its credential", func(t *testing.T) {
		for host, want := range map[string]string{
			"static.test": "Bearer " + s["static"], "query.test": "token=" + url.QueryEscape(s["query"]),
			"basic.test": base64.StdEncoding.EncodeToString([]byte("me:" + s["password"])), "custom.test": s["custom"],
			"ghes.test": "Bearer " + s["installation token"], "oauth.test": "Bearer " + s["access token"], "aws.test": "Credential=AKIAREALREALREAL0000/",
			"gcp.test": "Bearer " + s["gcp token"], "github.test": "Bearer " + s["gh token"], "file.test": "Bearer " + s["file"],
			"command.test": "Bearer " + s["command"], "env.test": "Bearer " + s["env"], "operator.test": "Bearer " + s["command"], "registry.test": "Bearer " + s["registry token"],
		} {
			if !strings.Contains(w.saw(host), want) {
				t.Errorf("%s saw %q", host, w.saw(host))
			}
		}
		for _, host := range hosts {
			if strings.Contains(w.saw(host), "dummy-for-") || strings.Contains(w.saw(host), "foldyard-dummy") {
				t.Errorf("a dummy reached %s: %q", host, w.saw(host))
			}
		}
		if w.saw("other.test") != "" {
			t.Errorf("other.test was reached: %q", w.saw("other.test"))
		}
		for _, want := range []string{"credential_issuing", "dummy_elsewhere", "foldyard-dummy", "raw metadata: {"} {
			if !strings.Contains(got, want) {
				t.Errorf("the box did not see %q in:\n%s", want, got)
			}
		}
	})
	if t.Failed() {
		t.Logf("the box saw:\n%s", got)
	}
	// Everything that can be asked of fy, from the operator's side.
	for _, args := range [][]string{
		{"status"},
		{"status", "--json"},
		{"secret", "list"},
		{"secret", "list", "--json"},
		{"config", "show"},
		{"config", "show", "--json"},
		{"log"},
		{"log", "--json"},
		{"grants", "--json"},
		{"why", "https://" + at("static.test") + "/"},
		{"why", "--json", "https://" + at("ghes.test") + "/x"},
		{"why", "--json", at("aws.test")},
		{"config", "check"},
		{"config", "diff"},
		{"supervisor", "status"},
		{"supervisor", "logs"},
		{"asks"},
		{"doctor"},
		{"log", "--har", w.path("repo/all.har")},
	} {
		_, _ = w.fy("", args...) // some say no: what they print is what counts
	}
	if out := w.must("", "why", "--json", "https://"+at("ghes.test")+"/x"); !strings.Contains(out, "app (github-app") || !strings.Contains(out, "contents:read") {
		t.Errorf("why does not say what the credential can do: %s", out)
	}
	s.nowhere(t, w, "what the box saw", []byte(got))
	s.nowhere(t, w, "what fy printed", w.said)
	s.processes(t, w)
	w.must("", "down")
	w.must("", "supervisor", "stop")
	s.files(t, w)
}

// forms are the ways in which a value would be found.
func forms(v string) []string {
	return []string{v, url.QueryEscape(v), base64.StdEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte("x" + v))[2:], fmt.Sprintf("%x", v)}
}

func (s all) nowhere(t *testing.T, _ *world, where string, data []byte) {
	t.Helper()
	for what, v := range s {
		for _, form := range forms(v) {
			if i := bytes.Index(data, []byte(form)); i >= 0 {
				t.Errorf("%s is in %s: …%q…", what, where, data[max(0, i-60):min(len(data), i+60)])
			}
		}
	}
}

// processes looks at every process of this computer that it may look at.
func (s all) processes(t *testing.T, w *world) {
	t.Helper()
	ours := 0
	found, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range found {
		for _, name := range []string{"environ", "cmdline"} {
			b, err := os.ReadFile(filepath.Join(p, name))
			if err != nil {
				continue
			}
			if name == "environ" && supervisor(p) {
				b = bytes.ReplaceAll(b, []byte("OPERATORS_TOKEN="+s["env"]), nil) // the operator put it there
			}
			s.nowhere(t, w, filepath.Join(p, name), b)
			if bytes.Contains(b, []byte(w.path("state"))) {
				ours++
			}
		}
	}
	if ours == 0 {
		t.Error("control: no process of fy was looked at")
	}
}

func supervisor(proc string) bool {
	b, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	return err == nil && bytes.Contains(b, []byte("\x00__supervisor\x00"))
}

// files looks at every file that fy or the box has written. Only the store and
// the operator's own files may hold a secret.
func (s all) files(t *testing.T, w *world) {
	t.Helper()
	holds := map[string]bool{w.path("file-secret"): true, w.path("gh/answer"): true, w.path("gh/answer2"): true}
	store := filepath.Join(w.path("state"), "projects", "acc", "secrets.env")
	n := 0
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, w.path("bin")) {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch {
		case path == store:
			info, err := d.Info()
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode of the store: %v, %v", info.Mode(), err)
			}
			for _, what := range []string{"static", "query", "password", "rotated refresh token", "aws secret"} {
				if !bytes.Contains(b, []byte(s[what])) {
					t.Errorf("control: %s is not in the store", what)
				}
			}
			if bytes.Contains(b, []byte(s["refresh token"])) {
				t.Error("the refresh token that was used up is still stored")
			}
		case !holds[path]:
			s.nowhere(t, w, path, b)
			n++
		}
		return nil
	})
	if err != nil || n < 5 {
		t.Errorf("control: looked at %d files, %v", n, err)
	}
}

// services are the fakes. All of them show what they were sent, as a hostile or
// careless service might.
func services(w *world, s all) http.Handler {
	answer := func(rw http.ResponseWriter, v any) {
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(v)
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := strings.Cut(r.Host, ":")
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		form, _ := url.ParseQuery(string(body))
		switch {
		case host == "ghes.test" && r.URL.Path == "/api/v3/app/installations/99/access_tokens":
			answer(rw, map[string]any{"token": s["installation token"], "expires_at": time.Now().Add(time.Hour), "permissions": map[string]string{"contents": "read"}})
			return
		case host == "auth.test" && r.URL.Path == "/token" && form.Get("refresh_token") == s["refresh token"]:
			answer(rw, map[string]any{"access_token": s["access token"], "token_type": "Bearer", "expires_in": 3600, "refresh_token": s["rotated refresh token"]})
			return
		case host == "auth.test" && r.URL.Path == "/gcp" && form.Get("assertion") != "":
			answer(rw, map[string]any{"access_token": s["gcp token"], "token_type": "Bearer", "expires_in": 3600})
			return
		case host == "registry.test" && r.URL.Path == "/v2/":
			rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://realm.test:%s/token",service="r"`, w.port))
			rw.WriteHeader(http.StatusUnauthorized)
			return
		case host == "realm.test" && r.URL.Path == "/token":
			if _, password, _ := r.BasicAuth(); password != s["registry password"] {
				rw.WriteHeader(http.StatusUnauthorized)
				return
			}
			answer(rw, map[string]any{"token": s["registry token"], "expires_in": 300})
			return
		case host == "auth.test" || host == "realm.test":
			rw.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(rw, `{"error":"invalid_grant","echo":%q}`, body)
			return
		}
		var text strings.Builder
		fmt.Fprintf(&text, "%s %s\n", r.Method, r.URL.RequestURI())
		for k, vs := range r.Header {
			for _, v := range vs {
				fmt.Fprintf(&text, "%s: %s\n", k, v)
				rw.Header().Add("X-Saw-"+k, v)
			}
		}
		w.note(host, text.String())
		fmt.Fprintf(rw, "%s\nbase64 %s\n", text.String(), base64.StdEncoding.EncodeToString([]byte(text.String())))
	})
}
