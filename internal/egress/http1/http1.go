// Package http1 reads and writes HTTP/1.1 messages for a proxy, strictly (RFC 9110, RFC 9112): what two parties could
// read differently is an error, never repaired, and what is written is framed by us alone. Bodies stream.
//
// Open read.go first. The package knows no policy, no sockets and no time: deadlines are its caller's, and it may not
// decide whether a message is allowed, only whether it is one.
package http1

import "strconv"

// Values of Length that are not a number of bytes.
const (
	Chunked    int64 = -1 // the body is chunked
	UntilClose int64 = -2 // the body (of a response) ends with the connection
)

// Limits bounds what is read. A zero field means its default.
type Limits struct {
	HeadBytes    int // start line and fields together; 64 KiB
	Fields       int // field lines of a head, or of a trailer section; 100
	TrailerBytes int // trailer section; 16 KiB
}

func (l Limits) headBytes() int    { return orDefault(l.HeadBytes, 64<<10) }
func (l Limits) fields() int       { return orDefault(l.Fields, 100) }
func (l Limits) trailerBytes() int { return orDefault(l.TrailerBytes, 16<<10) }

func orDefault(n, d int) int {
	if n <= 0 {
		return d
	}
	return n
}

// Error is a message that was refused. After one the connection it came from is out of step and must be closed.
type Error struct {
	// Status is the answer that fits: 400, 431, 501 or 505 for a request, 502 for a response.
	Status int
	// Why says what is wrong. It never holds bytes of the message.
	Why string
}

func (e *Error) Error() string { return "http1: " + strconv.Itoa(e.Status) + ": " + e.Why }

func bad(why string) *Error      { return &Error{Status: 400, Why: why} }
func tooLarge(why string) *Error { return &Error{Status: 431, Why: why} }

// asResponse turns an error of a shared parser into the one that fits a response.
func asResponse(err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // the parsers return it bare
		return &Error{Status: 502, Why: e.Why}
	}
	return err
}

// WriteError is a failure to write to the receiver of a message, as opposed to a failure to read from its sender.
type WriteError struct{ Err error }

func (e *WriteError) Error() string { return "write: " + e.Err.Error() }
func (e *WriteError) Unwrap() error { return e.Err }
