package supervisor

import (
	"io"
	"net/http"
	"strings"
	"sync"
)

// nonces answers control.foldyard.internal: the one name that every box reaches, so that a refusal next to it means
// something. It gives back nothing but what it was asked for, and remembers which nonces came by.
type nonces struct {
	mu   sync.Mutex
	seen map[string]int // by nonce that is watched
}

const maxNonce = 128

// watch counts a nonce from now on; stop ends that and returns how often it came by.
func (n *nonces) watch(nonce string) (stop func() int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen == nil {
		n.seen = map[string]int{}
	}
	n.seen[nonce] = 0
	return func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		c := n.seen[nonce]
		delete(n.seen, nonce)
		return c
	}
}

func (n *nonces) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	nonce := strings.TrimPrefix(r.URL.Path, "/")
	if len(nonce) > maxNonce {
		w.WriteHeader(http.StatusRequestURITooLong)
		return
	}
	n.mu.Lock()
	_, watched := n.seen[nonce]
	if watched {
		n.seen[nonce]++
	}
	n.mu.Unlock()
	if !watched {
		_, _ = io.WriteString(w, "foldyard\n") // the box may have left
		return
	}
	_, _ = io.WriteString(w, nonce+"\n")
}
