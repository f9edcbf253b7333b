//go:build e2e

package lab

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// web is the site web.test.
func web() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello over %s\n", r.Proto)
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // the client compares
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: event %d\n\n", i)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done() // a stream that stays open: what is held back is never seen
	})
	mux.HandleFunc("GET /ws", socket)
	mux.HandleFunc("GET /page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, page) // the browser says what it saw
	})
	var mu sync.Mutex
	results := map[string]string{} // guarded by mu
	mux.HandleFunc("/result/{box}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body) // what is missing is missed below
			results[r.PathValue("box")] = string(body)
		}
		if results[r.PathValue("box")] == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, results[r.PathValue("box")])
	})
	return mux
}

// page loads over h2, opens a WebSocket and an event stream, and reports.
const page = `<!doctype html><title>page</title><script>
const saw = [performance.getEntriesByType("navigation")[0].nextHopProtocol];
const events = () => new Promise((ok, no) => {
  const e = new EventSource("/events");
  let n = 0;
  e.onmessage = m => { if (++n == 3) { e.close(); ok(m.data) } };
  e.onerror = () => no("events");
});
const socket = () => new Promise((ok, no) => {
  const s = new WebSocket("wss://" + location.host + "/ws");
  s.onopen = () => s.send("ping");
  s.onmessage = m => { s.close(); ok("socket " + m.data) };
  s.onerror = () => no("socket");
});
(async () => {
  try { saw.push(await events(), await socket()) } catch (e) { saw.push("failed: " + e) }
  await fetch("/result/" + location.hash.slice(1), {method: "POST", body: saw.join(", ")});
})();
</script>`

// socket is a WebSocket that echoes one short text message at a time.
func socket(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "websocket over HTTP/1.1 only", http.StatusBadRequest)
		return
	}
	defer conn.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	for rw.Flush() == nil {
		op, data, err := frame(rw.Reader)
		if err != nil {
			return
		}
		_, _ = rw.Write(append([]byte{0x80 | op, byte(len(data))}, data...)) // Flush tells
		if op == 8 {
			_ = rw.Flush()
			return
		}
	}
}

// frame reads a masked frame of at most 125 bytes.
func frame(r *bufio.Reader) (op byte, data []byte, err error) {
	var head [6]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(head[1] & 0x7f)
	if n > 125 || head[1]&0x80 == 0 {
		return 0, nil, fmt.Errorf("a frame of length %d", n)
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, nil, err
	}
	for i := range data {
		data[i] ^= head[2+i%4]
	}
	return head[0] & 0xf, data, nil
}

// grpc is the site grpc.test: /echo.Echo/Unary and /echo.Echo/Stream send back
// every message that they get, as soon as they get it.
func grpc() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			http.Error(w, "gRPC is HTTP/2", http.StatusHTTPVersionNotSupported)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		status := "0"
		for {
			var head [5]byte
			if _, err := io.ReadFull(r.Body, head[:]); err == io.EOF {
				break
			} else if err != nil {
				status = "13"
				break
			}
			msg := make([]byte, binary.BigEndian.Uint32(head[1:]))
			if _, err := io.ReadFull(r.Body, msg); err != nil {
				status = "13"
				break
			}
			_, _ = w.Write(append(head[:], msg...)) // the client counts
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Grpc-Status", status)
		w.Header().Set("Grpc-Message", "echoed")
	})
}
