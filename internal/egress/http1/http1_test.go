package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func reader(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }

// head turns a head written with \n, as rows are easier to read so, into one with CRLF.
func head(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func TestReadRequest(t *testing.T) {
	const g = "GET / HTTP/1.1\nHost: a.test\n"
	rows := []struct {
		name, in string
		want     Request
	}{
		{"least", "GET / HTTP/1.1\nHost: a.test\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test"}},
		{"one empty line before", "\nGET / HTTP/1.1\nHost: a.test\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test"}},
		{"raw target", "GET /@scope%2Fname//x;y+z?a=b%20&q=\\|{}\xc3\xa4 HTTP/1.1\nHost: a.test\n\n", Request{Method: "GET", Target: "/@scope%2Fname//x;y+z?a=b%20&q=\\|{}\xc3\xa4", Minor: 1, Host: "a.test"}},
		{"absolute", "GET http://a.test/x HTTP/1.1\nHost: a.test\n\n", Request{Method: "GET", Target: "http://a.test/x", Minor: 1, Host: "a.test"}},
		{"connect", "CONNECT a.test:443 HTTP/1.1\nHost: a.test:443\n\n", Request{Method: "CONNECT", Target: "a.test:443", Minor: 1, Host: "a.test:443"}},
		{"options", "OPTIONS * HTTP/1.1\nHost: a.test\n\n", Request{Method: "OPTIONS", Target: "*", Minor: 1, Host: "a.test"}},
		{"length", g + "Content-Length: 12\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test", Length: 12}},
		{"chunked", g + "Transfer-Encoding: Chunked\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test", Length: Chunked}},
		{"close", g + "Connection: x, CLOSE\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test", Close: true}},
		{"1.0 is closed, keep-alive or not", "GET / HTTP/1.0\nConnection: keep-alive\n\n", Request{Method: "GET", Target: "/", Close: true}},
		{"expect", g + "Expect: 100-Continue\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test", Expect100: true}},
		{"another expectation", g + "Expect: tea\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test"}},
		{"upgrade", g + "Connection: keep-alive, Upgrade\nUpgrade: websocket\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test", Upgrade: "websocket"}},
		{"upgrade that Connection does not name", g + "Upgrade: websocket\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test"}},
		{"two upgrades", g + "Connection: upgrade\nUpgrade: websocket\nUpgrade: h2c\n\n", Request{Method: "GET", Target: "/", Minor: 1, Host: "a.test", Upgrade: "websocket, h2c"}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, how := range readings {
				br := how.reader(head(row.in) + "NEXT")
				got, err := ReadRequest(br, Limits{})
				if err != nil {
					t.Fatalf("%s: %v", how.name, err)
				}
				got.Header = nil
				if d := cmp.Diff(&row.want, got); d != "" {
					t.Errorf("%s: %s", how.name, d)
				}
				if rest, _ := io.ReadAll(br); string(rest) != "NEXT" {
					t.Errorf("%s: what follows is %q", how.name, rest)
				}
			}
		})
	}
}

// readings are ways for the same bytes to arrive: none may change what is read.
var readings = []struct {
	name   string
	reader func(string) *bufio.Reader
}{
	{"at once", reader},
	{"byte by byte", func(s string) *bufio.Reader { return bufio.NewReader(oneByte{strings.NewReader(s)}) }},
	{"small buffer", func(s string) *bufio.Reader { return bufio.NewReaderSize(strings.NewReader(s), 16) }},
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// What is no request is refused at its first line, though its sender waits for an answer before it says more.
func TestNoRequestIsNotWaitedFor(t *testing.T) {
	const more = "asked for more"
	for in, want := range map[string]int{
		"SSH-2.0-OpenSSH_9.2\r\n":          400,
		"GET key\r\n":                      400,
		"EHLO there friend\r\n":            400,
		"\r\nhello\r\n":                    400,
		"GET / HTTP/2.0\r\n":               505,
		"GET / HTTP/1.1\r\n":               0, // control
		"GET / HTTP/1.1\r\nHost: a.test\r": 0,
	} {
		_, err := ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(in), iotest.ErrReader(errors.New(more)))), Limits{})
		e, bad := errors.AsType[*Error](err)
		switch {
		case bad && e.Status != want, !bad && want != 0:
			t.Errorf("%q: %v, want %d", in, err, want)
		case !bad && (err == nil || !strings.Contains(err.Error(), more)):
			t.Errorf("%q: %v, want to be asked for more", in, err)
		}
	}
}

func TestRequestRefused(t *testing.T) {
	const g = "GET / HTTP/1.1\r\nHost: a.test\r\n"
	const p = "POST / HTTP/1.1\r\nHost: a.test\r\n"
	rows := []struct {
		attack, in string
		status     int
	}{
		{"CL and TE", p + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"TE and CL", p + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", 400},
		{"two CL", p + "Content-Length: 0\r\nContent-Length: 40\r\n\r\n", 400},
		{"two equal CL", p + "Content-Length: 4\r\nContent-Length: 4\r\n\r\n", 400},
		{"CL list", p + "Content-Length: 4, 4\r\n\r\n", 400},
		{"CL sign", p + "Content-Length: +4\r\n\r\n", 400},
		{"CL negative", p + "Content-Length: -4\r\n\r\n", 400},
		{"CL hex", p + "Content-Length: 0x4\r\n\r\n", 400},
		{"CL empty", p + "Content-Length:\r\n\r\n", 400},
		{"CL with a space", p + "Content-Length: 1 2\r\n\r\n", 400},
		{"CL underscore", p + "Content-Length: 1_2\r\n\r\n", 400},
		{"CL overflow", p + "Content-Length: 9223372036854775808\r\n\r\n", 400},
		{"CL wraps to 4", p + "Content-Length: 18446744073709551620\r\n\r\n", 400},
		{"TE unknown", p + "Transfer-Encoding: xchunked\r\n\r\n", 501},
		{"TE not last", p + "Transfer-Encoding: chunked, identity\r\n\r\n", 501},
		{"TE identity", p + "Transfer-Encoding: identity\r\n\r\n", 501},
		{"TE twice in one", p + "Transfer-Encoding: chunked, chunked\r\n\r\n", 501},
		{"TE quoted", p + "Transfer-Encoding: \"chunked\"\r\n\r\n", 501},
		{"TE parameter", p + "Transfer-Encoding: chunked;a=b\r\n\r\n", 501},
		{"TE empty", p + "Transfer-Encoding:\r\n\r\n", 501},
		{"two TE", p + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 400},
		{"TE hidden by a vertical tab", p + "Transfer-Encoding: \vchunked\r\n\r\n", 400},
		{"TE with 1.0", "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"TE name with a space", p + "Transfer-Encoding : chunked\r\n\r\n", 400},
		{"TE name with a NUL", p + "Transfer-Encoding\x00: chunked\r\n\r\n", 400},
		{"TE name in obs-fold", p + "X: y\r\n Transfer-Encoding: chunked\r\n\r\n", 400},
		{"obs-fold", g + " X: folded\r\n\r\n", 400},
		{"obs-fold by tab", g + "X: a\r\n\tb\r\n\r\n", 400},
		{"fold before the first field", "GET / HTTP/1.1\r\n Host: a.test\r\n\r\n", 400},
		{"space before colon", "GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", 400},
		{"tab before colon", "GET / HTTP/1.1\r\nHost\t: a.test\r\n\r\n", 400},
		{"two Host", g + "Host: evil8.test\r\n\r\n", 400},
		{"two equal Host", g + "host: a.test\r\n\r\n", 400},
		{"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
		{"field without colon", g + "X\r\n\r\n", 400},
		{"field without name", g + ": x\r\n\r\n", 400},
		{"bad name", g + "X(y): z\r\n\r\n", 400},
		{"name beyond ASCII", g + "\xc3\xa4: z\r\n\r\n", 400},
		{"bare LF", "GET / HTTP/1.1\nHost: a.test\n\n", 400},
		{"bare LF after one field", g + "X: y\nA: b\r\n\r\n", 400},
		{"bare LF as the end", g + "\n\r\n\r\n", 400},
		{"bare CR in a value", g + "X: a\rTransfer-Encoding: chunked\r\n\r\n", 400},
		{"bare CR before CRLF", g + "X: a\r\r\n\r\n", 400},
		{"bare CR as line end", "GET / HTTP/1.1\rHost: a.test\r\r\n\r\n", 400},
		{"NUL in a value", g + "X: a\x00b\r\n\r\n", 400},
		{"escape in a value", g + "User-Agent: \x1b[31m\r\n\r\n", 400},
		{"DEL in a value", g + "X: \x7f\r\n\r\n", 400},
		{"method with a colon", "GE:T / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"no method", " / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"no target", "GET HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"empty target", "GET  HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"two spaces", "GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"space in the target", "GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"space after the version", "GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n", 400},
		{"tab in the target", "GET /\tb HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"NUL in the target", "GET /\x00b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"CR in the target", "GET /\rb HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"fragment", "GET /pub#/../x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"relative target", "GET a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"* with GET", "GET * HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"CONNECT with a path", "CONNECT /x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"CONNECT with a URI", "CONNECT https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"HTTP/0.9", "GET /\r\n\r\n", 400},
		{"lower-case version", "GET / http/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"HTTP/1.10", "GET / HTTP/1.10\r\nHost: a.test\r\n\r\n", 400},
		{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a.test\r\n\r\n", 505},
		{"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\n", 505},
		{"two empty lines before", "\r\n\r\n" + g + "\r\n", 400},
		{"CR before", "\rGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"LF before", "\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
		{"TLS", "\x16\x03\x01\x02\x00\x01", 400},
		{"large head", g + "X: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", 431},
		{"large head without end", g + "X: " + strings.Repeat("a", 80<<10), 431},
		{"many fields", g + strings.Repeat("a: b\r\n", 101) + "\r\n", 431},
	}
	for _, row := range rows {
		t.Run(row.attack, func(t *testing.T) {
			for _, how := range readings {
				_, err := ReadRequest(how.reader(row.in), Limits{})
				var e *Error
				if !errors.As(err, &e) || e.Status != row.status {
					t.Errorf("%s: %v, want status %d", how.name, err, row.status)
				}
			}
		})
	}
	if _, err := ReadRequest(reader(g+strings.Repeat("a: b\r\n", 99)+"\r\n"), Limits{}); err != nil {
		t.Errorf("control: 100 fields: %v", err)
	}
}

func TestReadEnds(t *testing.T) {
	for in, want := range map[string]error{
		"":                              io.EOF,
		"\r\n":                          io.EOF,
		"G":                             io.ErrUnexpectedEOF,
		"GET / HTTP/1.1\r\nHost: a.te":  io.ErrUnexpectedEOF,
		"GET / HTTP/1.1\r\nHost: a\r\n": io.ErrUnexpectedEOF,
	} {
		if _, err := ReadRequest(reader(in), Limits{}); err != want { //nolint:errorlint // exactly these
			t.Errorf("%q: %v, want %v", in, err, want)
		}
	}
}

func TestReadResponse(t *testing.T) {
	rows := []struct {
		name, method, in string
		want             Response
	}{
		{"length", "GET", "HTTP/1.1 200 OK\nContent-Length: 3\n\n", Response{Minor: 1, Status: 200, Text: "OK", Length: 3}},
		{"no reason, no space", "GET", "HTTP/1.1 200\nContent-Length: 3\n\n", Response{Minor: 1, Status: 200, Length: 3}},
		{"no reason", "GET", "HTTP/1.1 200 \nContent-Length: 0\n\n", Response{Minor: 1, Status: 200}},
		{"long reason", "GET", "HTTP/1.1 404 Not  \xe9 Found\nContent-Length: 0\n\n", Response{Minor: 1, Status: 404, Text: "Not  \xe9 Found"}},
		{"chunked", "GET", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", Response{Minor: 1, Status: 200, Text: "OK", Length: Chunked}},
		{"until close", "GET", "HTTP/1.1 200 OK\n\n", Response{Minor: 1, Status: 200, Text: "OK", Length: UntilClose, Close: true}},
		{"close", "GET", "HTTP/1.1 200 OK\nConnection: close\nContent-Length: 1\n\n", Response{Minor: 1, Status: 200, Text: "OK", Length: 1, Close: true}},
		{"1.0", "GET", "HTTP/1.0 200 OK\nContent-Length: 1\n\n", Response{Status: 200, Text: "OK", Length: 1, Close: true}},
		{"1.0 kept alive", "GET", "HTTP/1.0 200 OK\nConnection: Keep-Alive\nContent-Length: 1\n\n", Response{Status: 200, Text: "OK", Length: 1}},
		{"equal lengths", "GET", "HTTP/1.1 200 OK\nContent-Length: 3\nContent-Length: 3\n\n", Response{Minor: 1, Status: 200, Text: "OK", Length: 3}},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\nContent-Length: 3\n\n", Response{Minor: 1, Status: 200, Text: "OK", NoBody: true}},
		{"HEAD, chunked", "HEAD", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", Response{Minor: 1, Status: 200, Text: "OK", NoBody: true}},
		{"HEAD, nothing", "HEAD", "HTTP/1.1 200 OK\n\n", Response{Minor: 1, Status: 200, Text: "OK", NoBody: true}},
		{"204", "GET", "HTTP/1.1 204 No Content\n\n", Response{Minor: 1, Status: 204, Text: "No Content", NoBody: true}},
		{"204 with length 0", "GET", "HTTP/1.1 204 x\nContent-Length: 0\n\n", Response{Minor: 1, Status: 204, Text: "x", NoBody: true}},
		{"204 that lies", "GET", "HTTP/1.1 204 x\nContent-Length: 9\n\n", Response{Minor: 1, Status: 204, Text: "x", NoBody: true, Close: true}},
		{"304", "GET", "HTTP/1.1 304 x\nContent-Length: 9\n\n", Response{Minor: 1, Status: 304, Text: "x", NoBody: true}},
		{"100", "POST", "HTTP/1.1 100 Continue\n\n", Response{Minor: 1, Status: 100, Text: "Continue", NoBody: true}},
		{"103", "GET", "HTTP/1.1 103 Early Hints\nLink: </x>\n\n", Response{Minor: 1, Status: 103, Text: "Early Hints", NoBody: true}},
		{"101", "GET", "HTTP/1.1 101 x\nConnection: upgrade\nUpgrade: websocket\n\n", Response{Minor: 1, Status: 101, Text: "x", NoBody: true, Upgrade: "websocket"}},
		{"999", "GET", "HTTP/1.1 999 x\nContent-Length: 0\n\n", Response{Minor: 1, Status: 999, Text: "x"}},
		{"CONNECT", "CONNECT", "HTTP/1.1 200 x\n\n", Response{Minor: 1, Status: 200, Text: "x", NoBody: true}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, how := range readings {
				br := how.reader(head(row.in) + "BODY")
				got, err := ReadResponse(br, row.method, Limits{})
				if err != nil {
					t.Fatalf("%s: %v", how.name, err)
				}
				got.Header = nil
				if d := cmp.Diff(&row.want, got); d != "" {
					t.Errorf("%s: %s", how.name, d)
				}
				if rest, _ := io.ReadAll(br); string(rest) != "BODY" {
					t.Errorf("%s: what follows is %q", how.name, rest)
				}
			}
		})
	}
}

func TestResponseRefused(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for attack, in := range map[string]string{
		"CL and TE":             ok + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
		"two CL":                ok + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
		"CL list":               ok + "Content-Length: 4, 4\r\n\r\n",
		"CL not a number":       ok + "Content-Length: 4a\r\n\r\n",
		"TE unknown":            ok + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"TE with 1.0":           "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"obs-fold":              ok + "X: a\r\n b\r\n\r\n",
		"space before colon":    ok + "Content-Length : 4\r\n\r\n",
		"bare LF":               "HTTP/1.1 200 OK\nContent-Length: 4\n\n",
		"CR in the reason":      "HTTP/1.1 200 O\rK\r\n\r\n",
		"escape in the reason":  "HTTP/1.1 200 \x1b[2J\r\n\r\n",
		"escape in a value":     ok + "X: \x1b[2J\r\n\r\n",
		"not a status":          "HTTP/1.1 2x0 OK\r\n\r\n",
		"a status of 2 digits":  "HTTP/1.1 20 OK\r\n\r\n",
		"a status of 4 digits":  "HTTP/1.1 2000 OK\r\n\r\n",
		"status 099":            "HTTP/1.1 099 OK\r\n\r\n",
		"HTTP/2":                "HTTP/2.0 200 OK\r\n\r\n",
		"an empty line before":  "\r\n" + ok + "\r\n",
		"SSH":                   "SSH-2.0-x\r\n\r\n",
		"100 with a body":       "HTTP/1.1 100 x\r\nContent-Length: 4\r\n\r\n",
		"101 with chunks":       "HTTP/1.1 101 x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"a head without an end": ok + strings.Repeat("a", 80<<10),
	} {
		for _, how := range readings {
			_, err := ReadResponse(how.reader(in), "GET", Limits{})
			var e *Error
			if !errors.As(err, &e) || e.Status != 502 {
				t.Errorf("%s, %s: %v, want status 502", attack, how.name, err)
			}
		}
	}
	if _, err := ReadResponse(reader(ok+"Content-Length: 4\r\n\r\n"), "GET", Limits{}); err != nil {
		t.Errorf("control: %v", err)
	}
}

func TestStripHop(t *testing.T) {
	in := Header{
		{"Host", "a.test"}, {"Connection", "close, X-Mine, host, Content-Length"}, {"x-mine", "1"}, {"X-Other", "2"}, {"Keep-Alive", "9"},
		{"Proxy-Connection", "x"}, {"Proxy-Authorization", "Basic x"}, {"Proxy-Authenticate", "Basic"}, {"TE", "gzip, Trailers;q=0.5"},
		{"TE", "trailers"}, {"Transfer-Encoding", "chunked"}, {"Upgrade", "websocket"}, {"HTTP2-Settings", "x"}, {"Content-Length", "4"},
		{"Connection", "x-late"}, {"X-Late", "3"}, {"Trailer", "X-Sum"}, {"Authorization", "Bearer x"},
	}
	end := Header{{"Host", "a.test"}, {"X-Other", "2"}, {"TE", "trailers"}, {"Content-Length", "4"}, {"Trailer", "X-Sum"}, {"Authorization", "Bearer x"}}
	if d := cmp.Diff(end, StripHop(in.Clone(), false)); d != "" {
		t.Error(d)
	}
	end = append(end[:3:3], append(Header{{"Upgrade", "websocket"}}, end[3:]...)...)
	if d := cmp.Diff(end, StripHop(in.Clone(), true)); d != "" {
		t.Error(d)
	}
	many := Header{{"Connection", "a,b,c,d,e,f,g,h,i,j,k,l"}, {"L", "x"}, {"M", "y"}}
	if d := cmp.Diff(Header{{"M", "y"}}, StripHop(many, false)); d != "" {
		t.Error(d)
	}
}

func TestHeader(t *testing.T) {
	h := Header{{"A", "1"}, {"b", "2"}, {"a", "3"}}
	h.Set("A", "4")
	h.Add("C", "5")
	h.Del("B")
	h.Set("D", "6")
	if d := cmp.Diff(Header{{"A", "4"}, {"C", "5"}, {"D", "6"}}, h); d != "" {
		t.Error(d)
	}
	if h.Get("d") != "6" || !h.Has("c") || h.Has("b") || len(h.Values("a")) != 1 || h.Get("nix") != "" {
		t.Errorf("%v", h)
	}
}

func TestWriteHead(t *testing.T) {
	rows := []struct {
		name string
		head interface{ WriteHead(*bufio.Writer) error }
		want string
	}{
		{"order and case stay", &Request{Method: "POST", Target: "/%2F//", Host: "a.test", Length: 5, Header: Header{{"accept", "*/*"}, {"HOST", "x"}, {"content-length", "9"}, {"X", "1"}}},
			"POST /%2F// HTTP/1.1\naccept: */*\nHOST: a.test\ncontent-length: 5\nX: 1\n\n"},
		{"Host first", &Request{Method: "GET", Target: "/", Host: "a.test", Header: Header{{"X", "1"}}}, "GET / HTTP/1.1\nHost: a.test\nX: 1\n\n"},
		{"chunked alone", &Request{Method: "POST", Target: "/", Host: "a", Length: Chunked, Header: Header{{"Content-Length", "9"}, {"Transfer-Encoding", "gzip"}}},
			"POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n"},
		{"empty POST", &Request{Method: "POST", Target: "/", Host: "a"}, "POST / HTTP/1.1\nHost: a\nContent-Length: 0\n\n"},
		{"one length", &Request{Method: "GET", Target: "/", Host: "a", Length: 1, Header: Header{{"Content-Length", "1"}, {"Content-Length", "2"}, {"host", "b"}, {"host", "c"}}},
			"GET / HTTP/1.1\nContent-Length: 1\nhost: a\n\n"},
		{"our Connection", &Request{Method: "GET", Target: "/", Host: "a", Close: true, Header: Header{{"Connection", "x"}, {"TE", "trailers"}, {"Upgrade", "websocket"}}},
			"GET / HTTP/1.1\nHost: a\nTE: trailers\nUpgrade: websocket\nConnection: Upgrade, TE, close\n\n"},
		{"response", &Response{Status: 200, Text: "OK", Length: 3, Header: Header{{"X", "1"}}}, "HTTP/1.1 200 OK\nX: 1\nContent-Length: 3\n\n"},
		{"empty response", &Response{Status: 200}, "HTTP/1.1 200 \nContent-Length: 0\n\n"},
		{"chunked response", &Response{Status: 200, Length: Chunked, Header: Header{{"Content-Length", "3"}}}, "HTTP/1.1 200 \nTransfer-Encoding: chunked\n\n"},
		{"until close", &Response{Status: 200, Length: UntilClose, Header: Header{{"Content-Length", "3"}}}, "HTTP/1.1 200 \nConnection: close\n\n"},
		{"HEAD keeps the length", &Response{Status: 200, NoBody: true, Header: Header{{"Content-Length", "3"}, {"Content-Length", "3"}}}, "HTTP/1.1 200 \nContent-Length: 3\n\n"},
		{"HEAD without length", &Response{Status: 200, NoBody: true}, "HTTP/1.1 200 \n\n"},
		{"204", &Response{Status: 204, NoBody: true, Header: Header{{"Content-Length", "0"}}}, "HTTP/1.1 204 \n\n"},
		{"103", &Response{Status: 103, NoBody: true, Close: true, Header: Header{{"Link", "x"}}}, "HTTP/1.1 103 \nLink: x\n\n"},
		{"101", &Response{Status: 101, NoBody: true, Header: Header{{"Upgrade", "websocket"}, {"Connection", "y"}}}, "HTTP/1.1 101 \nUpgrade: websocket\nConnection: Upgrade\n\n"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			w := bufio.NewWriter(&out)
			if err := row.head.WriteHead(w); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(head(row.want), out.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWriteHeadInjection(t *testing.T) {
	for attack, h := range map[string]interface{ WriteHead(*bufio.Writer) error }{
		"CRLF in a value":  &Request{Method: "GET", Target: "/", Host: "a", Header: Header{{"X", "a\r\nEvil: b"}}},
		"LF in a value":    &Request{Method: "GET", Target: "/", Host: "a", Header: Header{{"X", "a\nb"}}},
		"NUL in a value":   &Request{Method: "GET", Target: "/", Host: "a", Header: Header{{"X", "a\x00"}}},
		"colon in a name":  &Request{Method: "GET", Target: "/", Host: "a", Header: Header{{"X:Y", "a"}}},
		"empty name":       &Request{Method: "GET", Target: "/", Host: "a", Header: Header{{"", "a"}}},
		"CRLF in Host":     &Request{Method: "GET", Target: "/", Host: "a\r\nb: c"},
		"CRLF in target":   &Request{Method: "GET", Target: "/\r\nb: c", Host: "a"},
		"space in target":  &Request{Method: "GET", Target: "/ x", Host: "a"},
		"space in method":  &Request{Method: "GET /x", Target: "/", Host: "a"},
		"a body no end":    &Request{Method: "POST", Target: "/", Host: "a", Length: UntilClose},
		"CRLF in reason":   &Response{Status: 200, Text: "OK\r\nX: y"},
		"status 42":        &Response{Status: 42},
		"CRLF in response": &Response{Status: 200, Header: Header{{"X", "a\r\n\r\nb"}}},
	} {
		var out bytes.Buffer
		w := bufio.NewWriter(&out)
		if err := h.WriteHead(w); err == nil || w.Buffered() > 0 {
			t.Errorf("%s: error %v, %d bytes written", attack, err, w.Buffered())
		}
	}
}
