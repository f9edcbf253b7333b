package supervisor

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
)

// operatorConfig writes the operator's config.toml.
func operatorConfig(t *testing.T, opt Options, text string) {
	t.Helper()
	if err := os.MkdirAll(opt.Host.Layout.ConfigDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(opt.Host.Layout.ConfigDir, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The operator's collector gets each record, though it listens where no box may go.
func TestCollectorGetsTheRecords(t *testing.T) {
	got := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- string(b)
	}))
	defer collector.Close()
	opt := options(t, time.Now, "")
	operatorConfig(t, opt, "[log]\notlp = \""+collector.URL+"\"\n")
	s, err := open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	s.record(&capture.Record{Host: "a.test", Port: 443, Verdict: capture.VerdictDeny, Reason: "not_granted"})
	s.close()
	if b := <-got; !strings.Contains(b, `a.test`) || !strings.Contains(b, "not_granted") {
		t.Errorf("the collector got %s", b)
	}
	if notes := s.exportNotes(); notes != nil {
		t.Errorf("notes %q, want none", notes)
	}
}

// Metrics are for who asks a loopback address by its number; a page in a browser that has another name for it gets none. A port
// that is taken stops nothing, and is said.
func TestMetrics(t *testing.T) {
	opt := options(t, time.Now, "")
	operatorConfig(t, opt, "[metrics]\nlisten = \"127.0.0.1:0\"\n")
	s := start(t, opt)
	t.Cleanup(s.close)
	s.serving.Go(func() { s.serveMetrics(t.Context()) })
	s.record(&capture.Record{Host: "a.test", Port: 443, Verdict: capture.VerdictDeny, Reason: "not_granted"})
	ask := func(host string) (int, string) {
		tr := new(http.Transport)
		defer tr.CloseIdleConnections()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.metrics.Addr().String()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Host = host
		resp, err := (&http.Client{Transport: tr}).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	code, text := ask(s.metrics.Addr().String())
	for _, want := range []string{`verdict="deny",reason="not_granted"} 1`, `foldyard_limit{project="`, `name="connections"} 4096`, "foldyard_enforcing"} {
		if code != 200 || !strings.Contains(text, want) {
			t.Errorf("%d, without %s:\n%s", code, want, text)
		}
	}
	if code, text := ask("evil.test"); code != http.StatusForbidden || strings.Contains(text, "foldyard_") {
		t.Errorf("by another name: %d %s", code, text)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opt = options(t, time.Now, "")
	operatorConfig(t, opt, "[metrics]\nlisten = \""+l.Addr().String()+"\"\n")
	s = start(t, opt)
	t.Cleanup(s.close)
	if notes := s.exportNotes(); len(notes) != 1 || !strings.Contains(notes[0], "metrics are not served") {
		t.Errorf("a port that is taken: notes %q", notes)
	}
}
