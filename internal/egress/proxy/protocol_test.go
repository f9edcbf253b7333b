package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/policy"
)

// pairs runs f for every protocol of the client and of the origin.
func pairs(t *testing.T, f func(t *testing.T, h2 bool, up web)) {
	for _, h2 := range []bool{false, true} {
		for _, up := range []web{webH1, webH2} {
			t.Run(fmt.Sprintf("h2=%v/origin=%v", h2, map[web]string{webH1: "h1", webH2: "h2"}[up]), func(t *testing.T) { f(t, h2, up) })
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// B9 and B10: uploads of every size arrive whole.
func TestUploads(t *testing.T) {
	pairs(t, func(t *testing.T, h2 bool, up web) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
			h := sha256.New()
			n, err := io.Copy(h, r.Body)
			fmt.Fprintf(rw, "%d %x %v", n, h.Sum(nil), err)
		})
		c := w.client(byConnect, h2)
		for _, size := range []int64{0, 1, 4095, 4096, 65535, 65536, 65537, 135000, 1<<20 - 1, 1<<20 + 1, 16 << 20} {
			for _, chunked := range []bool{false, true} {
				h := sha256.New()
				_, _ = io.CopyN(h, zeros{}, size)
				req := must(http.NewRequest(http.MethodPost, "https://a.test/", io.LimitReader(zeros{}, size)))
				if !chunked {
					req.ContentLength = size
					if size == 0 {
						req.Body = nil
					}
				}
				r, err := c.Do(req)
				ok(t, err)
				b, err := io.ReadAll(r.Body)
				ok(t, err)
				r.Body.Close()
				if want := fmt.Sprintf("%d %s <nil>", size, hex.EncodeToString(h.Sum(nil))); string(b) != want {
					t.Errorf("%d bytes, chunked %v: got %q, want %q", size, chunked, b, want)
				}
			}
		}
		rec := w.saw("of an upload", func(r *capture.Record) bool { n, _ := r.ReqBytes.Get(); return n == 16<<20 })
		if n, _ := rec.RespBytes.Get(); n != int64(len("16777216 <nil>")+65) {
			t.Errorf("resp_bytes %d", n)
		}
	})
}

// B9: a download streams in bounded memory.
func TestBigDownloadIsStreamed(t *testing.T) {
	const size = 96 << 20
	pairs(t, func(t *testing.T, h2 bool, up web) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Length", strconv.Itoa(size))
			_, _ = io.CopyN(rw, zeros{}, size)
		})
		r, err := w.client(byConnect, h2).Get("https://a.test/")
		ok(t, err)
		defer r.Body.Close()
		var before, m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var most uint64
		var total int64
		b := make([]byte, 1<<20)
		for {
			n, err := io.ReadFull(r.Body, b)
			total += int64(n)
			if total&(16<<20-1) == 0 {
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			}
			if err != nil {
				break
			}
		}
		if total != size || most > before.HeapInuse+32<<20 {
			t.Errorf("%d bytes, heap %d MiB, %d before", total, most>>20, before.HeapInuse>>20)
		}
	})
}

// B8: events arrive as they are sent.
func TestEventsArriveAsSent(t *testing.T) {
	pairs(t, func(t *testing.T, h2 bool, up web) {
		for _, kind := range []string{"text/event-stream", "application/octet-stream"} {
			w := newWorld(t)
			w.allow("a.test")
			next := make(chan struct{})
			w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", kind)
				for i := range 4 {
					fmt.Fprintf(rw, "data: %d\n", i)
					rw.(http.Flusher).Flush()
					select {
					case <-next: // nothing more until the client has read this one
					case <-r.Context().Done():
						return
					}
				}
			})
			r, err := w.client(byConnect, h2).Get("https://a.test/")
			ok(t, err)
			br := bufio.NewReader(r.Body)
			for i := range 4 {
				line, err := br.ReadString('\n')
				if want := fmt.Sprintf("data: %d\n", i); line != want || err != nil {
					t.Fatalf("got %q %v, want %q", line, err, want)
				}
				next <- struct{}{}
			}
			r.Body.Close()
		}
	})
}

// B7: trailers, both ways.
func TestTrailers(t *testing.T) {
	pairs(t, func(t *testing.T, h2 bool, up web) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Trailer", "X-Sum")
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(rw, "%s %s", b, r.Trailer.Get("X-Request"))
			rw.Header().Set("X-Sum", "known")
			rw.Header().Set(http.TrailerPrefix+"X-Late", "unannounced")
		})
		req := must(http.NewRequest(http.MethodPost, "https://a.test/", io.MultiReader(strings.NewReader("body"))))
		req.Header.Set("TE", "trailers")
		req.Trailer = http.Header{"X-Request": {"from the client"}}
		r, err := w.client(byConnect, h2).Do(req)
		ok(t, err)
		b, err := io.ReadAll(r.Body)
		ok(t, err)
		r.Body.Close()
		if string(b) != "body from the client" {
			t.Errorf("request trailer: %q", b)
		}
		if r.Trailer.Get("X-Sum") != "known" || r.Trailer.Get("X-Late") != "unannounced" {
			t.Errorf("trailers %v", r.Trailer)
		}
	})
}

// B6: a bidirectional stream, as gRPC has them: each message is answered
// before the next is sent, and the status comes in a trailer.
func TestBidirectionalStream(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.WriteHeader(200)
		rw.(http.Flusher).Flush()
		br := bufio.NewReader(r.Body)
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				break
			}
			_, _ = io.WriteString(rw, "re: "+line)
			rw.(http.Flusher).Flush()
		}
		rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})
	pr, pw := io.Pipe()
	req := must(http.NewRequest(http.MethodPost, "https://a.test/svc/Method", pr))
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	r, err := w.client(byConnect, true).Do(req)
	ok(t, err)
	br := bufio.NewReader(r.Body)
	for i := range 5 {
		fmt.Fprintf(pw, "message %d\n", i)
		line, err := br.ReadString('\n')
		if err != nil || line != fmt.Sprintf("re: message %d\n", i) {
			t.Fatalf("got %q %v", line, err)
		}
	}
	pw.Close()
	_, err = io.ReadAll(br)
	ok(t, err)
	r.Body.Close()
	if r.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("trailers %v", r.Trailer)
	}
	w.saw("of grpc", func(r *capture.Record) bool { return r.Proto == capture.ProtoGRPC && r.Status == 200 })
}

// A gRPC error without a body: headers that end the stream.
func TestTrailersOnly(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH2, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.Header().Set("Grpc-Status", "12")
	})
	r, _ := get(t, w.client(byConnect, true), "https://a.test/")
	if r.Header.Get("Grpc-Status") != "12" {
		t.Errorf("header %v", r.Header)
	}
}

// B11: Expect is upstream's to answer.
func TestExpectContinue(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			rw.WriteHeader(http.StatusExpectationFailed)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "got %s", b)
	})
	const head = " HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	c := w.tls(byConnect, "a.test:443", "a.test")
	fmt.Fprint(c, "POST /no"+head)
	if l, err := readUntil(c, "\r\n"); !strings.HasPrefix(l, "HTTP/1.1 417") {
		t.Errorf("got %q %v", l, err)
	}
	if rest, err := io.ReadAll(c); err != nil || !strings.Contains(string(rest), "Connection: close") {
		t.Errorf("the connection goes on: %q %v", rest, err)
	}
	c = w.tls(byConnect, "a.test:443", "a.test")
	for range 2 {
		fmt.Fprint(c, "POST /yes"+head)
		if l, err := readUntil(c, "\r\n\r\n"); !strings.HasPrefix(l, "HTTP/1.1 100") {
			t.Fatalf("got %q %v", l, err)
		}
		br := bufio.NewReader(c)
		fmt.Fprint(c, "hello")
		r, err := http.ReadResponse(br, nil)
		ok(t, err)
		if b, _ := io.ReadAll(r.Body); string(b) != "got hello" {
			t.Errorf("got %q", b)
		}
	}
}

// B11: an answer that overtakes a body which was asked for costs no connection.
func TestAnswerOvertakesAwaitedBody(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test:80")
	w.raw("a.test:80", func(c net.Conn) {
		br := bufio.NewReader(c)
		for range 2 {
			if _, err := readUntil(br, "\r\n\r\n"); err != nil {
				return
			}
			fmt.Fprint(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
			_, _ = io.CopyN(io.Discard, br, 5)
		}
	})
	c, err := w.dial(byRedirect, "a.test:80")
	ok(t, err)
	for range 2 {
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		for _, want := range []string{"HTTP/1.1 100", "HTTP/1.1 204"} {
			if l, err := readUntil(c, "\r\n\r\n"); !strings.HasPrefix(l, want) || strings.Contains(l, "close") {
				t.Fatalf("got %q %v, want %s", l, err, want)
			}
		}
		fmt.Fprint(c, "hello")
	}
}

// B12: interim answers are passed on, then the real one.
func TestEarlyHints(t *testing.T) {
	pairs(t, func(t *testing.T, h2 bool, up web) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Link", "</x.css>; rel=preload")
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Del("Link")
			fmt.Fprint(rw, "after")
		})
		var hints atomic.Value
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints.Store(fmt.Sprint(code, h["Link"]))
			return nil
		}})
		req := must(http.NewRequestWithContext(ctx, http.MethodGet, "https://a.test/", nil))
		r, err := w.client(byConnect, h2).Do(req)
		ok(t, err)
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if string(b) != "after" || r.StatusCode != 200 || hints.Load() != "103 [</x.css>; rel=preload]" || r.Header.Get("Link") != "" {
			t.Errorf("got %d %q, hints %v", r.StatusCode, b, hints.Load())
		}
	})
}

func TestBodilessAnswers(t *testing.T) {
	pairs(t, func(t *testing.T, h2 bool, up web) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
			code, _ := strconv.Atoi(r.URL.Path[1:])
			if r.Method == http.MethodHead {
				rw.Header().Set("Content-Length", "1000")
			}
			rw.WriteHeader(code)
		})
		c := w.client(byConnect, h2)
		for range 2 {
			for _, p := range []string{"204", "304", "200"} {
				r, err := c.Head("https://a.test/" + p)
				ok(t, err)
				r.Body.Close()
				if p == "200" && r.ContentLength != 1000 {
					t.Errorf("HEAD: length %d", r.ContentLength)
				}
				if r, b := get(t, c, "https://a.test/"+p); strconv.Itoa(r.StatusCode) != p || b != "" {
					t.Errorf("GET %s: %d %q", p, r.StatusCode, b)
				}
			}
		}
	})
}

// B13: many requests on one connection, also without waiting.
func TestKeepAliveAndPipelining(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.tls(byConnect, "a.test:443", "a.test")
	go func() {
		for i := range 100 {
			fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: a.test\r\n\r\n", i)
		}
	}()
	br := bufio.NewReader(c)
	for i := range 100 {
		r, err := http.ReadResponse(br, nil)
		ok(t, err)
		if b, _ := io.ReadAll(r.Body); !strings.HasSuffix(string(b), fmt.Sprintf(" GET /%d", i)) {
			t.Fatalf("request %d: %q", i, b)
		}
	}
	if n := w.dialled("a.test:443"); n != 1 {
		t.Errorf("dialled %d times", n)
	}
}

func TestHTTP10Client(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:80", webPlain, func(rw http.ResponseWriter, r *http.Request) {
		rw.(http.Flusher).Flush() // chunked to a 1.1 client
		fmt.Fprint(rw, "body")
	})
	c, err := w.dial(byRedirect, "a.test:80")
	ok(t, err)
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n")
	b, err := io.ReadAll(c)
	ok(t, err)
	if s := string(b); !strings.HasSuffix(s, "\r\n\r\nbody") || strings.Contains(s, "chunked") || !strings.Contains(s, "Connection: close") {
		t.Errorf("got %q", s)
	}
}

// B14: a client that goes away ends the upstream's work within a second.
func TestClientAbortEndsUpstream(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		pairs(t, func(t *testing.T, h2 bool, up web) {
			w := newWorld(t)
			w.allow("a.test")
			gone := make(chan time.Time, 1)
			began := make(chan struct{})
			w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
				_, _ = rw.Write(make([]byte, 4096))
				rw.(http.Flusher).Flush()
				close(began)
				for !silent {
					if _, err := rw.Write(make([]byte, 4096)); err != nil {
						break
					}
				}
				<-r.Context().Done()
				gone <- time.Now()
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req := must(http.NewRequestWithContext(ctx, http.MethodGet, "https://a.test/", nil))
			r, err := w.client(byConnect, h2).Do(req)
			ok(t, err)
			_, _ = io.ReadFull(r.Body, make([]byte, 1024))
			<-began
			start := time.Now()
			cancel()
			r.Body.Close()
			select {
			case at := <-gone:
				if at.Sub(start) > time.Second {
					t.Errorf("upstream ended after %v", at.Sub(start))
				}
			case <-time.After(5 * time.Second):
				t.Fatal("upstream goes on")
			}
			w.sawReason("a.test", policy.ReasonClientAbort)
		})
	}
}

// A client that leaves before there is an answer.
func TestClientAbortWhileWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow("a.test")
	gone := make(chan struct{})
	w.web("a.test:443", webH1, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	})
	c := w.tls(byConnect, "a.test:443", "a.test")
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
	for w.dialled("a.test:443") == 0 {
		runtime.Gosched()
	}
	c.Close()
	select {
	case <-gone:
	case <-time.After(3 * time.Second):
		t.Fatal("upstream goes on")
	}
	w.sawReason("a.test", policy.ReasonClientAbort)
}

// B15: a WebSocket whose server speaks first, that idles and half-closes.
// echoSocket sends "first" and then what it gets, on a WebSocket; it greets
// those who want none.
func echoSocket(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		greet(rw, r)
		return
	}
	c, brw, err := rw.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(brw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\nfirst", acceptKey(r.Header.Get("Sec-WebSocket-Key")))
	_ = brw.Flush()
	_, _ = io.Copy(c, brw)
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	for _, by := range ways() {
		w := newWorld(t, func(c *Config) { c.Limits.Idle, c.Limits.HeaderTime = 300*time.Millisecond, 300*time.Millisecond })
		w.allow("a.test")
		w.web("a.test:443", webH1, echoSocket)
		c := w.tls(by, "a.test:443", "a.test")
		fmt.Fprint(c, "GET /ws HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
		head, err := readUntil(c, "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.1 101 ") || err != nil {
			t.Fatalf("%s: %q %v", by, head, err)
		}
		if s, err := readUntil(c, "first"); s != "first" {
			t.Fatalf("%s: first frame %q %v", by, s, err)
		}
		for i := range 3 { // longer than the idle time of requests
			<-time.After(250 * time.Millisecond)
			msg := strings.Repeat(fmt.Sprint(i), 100_000) + "."
			go fmt.Fprint(c, msg)
			if s, err := readUntil(bufio.NewReader(c), "."); s != msg {
				t.Fatalf("%s: echo %d: %d bytes, %v", by, i, len(s), err)
			}
		}
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
			t.Errorf("%s: after the end: %q %v", by, b, err)
		}
		rec := w.saw("of the WebSocket", func(r *capture.Record) bool { return r.Proto == capture.ProtoWebSocket })
		if n, _ := rec.ReqBytes.Get(); rec.Status != 101 || n != 300_003 {
			t.Errorf("record %+v", rec)
		}
		if r, _ := ask(t, w.tls(by, "a.test:443", "a.test"), "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
			t.Errorf("%s: plain request: %d", by, r.StatusCode)
		}
	}
}

// A 101 without the accept key of this handshake is no WebSocket.
func TestFalseWebSocketIsRefused(t *testing.T) {
	wrongSwitch(t, "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
		"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: bm90IGl0\r\n")
}

// wrongSwitch has an origin change the protocol with fields of its own, which
// no client may see.
func wrongSwitch(t *testing.T, asked, answered string) {
	t.Helper()
	w := newWorld(t)
	w.allow("a.test")
	w.raw("a.test:80", func(c net.Conn) {
		_, _ = readUntil(c, "\r\n\r\n")
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n"+answered+"\r\nsecret")
		_, _ = io.Copy(io.Discard, c)
	})
	c, err := w.dial(byRedirect, "a.test:80")
	ok(t, err)
	defer c.Close()
	if r, body := ask(t, c, "GET / HTTP/1.1\r\nHost: a.test\r\n"+asked+"\r\n"); r.StatusCode != 502 || strings.Contains(body, "secret") {
		t.Errorf("got %d %q", r.StatusCode, body)
	}
}

// HTTP/2 without TLS, by prior knowledge.
func TestCleartextHTTP2(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:80", webH2C, greet)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DialContext: func(context.Context, string, string) (net.Conn, error) { return w.dial(byRedirect, "a.test:80") }}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	if _, body := get(t, c, "http://a.test/x"); body != "hello from a.test HTTP/2.0 GET /x" {
		t.Errorf("got %q", body)
	}
	req := must(http.NewRequest(http.MethodGet, "http://a.test/x", nil))
	req.Host = "evil.test"
	r, err := c.Do(req)
	ok(t, err)
	r.Body.Close()
	if r.StatusCode != 421 {
		t.Errorf("misaligned: %d", r.StatusCode)
	}
}

// Alt-Svc would lead clients to a protocol that is refused.
func TestAltSvcIsRemoved(t *testing.T) {
	pairs(t, func(t *testing.T, h2 bool, up web) {
		w := newWorld(t)
		w.allow("a.test")
		w.web("a.test:443", up, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Alt-Svc", `h3=":443"`)
			rw.Header().Set("X-Kept", "yes")
		})
		r, _ := get(t, w.client(byConnect, h2), "https://a.test/")
		if r.Header.Get("Alt-Svc") != "" || r.Header.Get("X-Kept") != "yes" {
			t.Errorf("got %v", r.Header)
		}
	})
}

// B19: a protocol whose server speaks first, by host:port grant.
func TestServerSpeaksFirst(t *testing.T) {
	t.Parallel()
	for _, by := range ways() {
		w := newWorld(t)
		w.allow("git.test:22", "git.test")
		w.raw("git.test:22", func(c net.Conn) {
			fmt.Fprint(c, "SSH-2.0-origin\r\n")
			_, _ = io.Copy(c, c)
		})
		c, err := w.dial(by, "git.test:22")
		ok(t, err)
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if s, err := readUntil(c, "\r\n"); s != "SSH-2.0-origin\r\n" {
			t.Fatalf("%s: %q %v", by, s, err)
		}
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n") // no longer looked at: it is a tunnel
		if s, err := readUntil(c, "\r\n\r\n"); err != nil {
			t.Fatalf("%s: %q %v", by, s, err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(c)
		c.Close()
		rec := w.saw("of the tunnel", func(r *capture.Record) bool { return r.Mode == capture.ModeTunnel })
		if n, _ := rec.ReqBytes.Get(); rec.Proto != capture.ProtoTCP || n == 0 || rec.Rule != "git.test:22" {
			t.Errorf("record %+v", rec)
		}
		// A bare grant opens no other port.
		w.edit(func(f *policy.File) { f.Allow = f.Allow[1:] })
		c, err = w.dial(by, "git.test:22")
		if by != byRedirect {
			if !errors.Is(err, errRefused) {
				t.Errorf("%s: %v", by, err)
			}
			continue
		}
		if err == nil {
			start := time.Now()
			if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(start) > 10*time.Second {
				t.Errorf("%s: not reset: %v after %v", by, err, time.Since(start))
			}
			c.Close()
		}
	}
}

// TLS and HTTP on a port that is granted by number are still decrypted and
// aligned.
func TestWebOnAnotherPortIsIntercepted(t *testing.T) {
	for _, by := range ways() {
		w := newWorld(t)
		w.allow("a.test:8443", "a.test:8080")
		w.web("a.test:8443", webH1, greet)
		w.web("a.test:8080", webPlain, greet)
		if _, body := get(t, w.client(by, false), "https://a.test:8443/x"); body != "hello from a.test:8443 HTTP/1.1 GET /x" {
			t.Errorf("%s: %q", by, body)
		}
		if _, body := get(t, w.client(by, false), "http://a.test:8080/x"); body != "hello from a.test:8080 HTTP/1.1 GET /x" {
			t.Errorf("%s: %q", by, body)
		}
		c, err := w.dial(by, "a.test:8080")
		ok(t, err)
		if r, _ := ask(t, c, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"); r.StatusCode != 421 {
			t.Errorf("%s: misaligned: %d", by, r.StatusCode)
		}
		c.Close()
	}
}

func TestHalfCloseIsKept(t *testing.T) {
	for _, by := range ways() {
		w := newWorld(t)
		w.allow("echo.test:7")
		w.raw("echo.test:7", func(c net.Conn) {
			b, _ := io.ReadAll(c) // answers only at the end of the question
			_, _ = c.Write(b)
			_ = c.(*net.TCPConn).CloseWrite()
		})
		c, err := w.dial(by, "echo.test:7")
		ok(t, err)
		data := bytes.Repeat([]byte("\x01abc"), 250_000)
		_, err = c.Write(data)
		ok(t, err)
		_ = c.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(c); !bytes.Equal(b, data) {
			t.Errorf("%s: %d bytes back, %v", by, len(b), err)
		}
		c.Close()
		rec := w.saw("of the tunnel", func(r *capture.Record) bool { return r.Mode == capture.ModeTunnel })
		req, _ := rec.ReqBytes.Get()
		resp, _ := rec.RespBytes.Get()
		if req != int64(len(data)) || resp != int64(len(data)) {
			t.Errorf("%s: record counts %d and %d", by, req, resp)
		}
	}
}

// B26: many at once, none refused, all given back.
func TestManyConnections(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH2, greet)
	var wg sync.WaitGroup
	var bad atomic.Int64
	gate := make(chan struct{}, 50)
	for i := range 300 {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			c := w.client(byConnect, i%2 == 0)
			r, err := c.Get(fmt.Sprintf("https://a.test/%d", i))
			if err != nil || r.StatusCode != 200 {
				bad.Add(1)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			c.CloseIdleConnections()
		})
	}
	wg.Wait()
	if bad.Load() != 0 {
		t.Errorf("%d of 300 failed", bad.Load())
	}
	w.settled()
}

// settled waits until no connection of the box is left, and nothing is held.
func (w *world) settled() {
	w.t.Helper()
	until := time.Now().Add(10 * time.Second)
	for {
		held := ""
		for _, l := range w.e.Limits() {
			if l.Name != "pooled" && l.Name != "leaves_kept" && l.Current != 0 {
				held += fmt.Sprintf(" %s=%d", l.Name, l.Current)
			}
		}
		if n := len(w.e.live.all()); n == 0 && held == "" {
			return
		} else if time.Now().After(until) {
			w.t.Fatalf("%d connections are left,%s", n, held)
		}
		time.Sleep(time.Millisecond)
	}
}

// One tls.Config for all: tickets resume.
func TestSessionsResume(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	cfg := &tls.Config{RootCAs: w.trust, ServerName: "a.test", ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	for i := range 2 {
		c, err := w.dial(byRedirect, "a.test:443")
		ok(t, err)
		tc := tls.Client(c, cfg)
		if r, _ := ask(t, tc, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
			t.Fatalf("got %d", r.StatusCode)
		}
		if did := tc.ConnectionState().DidResume; did != (i == 1) {
			t.Errorf("connection %d: resumed %v", i, did)
		}
		tc.Close()
	}
}

// An answer that breaks off must not look whole.
func TestTruncatedAnswerIsSeen(t *testing.T) {
	for name, answer := range map[string]string{
		"length":  "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
		"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		for _, h2 := range []bool{false, true} {
			w := newWorld(t)
			w.allow("a.test")
			w.raw("a.test:443", func(c net.Conn) {
				leaf, _ := w.origins.Get(t.Context(), "o", target("a.test:443").Host)
				tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*leaf}})
				if _, err := readUntil(tc, "\r\n\r\n"); err == nil {
					_, _ = io.WriteString(tc, answer)
				}
				tc.Close()
			})
			if r, err := w.client(byConnect, h2).Get("https://a.test/"); err == nil {
				b, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err == nil {
					t.Errorf("%s h2=%v: %q taken for whole", name, h2, b)
				}
			}
			w.sawReason("a.test", policy.ReasonUpstreamUnreachable)
		}
	}
}

// A pooled connection that upstream closed meanwhile is noticed, and a request
// that was caught by it is sent again when that is safe.
func TestStaleUpstreamConnections(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.raw("a.test:80", func(c net.Conn) { // answers once, says nothing about closing, closes at the next request
		if _, err := readUntil(c, "\r\n\r\n"); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		_, _ = readUntil(c, "\r\n")
	})
	c, err := w.dial(byRedirect, "a.test:80")
	ok(t, err)
	defer c.Close()
	br := bufio.NewReader(c)
	for i := range 6 {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
		r, err := http.ReadResponse(br, nil)
		ok(t, err)
		if b, _ := io.ReadAll(r.Body); r.StatusCode != 200 {
			t.Errorf("request %d: %d %s", i, r.StatusCode, b)
		}
	}
}

// An early answer to an upload that goes on.
func TestEarlyAnswerToAnUpload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusRequestEntityTooLarge)
		fmt.Fprint(rw, "too much")
	})
	c := w.tls(byConnect, "a.test:443", "a.test")
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n", 100<<20)
	go func() { _, _ = io.CopyN(c, zeros{}, 100<<20) }()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	ok(t, err)
	b, err := io.ReadAll(r.Body)
	if r.StatusCode != 413 || string(b) != "too much" {
		t.Errorf("got %d %q %v", r.StatusCode, b, err)
	}
}

// An origin that echoes while it reads, over HTTP/1.1.
func TestFullDuplexEcho(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(rw).EnableFullDuplex()
		_, _ = io.Copy(rw, r.Body)
	})
	const size = 8 << 20
	c := w.client(byConnect, false)
	for range 2 {
		r, err := c.Post("https://a.test/", "application/octet-stream", io.LimitReader(zeros{}, size))
		ok(t, err)
		n, err := io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if n != size || err != nil {
			t.Errorf("%d bytes back, %v", n, err)
		}
	}
}

// close_notify goes before FIN, or strict clients call it an attack.
func TestCloseNotify(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	for _, path := range []string{"/", "/\\"} { // an answer and a refusal
		c := w.tls(byConnect, "a.test:443", "a.test")
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n", path)
		if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
			t.Errorf("%s: %q %v", path, b, err)
		}
	}
}
