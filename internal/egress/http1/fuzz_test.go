package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func seedRequests(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"POST /x?y=%2F HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET http://a.test/ HTTP/1.1\r\nhost: a.test\r\nConnection: close, x\r\nX: y\r\nTE: trailers\r\nUpgrade: websocket\r\n\r\n",
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"\r\nOPTIONS * HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nA:\r\nB: \t x \t\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
}

// FuzzRequest holds a request to three oracles: how the bytes arrive changes nothing; what we write of it is read back as the
// same; and net/http, where it takes the message at all, sees the same message in the same bytes.
func FuzzRequest(f *testing.F) {
	seedRequests(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		type result struct {
			Req     *Request
			Body    []byte
			Trailer Header
			Rest    []byte
			Err     string
		}
		read := func(br *bufio.Reader) (res result) {
			req, err := ReadRequest(br, Limits{})
			if err != nil {
				return result{Err: err.Error()}
			}
			b := NewBody(br, req.Length, Limits{})
			data, err := io.ReadAll(b)
			res = result{Req: req, Body: data, Trailer: b.Trailer()}
			if err != nil {
				res.Err = err.Error()
				return res
			}
			res.Rest, _ = io.ReadAll(br)
			return res
		}
		got := read(bufio.NewReader(bytes.NewReader(in)))
		if slow := read(bufio.NewReader(oneByte{bytes.NewReader(in)})); (got.Err == "") != (slow.Err == "") || got.Err == "" && !cmp.Equal(got, slow) {
			t.Fatalf("arriving byte by byte: %s", cmp.Diff(got, slow))
		}
		if got.Req == nil {
			return
		}
		checkRequest(t, got.Req)
		if got.Err != "" {
			return // the body is broken or cut
		}

		// Write and read back, as a proxy does, between the stripping of its two sides.
		sent := *got.Req
		sent.Header = StripHop(got.Req.Header.Clone(), true)
		var wire bytes.Buffer
		w := bufio.NewWriter(&wire)
		if err := sent.WriteHead(w); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := CopyBody(w, bodyOf(got.Body, got.Trailer, got.Req.Length), got.Req.Length == Chunked, nil); err != nil {
			t.Fatal(err)
		}
		wire.WriteString("NEXT")
		back := read(bufio.NewReader(bytes.NewReader(wire.Bytes())))
		if back.Req == nil || back.Err != "" || string(back.Rest) != "NEXT" || !bytes.Equal(back.Body, got.Body) || !cmp.Equal(back.Trailer, got.Trailer) {
			t.Fatalf("read back: %+v of %q", back, wire.String())
		}
		back.Req.Header = StripHop(back.Req.Header, true)
		want := sent
		if want.Header.Get("Content-Length") == "" && slices.Contains([]string{"POST", "PUT", "PATCH"}, want.Method) && want.Length == 0 {
			want.Header.Add("Content-Length", "0")
		}
		for i := range want.Header { // governed by Length: leading zeros go
			if fold(want.Header[i].Name, "Content-Length") {
				want.Header[i].Value = back.Req.Header.Get("Content-Length")
			}
		}
		if !want.Header.Has("Host") {
			want.Header = append(Header{{"Host", ""}}, want.Header...)
		}
		want.Minor, want.Expect100 = 1, back.Req.Expect100
		want.Upgrade = back.Req.Upgrade
		if d := cmp.Diff(&want, back.Req); d != "" {
			t.Fatalf("read back from %q: %s", wire.String(), d)
		}

		// net/http is more lenient, so that it must take what we took. Where it does not, nothing is at stake: we refuse less
		// than it in targets that it wants to be URLs.
		br := bufio.NewReader(bytes.NewReader(in))
		std, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		agree(t, got.Req.Header, std.Header)
		if std.Method != got.Req.Method || std.RequestURI != got.Req.Target || std.ProtoMinor != got.Req.Minor || got.Req.Length != std.ContentLength {
			t.Fatalf("net/http reads %s %s %d, length %d: %+v", std.Method, std.RequestURI, std.ProtoMinor, std.ContentLength, got.Req)
		}
		body, err := io.ReadAll(std.Body)
		if err != nil || !bytes.Equal(body, got.Body) {
			t.Fatalf("net/http reads body %q (%v), we %q", body, err, got.Body)
		}
		if rest, _ := io.ReadAll(br); !bytes.Equal(rest, got.Rest) {
			t.Fatalf("net/http leaves %q, we %q: one of us is smuggled to", rest, got.Rest)
		}
	})
}

func checkRequest(t *testing.T, r *Request) {
	t.Helper()
	for _, s := range []string{r.Method, r.Target, r.Host} {
		if strings.ContainsAny(s, "\r\n\x00") {
			t.Fatalf("%+v", r)
		}
	}
	if strings.ContainsAny(r.Target+r.Method, " \t") {
		t.Fatalf("%+v", r)
	}
	for _, f := range r.Header {
		if strings.ContainsAny(f.Name+f.Value, "\r\n\x00") || strings.ContainsAny(f.Name, " \t:") || f.Value != strings.Trim(f.Value, " \t") {
			t.Fatalf("%+v", f)
		}
	}
	if n := len(r.Header.Values("Host")); n > 1 || n == 0 && r.Minor > 0 {
		t.Fatalf("%d Host", n)
	}
	if len(r.Header.Values("Content-Length"))+len(r.Header.Values("Transfer-Encoding")) > 1 {
		t.Fatal("framed twice")
	}
}

// agree compares fields with net/http's, which takes some away that frame the message.
func agree(t *testing.T, h Header, std http.Header) {
	t.Helper()
	ours := http.Header{}
	for _, f := range h {
		ours[textproto.CanonicalMIMEHeaderKey(f.Name)] = append(ours[textproto.CanonicalMIMEHeaderKey(f.Name)], f.Value)
	}
	for _, name := range []string{"Host", "Transfer-Encoding", "Trailer", "Content-Length", "Pragma", "Cache-Control"} {
		delete(ours, name)
		delete(std, name)
	}
	if d := cmp.Diff(map[string][]string(ours), map[string][]string(std)); d != "" {
		t.Fatalf("net/http has other fields: %s", d)
	}
}

// bodyOf makes a body of what was read, to be sent again.
func bodyOf(data []byte, trailer Header, length int64) *Body {
	if length != Chunked {
		return NewBody(bufio.NewReader(bytes.NewReader(data)), int64(len(data)), Limits{})
	}
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	_ = WriteChunk(w, data) // to memory
	_ = EndChunks(w, trailer)
	_ = w.Flush()
	return NewBody(bufio.NewReader(&out), Chunked, Limits{})
}

// FuzzResponse is FuzzRequest for the other direction.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\nNEXT",
		"HTTP/1.1 200 OK\r\n\r\nuntil close",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, isHead bool) {
		method := http.MethodGet
		if isHead {
			method = http.MethodHead
		}
		read := func(br *bufio.Reader) (r *Response, body []byte, trailer Header, rest []byte, err error) {
			r, err = ReadResponse(br, method, Limits{})
			if err != nil {
				return nil, nil, nil, nil, err
			}
			b := NewBody(br, r.Length, Limits{})
			body, err = io.ReadAll(b)
			if err == nil {
				rest, _ = io.ReadAll(br)
			}
			return r, body, b.Trailer(), rest, err
		}
		r, body, trailer, rest, err := read(bufio.NewReader(bytes.NewReader(in)))
		slow, slowBody, _, slowRest, slowErr := read(bufio.NewReader(oneByte{bytes.NewReader(in)}))
		if !cmp.Equal(r, slow) || !bytes.Equal(body, slowBody) || !bytes.Equal(rest, slowRest) || (err == nil) != (slowErr == nil) {
			t.Fatalf("arriving byte by byte: %s %v %v", cmp.Diff(r, slow), err, slowErr)
		}
		if r == nil || err != nil {
			return // refused, or its body is broken or cut
		}
		sent := *r
		sent.Header = StripHop(r.Header.Clone(), true)
		var wire bytes.Buffer
		w := bufio.NewWriter(&wire)
		if err := sent.WriteHead(w); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := CopyBody(w, bodyOf(body, trailer, r.Length), r.Length == Chunked, nil); err != nil {
			t.Fatal(err)
		}
		if r.Length != UntilClose {
			wire.WriteString("NEXT")
		}
		back, backBody, backTrailer, backRest, backErr := read(bufio.NewReader(bytes.NewReader(wire.Bytes())))
		if backErr != nil || !bytes.Equal(backBody, body) || !cmp.Equal(backTrailer, trailer) || r.Length != UntilClose && string(backRest) != "NEXT" {
			t.Fatalf("read back: %+v %q %v %v of %q", back, backBody, backTrailer, backErr, wire.String())
		}
		if back.Status != r.Status || back.Text != r.Text || back.Length != r.Length || back.NoBody != r.NoBody {
			t.Fatalf("read back %+v, sent %+v", back, r)
		}
		back.Header, sent.Header = StripHop(back.Header, true), StripHop(sent.Header, true)
		back.Header.Del("Content-Length")
		sent.Header.Del("Content-Length")
		if d := cmp.Diff(sent.Header, back.Header); d != "" && len(sent.Header)+len(back.Header) > 0 {
			t.Fatal(d)
		}

		br := bufio.NewReader(bytes.NewReader(in))
		std, serr := http.ReadResponse(br, &http.Request{Method: method})
		if serr != nil {
			return
		}
		defer std.Body.Close()
		if std.StatusCode != r.Status || std.ProtoMinor != r.Minor {
			t.Fatalf("net/http reads %s: %+v", std.Status, r)
		}
		agree(t, r.Header, std.Header)
		if r.Status < 200 { // net/http's client leaves interim ones to its transport
			return
		}
		stdBody, serr := io.ReadAll(std.Body)
		if serr != nil || !bytes.Equal(stdBody, body) {
			t.Fatalf("net/http reads body %q (%v), we %q", stdBody, serr, body)
		}
		if stdRest, _ := io.ReadAll(br); !bytes.Equal(stdRest, rest) {
			t.Fatalf("net/http leaves %q, we %q", stdRest, rest)
		}
	})
}

// FuzzChunks holds chunk framing to net/http's decoder: whatever we take to its end, it takes too, with the same content.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0;c\r\nX: y\r\n\r\nNEXT", "00a;x\r\n0123456789\r\n0\r\n\r\n", "5\nhello\n0\n\n", "5 \r\nhello\r\n0\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		b := NewBody(bufio.NewReader(bytes.NewReader(in)), Chunked, Limits{})
		got, err := io.ReadAll(b)
		for _, way := range bodyReaders {
			other := NewBody(bufio.NewReader(oneByte{bytes.NewReader(in)}), Chunked, Limits{})
			data, oerr := way.read(other)
			if !bytes.Equal(data, got) || (oerr == nil) != (err == nil) {
				t.Fatalf("%s: %q %v, want %q %v", way.name, data, oerr, got, err)
			}
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			return
		}
		head := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
		std, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head), bytes.NewReader(in))))
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(std.Body)
		if err != nil || !bytes.Equal(data, got) {
			t.Fatalf("net/http reads %q (%v), we %q", data, err, got)
		}
	})
}
