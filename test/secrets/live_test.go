package secrets

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const value = "s3cr3t-VALUE-0123456789"

// live is a world with one static rule, demo, for demo.test.
func live(t *testing.T, operator string) *world {
	t.Helper()
	w := newWorld(t)
	if err := w.canBox(); err != nil {
		t.Skipf("this computer makes no boxes: %v", err)
	}
	w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := strings.Cut(r.Host, ":")
		w.note(host, r.Header.Get("Authorization"))
		switch r.URL.Path {
		case "/reflect":
			_, _ = io.WriteString(rw, r.Header.Get("Authorization"))
		case "/slow":
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(30 * time.Second):
			}
		default:
			_, _ = io.WriteString(rw, "done")
		}
	}))
	w.write("state/config.toml", fmt.Sprintf("[upstream]\nresolver = %q\nca = [%q]\n%s", w.resolve(), w.path("ca.pem"), operator), 0o600)
	w.adopt("demo.test", "")
	for _, h := range []string{"demo.test", "evil.test"} {
		w.must("", "allow", "--internal", h+":"+w.port)
	}
	w.must("", "up")
	return w
}

// adopt makes the rule's host the given one.
func (w *world) adopt(host, more string) string {
	w.t.Helper()
	w.write("repo/foldyard.toml", fmt.Sprintf("[project]\nname = \"acc\"\n%s\n[[inject]]\nname = \"demo\"\nhosts = [\"%s:%s\"]\nprefix = \"Bearer \"\nenv = { DEMO_TOKEN = \"dummy-demo-token\" }\n", more, host, w.port), 0o644)
	return w.must("", "config", "adopt")
}

// curl asks from the box, and returns status and body.
func (w *world) curl(host, path string, args ...string) string {
	w.t.Helper()
	argv := append([]string{"exec", "--", "curl", "-sS", "-m", "20", "-w", " %{http_code}"}, args...)
	out, _ := w.fy("", append(argv, fmt.Sprintf("https://%s:%s%s", host, w.port, path))...)
	return out
}

func (w *world) want(what, got, part string) {
	w.t.Helper()
	if !strings.Contains(got, part) {
		w.t.Errorf("%s: %q, want %q", what, got, part)
	}
}

func TestASecretIsUsedFromTheNextRequestOn(t *testing.T) {
	w := live(t, "")
	w.want("before", w.curl("demo.test", "/", "-H", "Authorization: Bearer dummy-demo-token"), "fy secret set demo")
	w.must(value, "secret", "set", "demo")
	w.want("after", w.curl("demo.test", "/", "-H", "Authorization: Bearer dummy-demo-token"), "done 200")
	w.want("the origin", w.saw("demo.test"), "Bearer "+value)
	w.must("another-"+value, "secret", "set", "demo")
	w.curl("demo.test", "/")
	w.want("the origin, after a change", w.saw("demo.test"), "Bearer another-"+value)
	w.must("", "secret", "rm", "demo")
	w.want("removed", w.curl("demo.test", "/"), " 401")
}

// A46: the box can write the file; the operator adopts it without reading.
func TestTheRepoCannotSendASecretElsewhere(t *testing.T) {
	w := live(t, "")
	w.must(value, "secret", "set", "demo")
	w.want("control", w.curl("demo.test", "/"), "done 200")
	out := w.adopt("evil.test", "")
	w.want("adoption shows the pair", out, "demo → evil.test:"+w.port)
	w.want("not confirmed", w.curl("evil.test", "/", "-H", "Authorization: Bearer dummy-demo-token"), "fy secret bind demo")
	if saw := w.saw("evil.test"); saw != "" {
		t.Errorf("evil.test saw %q", saw)
	}
	// And demo.test, which lost its rule, does not get it any more.
	before := w.saw("demo.test")
	w.curl("demo.test", "/")
	if strings.Contains(strings.TrimPrefix(w.saw("demo.test"), before), value) {
		t.Error("a host that has no rule any more got the secret")
	}
	w.must("", "secret", "bind", "demo")
	w.want("confirmed", w.curl("evil.test", "/"), "done 200")
	w.want("the origin", w.saw("evil.test"), value)
}

func TestARuleThatEchoesIsOffUntilTheOperatorAnswers(t *testing.T) {
	w := live(t, "")
	w.must(value, "secret", "set", "demo")
	for range 3 {
		w.want("masked", w.curl("demo.test", "/reflect"), "Bearer "+strings.Repeat("*", len(value)))
	}
	w.want("off", w.curl("demo.test", "/"), " 401")
	w.want("status", w.must("", "status"), "sent the credential back")
	w.must("", "supervisor", "restart")
	w.want("off after a restart", w.curl("demo.test", "/"), " 401")
	w.must("", "secret", "bind", "demo")
	w.want("on", w.curl("demo.test", "/"), "done 200")
}

func TestTheTripwireRevokes(t *testing.T) {
	w := live(t, "[tripwire]\nrevoke = true\n")
	w.must(value, "secret", "set", "demo")
	w.want("control", w.curl("evil.test", "/"), "done 200")
	w.want("tripped", w.curl("evil.test", "/", "-H", "X: dummy-demo-token"), "dummy_elsewhere")
	deadline := time.Now().Add(5 * time.Second)
	for strings.Contains(w.curl("evil.test", "/"), "done 200") {
		if time.Now().After(deadline) {
			t.Fatal("the session grants are still there")
		}
	}
	w.want("status", w.must("", "status"), "dummy_elsewhere")
}

// A tunnel that is open when its host gets a rule would go around it.
func TestATunnelEndsWhenItsHostGetsARule(t *testing.T) {
	w := live(t, "")
	w.write("repo/foldyard.toml", fmt.Sprintf("[project]\nname = \"acc\"\n[proxy]\npassthrough = [\"demo.test:%s\"]\n", w.port), 0o644)
	w.must("", "config", "adopt")
	w.write("repo/origin.pem", string(must(exec.Command("cat", w.path("ca.pem")).Output())), 0o644)
	ended := make(chan string, 1)
	go func() { ended <- w.curl("demo.test", "/slow", "--cacert", "origin.pem") }()
	deadline := time.Now().Add(10 * time.Second)
	for !w.reached("demo.test") {
		if time.Now().After(deadline) {
			t.Fatal("no tunnel")
		}
		<-time.After(20 * time.Millisecond)
	}
	select {
	case out := <-ended:
		t.Fatalf("control: the tunnel ended by itself: %q", out)
	case <-time.After(time.Second):
	}
	w.adopt("demo.test", fmt.Sprintf("[proxy]\npassthrough = [\"demo.test:%s\"]\n", w.port))
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the tunnel goes on")
	}
	w.must(value, "secret", "set", "demo")
	w.want("decrypted now", w.curl("demo.test", "/"), "done 200")
	w.want("the origin", w.saw("demo.test"), value)
}

// Whoever may ask fy proxy gets no credential but with its token.
func TestProxyGivesCredentialsForItsTokenOnly(t *testing.T) {
	w := live(t, "")
	w.must(value, "secret", "set", "demo")
	w.must("", "allow", "--permanent", "--internal", "demo.test:"+w.port)
	w.must("", "down")
	w.must("", "supervisor", "stop")
	for _, auth := range []bool{true, false} {
		args := []string{"proxy", "--listen", "127.0.0.1:0"}
		if auth {
			args = append(args, "--auth")
		}
		cmd := w.command(args...)
		out := must(cmd.StdoutPipe())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := must(bufio.NewReader(out).ReadString('\n'))
		through := must(url.Parse(strings.TrimSpace(line)))
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(w.must("", "ca", "pem")))
		tr := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: &tls.Config{RootCAs: roots}}
		before := w.saw("demo.test")
		r, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get("https://demo.test:" + w.port + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		tr.CloseIdleConnections()
		saw := strings.TrimPrefix(w.saw("demo.test"), before)
		if r.StatusCode != http.StatusOK || strings.Contains(saw, value) != auth {
			t.Errorf("with a token %v: status %d, the origin saw %q", auth, r.StatusCode, saw)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was interrupted
	}
}

func (w *world) reached(host string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen[host]) > 0
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
