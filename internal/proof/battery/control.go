package battery

import (
	"net/http"
	"strings"
	"sync"
)

// Control answers the control's name, from within the supervisor: over the
// box's own way out, without any network outside. A run's nonce is answered
// with a token that only the host knows; anything else gets a line of text.
// The zero value is ready.
type Control struct {
	mu   sync.Mutex
	runs map[string]*controlRun
}

type controlRun struct {
	token string
	hits  map[string]int // by control
}

// ServeHTTP answers a request that the proxy took to be for the control's name.
func (c *Control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/probe/"); ok {
		nonce, id, _ := strings.Cut(rest, "/")
		token := c.hit(nonce, id)
		if token == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(token + "\n")) // the probe tells when it did not arrive
		return
	}
	_, _ = w.Write([]byte("foldyard answers here, and nobody outside. What this box may reach is the operator's to say.\n"))
}

func (c *Control) hit(nonce, id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.runs[nonce]
	if run == nil {
		return ""
	}
	if len(run.hits) < 64 {
		run.hits[id]++
	}
	return run.token
}

// expect makes a nonce answerable and returns its token.
func (c *Control) expect(nonce string) (token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[string]*controlRun{}
	}
	run := &controlRun{token: newNonce(), hits: map[string]int{}}
	c.runs[nonce] = run
	return run.token
}

func (c *Control) forget(nonce string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, nonce)
}

// hits returns how often each control of a run arrived.
func (c *Control) hits(nonce string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	hits := map[string]int{}
	if run := c.runs[nonce]; run != nil {
		for id, n := range run.hits {
			hits[id] = n
		}
	}
	return hits
}
