package http1

import (
	"bufio"
	"errors"
	"io"
	"math"
)

// Body reads the body of one message from the connection's reader, and nothing after it. Chunked ones are checked strictly.
// It is not for concurrent use. The zero Body is an empty one.
type Body struct {
	br      *bufio.Reader
	lim     Limits
	length  int64 // as given
	left    int64 // bytes left of the body, or of the chunk
	n       int64 // bytes read so far
	excess  int64 // what chunk framing costs beyond what its data pays for
	inChunk bool  // the CRLF after a chunk's data is to come
	err     error // sticky; io.EOF once read to the end
	trailer Header

	// Set while CopyBody runs: what to flush before a read that may wait.
	out   *bufio.Writer
	flush func() error // instead of out.Flush
}

// NewBody returns the body of a message whose head was just read from br. Length is the head's: a number of bytes, Chunked or
// UntilClose. The caller's reader must hold at least a chunk's size line and extensions: 512 bytes are plenty.
func NewBody(br *bufio.Reader, length int64, lim Limits) *Body {
	b := new(Body)
	b.Reset(br, length, lim)
	return b
}

// Reset makes b the body of another message.
func (b *Body) Reset(br *bufio.Reader, length int64, lim Limits) {
	*b = Body{br: br, lim: lim, length: length}
	switch {
	case length > 0:
		b.left = length
	case length == UntilClose:
		b.left = math.MaxInt64
	case length != Chunked:
		b.err = io.EOF
	}
}

// Read implements io.Reader. It fails with *Error for broken framing and io.ErrUnexpectedEOF for a body that was cut short.
func (b *Body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := b.advance(); err != nil {
		return 0, err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.br.Read(p)
	b.take(n)
	return n, b.readError(err)
}

// WriteTo implements io.WriterTo: each piece is written as soon as it came.
func (b *Body) WriteTo(w io.Writer) (int64, error) {
	var total int64
	buf := getBuffer()
	defer putBuffer(buf)
	for {
		p, direct, err := b.next(buf[:])
		if err != nil {
			if err == io.EOF { //nolint:errorlint // next returns it bare
				err = nil
			}
			return total, err
		}
		n, err := w.Write(p)
		total += int64(n)
		if !direct {
			b.discard(len(p))
		}
		if err != nil {
			return total, &WriteError{err}
		}
	}
}

// Trailer returns the trailer fields, once the body was read to the end. Fields that frame or route are left out of it.
func (b *Body) Trailer() Header { return b.trailer }

// Done tells whether the body was read to its end, trailers included, so that the next message may be read.
func (b *Body) Done() bool { return b.err == io.EOF || b.br == nil } //nolint:errorlint // set bare

// Count returns how many bytes of content were read so far.
func (b *Body) Count() int64 { return b.n }

var errMoreLeft = errors.New("http1: more of the body is left")

// Drain reads and drops what is left, at most most bytes of it. It returns nil if the body is then Done.
func (b *Body) Drain(most int64) error {
	for {
		if err := b.advance(); err != nil {
			if err == io.EOF { //nolint:errorlint // advance returns it bare
				return nil
			}
			return err
		}
		if b.length != Chunked && b.left > most || most <= 0 {
			return errMoreLeft
		}
		if b.br.Buffered() == 0 {
			if _, err := b.br.Peek(1); err != nil {
				return b.readError(err)
			}
		}
		n, err := b.br.Discard(int(min(int64(b.br.Buffered()), b.left, most)))
		b.take(n)
		most -= int64(n)
		if err != nil {
			return b.readError(err)
		}
	}
}

// next returns the next piece of content. It lies in buf if direct: a large read went straight there. Else it is a view of the
// reader's buffer, and discard drops it before the next call.
func (b *Body) next(buf []byte) (p []byte, direct bool, err error) {
	if err := b.advance(); err != nil {
		return nil, false, err
	}
	if b.br.Buffered() == 0 {
		if err := b.mayWait(); err != nil {
			return nil, false, err
		}
		if size := b.br.Size(); b.left >= int64(size) && len(buf) >= size {
			n, err := b.br.Read(buf[:min(int64(len(buf)), b.left)])
			b.take(n)
			if n > 0 {
				return buf[:n], true, nil // an error with it is not lost: it is met again
			}
			if err != nil {
				return nil, false, b.readError(err)
			}
		}
		if _, err := b.br.Peek(1); err != nil {
			return nil, false, b.readError(err)
		}
	}
	p, err = b.br.Peek(int(min(int64(b.br.Buffered()), b.left)))
	return p, false, err
}

func (b *Body) discard(n int) {
	n, _ = b.br.Discard(n) // these bytes are buffered: it cannot fail
	b.take(n)
}

func (b *Body) take(n int) {
	b.n += int64(n)
	if b.length == UntilClose {
		return
	}
	b.left -= int64(n)
	if b.left == 0 && b.length != Chunked {
		b.err = io.EOF
	}
}

// readError keeps a failed read. The end of the connection is the end of the body only if nothing else tells it.
func (b *Body) readError(err error) error {
	if err == nil {
		return nil
	}
	if b.length != UntilClose {
		err = unexpected(err)
	}
	b.err = err
	return err
}

// mayWait is called before a read that may wait.
func (b *Body) mayWait() error {
	switch {
	case b.flush != nil:
		return writeError(b.flush())
	case b.out != nil && b.out.Buffered() > 0:
		return writeError(b.out.Flush())
	}
	return nil
}

// advance moves to where content can be read (left > 0), or fails; at the end with io.EOF.
func (b *Body) advance() error {
	if b.br == nil {
		return io.EOF
	}
	if b.err != nil || b.left > 0 {
		return b.err
	}
	if err := b.chunk(); err != nil {
		if _, ok := err.(*WriteError); ok { //nolint:errorlint // mayWait returns it bare
			return err
		}
		b.err = unexpected(err)
		return b.err
	}
	if b.left == 0 {
		b.err = io.EOF
	}
	return b.err
}

// chunk reads up to the data of the next chunk, or to the end of the trailer section.
func (b *Body) chunk() error {
	if b.inChunk {
		if b.br.Buffered() < 2 {
			if err := b.mayWait(); err != nil {
				return err
			}
		}
		crlf, err := b.br.Peek(2)
		if err != nil {
			if len(crlf) == 1 && crlf[0] != '\r' {
				return bad("a chunk does not end where its size says")
			}
			return err
		}
		if crlf[0] != '\r' || crlf[1] != '\n' {
			return bad("a chunk does not end where its size says")
		}
		if _, err := b.br.Discard(2); err != nil {
			return err
		}
		b.inChunk = false
	}
	if !lineBuffered(b.br) {
		if err := b.mayWait(); err != nil {
			return err
		}
	}
	line, err := b.br.ReadSlice('\n')
	if err == bufio.ErrBufferFull { //nolint:errorlint // ReadSlice returns it bare
		return bad("a chunk extension is too long")
	}
	if err != nil {
		return err
	}
	size, err := parseChunkLine(line)
	if err != nil {
		return err
	}
	// One byte a chunk is honest streaming; extensions or zero padding without end are not. As in net/http.
	if b.excess = max(0, b.excess+int64(len(line))+2-16-2*min(size, 1<<40)); b.excess > 16<<10 {
		return bad("chunk framing outweighs the data")
	}
	if size > 0 {
		b.left, b.inChunk = size, true
		return nil
	}
	return b.readTrailer()
}

func (b *Body) readTrailer() error {
	s, err := readLines(b.br, b.lim.trailerBytes(), nil, b)
	if err != nil || s == "\r\n" {
		return err
	}
	h, err := parseFields(s, nil, b.lim.fields(), nil)
	if err != nil {
		return err
	}
	b.trailer = h[:0]
	for _, f := range h {
		if hop(f.Name) == endToEnd && !frames(f.Name) {
			b.trailer = append(b.trailer, f)
		}
	}
	return nil
}

// frames tells the fields that are never taken from, or put in, a trailer section (RFC 9110, 6.5.1).
func frames(name string) bool {
	switch len(name) {
	case 4:
		return fold(name, "Host")
	case 7:
		return fold(name, "Trailer")
	case 13:
		return fold(name, "Authorization") || fold(name, "Content-Range")
	case 6:
		return fold(name, "Cookie") || fold(name, "Expect")
	case 10:
		return fold(name, "Set-Cookie")
	case 14:
		return fold(name, "Content-Length")
	case 12:
		return fold(name, "Content-Type")
	case 16:
		return fold(name, "Content-Encoding")
	}
	return false
}

// parseChunkLine reads "SIZE[;extensions]CRLF": up to 15 hexadecimal digits, and extensions without control bytes.
func parseChunkLine(line []byte) (int64, error) {
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return 0, bad("a line of chunk framing does not end with CRLF")
	}
	line = line[:len(line)-2]
	var size int64
	i := 0
	for ; i < len(line); i++ {
		d, ok := hexDigit(line[i])
		if !ok {
			break
		}
		if i == 15 {
			return 0, bad("a chunk size is too large")
		}
		size = size<<4 | int64(d)
	}
	if i == 0 {
		return 0, bad("a chunk size is not a number")
	}
	if i < len(line) && line[i] != ';' { // whitespace, too, that RFC 9112 would bear before the semicolon
		return 0, bad("a chunk size is not a number")
	}
	for _, c := range line[i:] {
		if class[c]&inValue == 0 {
			return 0, bad("a control byte in a chunk extension")
		}
	}
	return size, nil
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
