package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

const benchRequest = "GET /api/v1/items?page=2&sort=name HTTP/1.1\r\nHost: api.example.test\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\r\n" +
	"Accept: application/json, text/plain, */*\r\nAccept-Encoding: gzip, deflate, br\r\nAccept-Language: en-GB,en;q=0.9\r\nAuthorization: Bearer 0123456789abcdef0123456789abcdef\r\n" +
	"Cookie: session=0123456789abcdef; theme=dark\r\nConnection: keep-alive\r\nCache-Control: no-cache\r\n\r\n"

const benchResponse = "HTTP/1.1 200 OK\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 1024\r\nServer: origin\r\n" +
	"Cache-Control: private, max-age=0\r\nETag: \"0123456789abcdef\"\r\nVary: Accept-Encoding\r\nX-Request-Id: 0123456789abcdef\r\nConnection: keep-alive\r\n\r\n"

// loop gives the same bytes without end.
type loop struct {
	s string
	i int
}

func (l *loop) Read(p []byte) (int, error) {
	n := copy(p, l.s[l.i:])
	l.i = (l.i + n) % len(l.s)
	return n, nil
}

// BenchmarkExchange is what a proxy does with one request and its answer of 1 KiB, but for the sockets.
func BenchmarkExchange(b *testing.B) {
	clientIn := bufio.NewReader(&loop{s: benchRequest})
	serverIn := bufio.NewReader(&loop{s: benchResponse + strings.Repeat("x", 1024)})
	clientOut, serverOut := bufio.NewWriter(io.Discard), bufio.NewWriter(io.Discard)
	var req Request
	var resp Response
	var body Body
	b.ReportAllocs()
	for b.Loop() {
		if err := req.Read(clientIn, Limits{}); err != nil {
			b.Fatal(err)
		}
		req.Header = StripHop(req.Header, false)
		if err := req.WriteHead(serverOut); err != nil {
			b.Fatal(err)
		}
		if err := serverOut.Flush(); err != nil {
			b.Fatal(err)
		}
		if err := resp.Read(serverIn, req.Method, Limits{}); err != nil {
			b.Fatal(err)
		}
		resp.Header = StripHop(resp.Header, false)
		if err := resp.WriteHead(clientOut); err != nil {
			b.Fatal(err)
		}
		body.Reset(serverIn, resp.Length, Limits{})
		if _, err := CopyBody(clientOut, &body, false, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExchangeStd is the same with net/http's readers and writers.
func BenchmarkExchangeStd(b *testing.B) {
	clientIn := bufio.NewReader(&loop{s: benchRequest})
	serverIn := bufio.NewReader(&loop{s: benchResponse + strings.Repeat("x", 1024)})
	clientOut, serverOut := bufio.NewWriter(io.Discard), bufio.NewWriter(io.Discard)
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.ReadRequest(clientIn)
		if err != nil {
			b.Fatal(err)
		}
		if err := req.Write(serverOut); err != nil {
			b.Fatal(err)
		}
		if err := serverOut.Flush(); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(serverIn, req)
		if err != nil {
			b.Fatal(err)
		}
		if err := resp.Write(clientOut); err != nil {
			b.Fatal(err)
		}
		if err := clientOut.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadRequest(b *testing.B) {
	br := bufio.NewReader(&loop{s: benchRequest})
	var r Request
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Read(br, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWriteRequest(b *testing.B) {
	r, err := ReadRequest(bufio.NewReader(strings.NewReader(benchRequest)), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriter(io.Discard)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.WriteHead(w); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopyChunked(b *testing.B) {
	for _, size := range []int{100, 4096, 16384} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			chunk := strconv.FormatInt(int64(size), 16) + "\r\n" + strings.Repeat("x", size) + "\r\n"
			one := []byte(strings.Repeat(chunk, 1<<20/size) + "0\r\n\r\n")
			var body Body
			w := bufio.NewWriter(io.Discard)
			in := bytes.NewReader(one)
			br := bufio.NewReader(in)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				in.Reset(one)
				br.Reset(in)
				body.Reset(br, Chunked, Limits{})
				if _, err := CopyBody(w, &body, true, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The hot path stays within its allocations: a head's text, and nothing per field.
func TestAllocations(t *testing.T) {
	br := bufio.NewReader(&loop{s: benchRequest})
	w := bufio.NewWriter(io.Discard)
	var r Request
	if n := testing.AllocsPerRun(100, func() {
		if err := r.Read(br, Limits{}); err != nil {
			t.Fatal(err)
		}
		r.Header = StripHop(r.Header, false)
		if err := r.WriteHead(w); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations a request, want 1", n)
	}
	in := strings.NewReader("")
	br = bufio.NewReader(in)
	var body Body
	if n := testing.AllocsPerRun(100, func() {
		in.Reset("5\r\nhello\r\n0\r\n\r\n")
		br.Reset(in)
		body.Reset(br, Chunked, Limits{})
		if _, err := CopyBody(w, &body, true, nil); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations a chunked body, want 1", n)
	}
}
