package http1

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"sync"
)

// Request is the head of a request.
type Request struct {
	Method string
	// Target is the request target, byte for byte as it was sent: no space, control byte or '#' is in it, and it has the form
	// that the method wants. It may hold a backslash or bytes ≥ 0x80, which are the caller's to judge.
	Target string
	Minor  int // 0 or 1; only read, requests are written as HTTP/1.1
	Header Header
	// Host is the value of the one Host field; empty if an HTTP/1.0 request has none. It governs when the head is written.
	Host string
	// Length of the body in bytes, or Chunked. It governs when the head is written.
	Length int64
	// Close: read, that the sender wants the connection closed after this exchange (always so for HTTP/1.0, whose keep-alive
	// a proxy must not honour); written, that we do. One read from a client must be reset before it is written upstream.
	Close bool
	// Expect100 tells that the sender waits for a 100 (Continue).
	Expect100 bool
	// Upgrade is what the sender offers to change to, when Connection names it; several fields are joined with ", ".
	Upgrade string
}

// Response is the head of a response, final or interim.
type Response struct {
	Minor  int // 0 or 1; only read, responses are written as HTTP/1.1
	Status int // 100 to 999
	Text   string
	Header Header
	// Length of the body in bytes, Chunked or UntilClose. It governs when the head is written.
	Length int64
	// NoBody: no body follows, whatever the fields say (1xx, 204, 304, or the answer to HEAD). Length is 0, and the
	// Content-Length of a HEAD or 304 is passed on as it is.
	NoBody bool
	// Close: read, that the connection it came from ends after it; written, that the one it goes to does. One read from
	// upstream must be reset before it is written to a client.
	Close bool
	// Upgrade is the protocol a 101 changes to.
	Upgrade string
}

// ReadRequest reads one request head. The error is io.EOF if the connection ended before its first byte, *Error if it is
// refused, else what reading failed with (io.ErrUnexpectedEOF in the middle).
func ReadRequest(br *bufio.Reader, lim Limits) (*Request, error) {
	r := new(Request)
	if err := r.Read(br, lim); err != nil {
		return nil, err
	}
	return r, nil
}

// Read is ReadRequest into r, of which it keeps the array of Header only. After an error r has what was read up to there, good
// enough to choose the shape of a refusal and for nothing else.
func (r *Request) Read(br *bufio.Reader, lim Limits) error {
	*r = Request{Header: r.Header[:0]}
	head, err := readHead(br, lim.headBytes(), r.parseLine)
	if err != nil {
		return err
	}
	line, rest, err := nextLine(head)
	if err != nil {
		return err
	}
	if err := r.parseLine(line); err != nil {
		return err
	}
	var f framing
	if r.Header, err = parseFields(rest, r.Header, lim.fields(), &f); err != nil {
		return err
	}
	return r.frame(&f)
}

func (r *Request) parseLine(line string) error {
	i := strings.IndexByte(line, ' ')
	if i <= 0 || !isToken(line[:i]) {
		return bad("the request line has no method")
	}
	r.Method, line = line[:i], line[i+1:]
	i = strings.IndexByte(line, ' ')
	if i <= 0 {
		return bad("the request line has no target or no version")
	}
	version := line[i+1:]
	r.Target = line[:i]
	switch {
	case version == "HTTP/1.1":
		r.Minor = 1
	case version == "HTTP/1.0":
	case len(version) == 8 && version[:5] == "HTTP/" && isDigit(version[5]) && version[6] == '.' && isDigit(version[7]):
		return &Error{Status: 505, Why: "the HTTP version is neither 1.1 nor 1.0"}
	default:
		return bad("the request line is malformed")
	}
	if !isTarget(r.Target) {
		return bad("a byte in the target is not allowed in one")
	}
	switch t := r.Target; {
	case r.Method == "CONNECT":
		if t[0] == '/' || strings.IndexByte(t, '/') >= 0 {
			return bad("the target of CONNECT is not host:port")
		}
	case t[0] == '/':
	case t == "*":
		if r.Method != "OPTIONS" {
			return bad("the target * is for OPTIONS")
		}
	default:
		if i := strings.Index(t, "://"); i <= 0 || !isScheme(t[:i]) {
			return bad("the target is neither a path nor an absolute URI")
		}
	}
	return nil
}

// ReadResponse reads one response head, interim ones included, to a request with this method. Errors are as for ReadRequest.
func ReadResponse(br *bufio.Reader, method string, lim Limits) (*Response, error) {
	r := new(Response)
	if err := r.Read(br, method, lim); err != nil {
		return nil, err
	}
	return r, nil
}

// Read is ReadResponse into r, of which it keeps the array of Header only. After an error r is not to be used.
func (r *Response) Read(br *bufio.Reader, method string, lim Limits) error {
	*r = Response{Header: r.Header[:0]}
	head, err := readHead(br, lim.headBytes(), nil)
	if err != nil {
		return asResponse(err)
	}
	line, rest, err := nextLine(head)
	if err != nil {
		return asResponse(err)
	}
	if err := r.parseLine(line); err != nil {
		return asResponse(err)
	}
	f := framing{sameLengths: true}
	if r.Header, err = parseFields(rest, r.Header, lim.fields(), &f); err != nil {
		return asResponse(err)
	}
	return asResponse(r.frame(&f, method))
}

// parseLine takes the status line with or without the space before an empty reason, which many servers leave out.
func (r *Response) parseLine(line string) error {
	if len(line) < len("HTTP/1.1 200") || line[:7] != "HTTP/1." || line[7] != '1' && line[7] != '0' || line[8] != ' ' {
		return bad("the status line is malformed")
	}
	r.Minor = int(line[7] - '0')
	for _, c := range []byte(line[9:12]) {
		if !isDigit(c) {
			return bad("the status is not a number")
		}
		r.Status = r.Status*10 + int(c-'0')
	}
	if r.Status < 100 {
		return bad("the status is below 100")
	}
	if line = line[12:]; line == "" {
		return nil
	}
	if line[0] != ' ' || !isValue(line) {
		return bad("the status line is malformed")
	}
	r.Text = line[1:]
	return nil
}

// nextLine cuts one line, which must end with CRLF, from a complete head.
func nextLine(s string) (line, rest string, err error) {
	i := strings.IndexByte(s, '\n')
	if i < 1 || s[i-1] != '\r' {
		return "", "", bad("a line does not end with CRLF")
	}
	return s[:i-1], s[i+1:], nil
}

var headEnd = []byte("\r\n\r\n")

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// readHead reads up to and including the first empty line. One empty line before a request is skipped (RFC 9112, 2.2). request, nil
// for a response, judges the first line where the rest is still to come: what is no request is not waited for.
func readHead(br *bufio.Reader, most int, request func(line string) error) (string, error) {
	first, err := br.Peek(1)
	if err != nil {
		return "", err
	}
	if request != nil && first[0] == '\r' {
		two, err := br.Peek(2)
		if err != nil {
			return "", unexpected(err)
		}
		if two[1] != '\n' {
			return "", bad("a line does not end with CRLF")
		}
		if _, err := br.Discard(2); err != nil {
			return "", err
		}
		if first, err = br.Peek(1); err != nil {
			return "", err
		}
	}
	if class[first[0]]&inToken == 0 {
		return "", bad("the first byte is not one of a start line")
	}
	b, err := br.Peek(br.Buffered())
	if err != nil {
		return "", err
	}
	i := bytes.Index(b, headEnd)
	if i < 0 {
		return readLines(br, most, request, nil)
	}
	if i += len(headEnd); i > most {
		return "", tooLarge("the head is too large")
	}
	head := string(b[:i])
	_, err = br.Discard(i)
	return head, err
}

// readLines reads lines up to and including the first empty one, however they arrive. first judges the first of them, and body is
// told before each read that may wait; either may be nil.
func readLines(br *bufio.Reader, most int, first func(line string) error, body *Body) (string, error) {
	sp := scratch.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer scratch.Put(sp)
	buf := (*sp)[:0]
	defer func() {
		if cap(buf) <= 64<<10 {
			*sp = buf[:0]
		}
	}()
	for start := 0; ; start = len(buf) {
		for {
			if body != nil && !lineBuffered(br) {
				if err := body.mayWait(); err != nil {
					return "", err
				}
			}
			part, err := br.ReadSlice('\n')
			if len(buf)+len(part) > most {
				return "", tooLarge("the head is too large")
			}
			buf = append(buf, part...)
			if err == nil {
				break
			}
			if err != bufio.ErrBufferFull { //nolint:errorlint // ReadSlice returns it bare
				return "", unexpected(err)
			}
		}
		line := buf[start:]
		if len(line) < 2 || line[len(line)-2] != '\r' {
			return "", bad("a line does not end with CRLF")
		}
		if len(line) == 2 {
			return string(buf), nil
		}
		if start == 0 && first != nil {
			if err := first(string(line[:len(line)-2])); err != nil {
				return "", err
			}
		}
	}
}

// lineBuffered tells whether a whole line can be read without waiting.
func lineBuffered(br *bufio.Reader) bool {
	b, err := br.Peek(br.Buffered())
	return err == nil && bytes.IndexByte(b, '\n') >= 0
}

func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // bufio returns it bare
		return io.ErrUnexpectedEOF
	}
	return err
}
