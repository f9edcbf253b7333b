package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
)

// FuzzSmuggling sends anything to a granted origin that reads with another
// parser than ours. What it takes for requests must be what we judged and
// recorded, one for one: bytes that only one of the two takes for a request
// are smuggled past policy.
func FuzzSmuggling(f *testing.F) {
	const head = "POST /ok HTTP/1.1\r\nHost: a.test\r\n"
	for _, s := range []string{
		"GET /ok HTTP/1.1\r\nHost: a.test\r\n\r\n",
		head + "Content-Length: 3\r\n\r\nabcGET /next HTTP/1.1\r\nHost: a.test\r\n\r\n",
		head + "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\nGET /next HTTP/1.1\r\nHost: a.test\r\n\r\n",
		head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n",
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		head + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
		head + "Content-Length: +3\r\n\r\nabc",
		head + "Connection: Content-Length\r\nContent-Length: 30\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n......",
		head + "Connection: Transfer-Encoding, Host\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		head + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
		"HEAD /ok HTTP/1.1\r\nHost: a.test\r\n\r\nGET /next HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET http://a.test/ok HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET /ok HTTP/1.0\r\nHost: a.test\r\n\r\nGET /next HTTP/1.1\r\nHost: a.test\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	w := newWorld(f)
	w.allow("a.test")
	var mu sync.Mutex
	var seen []string
	w.web("a.test:80", webPlain, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, fmt.Sprintf("%s %s %s", r.Method, r.Host, r.RequestURI))
		mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
	})
	addr := w.redirect("a.test:80")
	run := func(t *testing.T, in []byte) error {
		mu.Lock()
		seen = nil
		mu.Unlock()
		w.mu.Lock()
		w.records = nil
		w.mu.Unlock()
		c, err := net.Dial("tcp", addr)
		ok(t, err)
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = c.Write(in)
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(c)
		c.Close()
		w.t = t
		w.settled()
		mu.Lock()
		arrived := slices.Clone(seen)
		mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		var judged []string
		for _, r := range w.records {
			if r.Verdict == capture.VerdictAllow && r.Method != "" {
				judged = append(judged, r.Method+" "+r.Host+" "+r.Path)
			}
		}
		for i, s := range arrived {
			part := strings.SplitN(s, " ", 3)
			if !named(part[1], target("a.test:80")) {
				return fmt.Errorf("the origin saw Host %q", part[1])
			}
			if want := part[0] + " a.test " + part[2]; i >= len(judged) || judged[i] != want {
				return fmt.Errorf("the origin saw %q, we judged %q", arrived, judged)
			}
		}
		return nil
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		// What the origin was told of an earlier, broken off request may reach it
		// late: only what comes every time counts.
		for try := range 3 {
			if err := run(t, in); err == nil {
				return
			} else if try == 2 {
				t.Fatalf("%q: %v", in, err)
			}
		}
	})
}
