package http1

import (
	"bufio"
	"io"
	"strconv"
	"sync"
)

// A copy buffer has room for a chunk's size line before its data and the CRLF after it, so that a chunk is one write.
const (
	copySize  = 32 << 10
	chunkRoom = 10 // "ffffffff\r\n"
)

type buffer [chunkRoom + copySize + 2]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func getBuffer() *buffer  { return buffers.Get().(*buffer) } //nolint:errcheck // the pool holds nothing else
func putBuffer(b *buffer) { buffers.Put(b) }

// CopyBody writes src to dst, chunked or as it is, and flushes dst at the end and whenever src has nothing more at hand, so
// that events pass as they come. What dst already held (the head) goes out with the first piece when that is there at once. A
// chunked copy ends with src's trailer fields; of a body that was cut short the last chunk is not written. flush, if not nil, is
// called instead of dst.Flush. It returns the bytes of content copied. Failures to write are *WriteError, all others are src's.
func CopyBody(dst *bufio.Writer, src *Body, chunked bool, flush func() error) (int64, error) {
	src.out, src.flush = dst, flush
	defer func() { src.out, src.flush = nil, nil }()
	var buf *buffer // only once a piece is worth it
	defer func() {
		if buf != nil {
			putBuffer(buf)
		}
	}()
	var total int64
	for {
		var data []byte
		if buf == nil && src.large() {
			buf = getBuffer()
		}
		if buf != nil {
			data = buf[chunkRoom : chunkRoom+copySize]
		}
		p, direct, err := src.next(data)
		if err == io.EOF { //nolint:errorlint // next returns it bare
			break
		}
		if err != nil {
			return total, err
		}
		switch {
		case chunked && direct:
			_, err = dst.Write(buf.chunk(len(p)))
		case chunked:
			err = WriteChunk(dst, p)
		default:
			_, err = dst.Write(p)
		}
		if err != nil {
			return total, &WriteError{err}
		}
		total += int64(len(p))
		if !direct {
			src.discard(len(p))
		}
	}
	if chunked {
		if err := EndChunks(dst, src.trailer); err != nil {
			return total, err
		}
	}
	if flush == nil {
		return total, writeError(dst.Flush())
	}
	return total, writeError(flush())
}

// large tells whether the next piece may be worth a buffer of its own.
func (b *Body) large() bool {
	return b.br != nil && b.br.Buffered() == 0 && b.left >= int64(b.br.Size())
}

// chunk frames the n bytes of data that lie in b.
func (b *buffer) chunk(n int) []byte {
	var size [chunkRoom]byte
	s := append(strconv.AppendUint(size[:0], uint64(n), 16), "\r\n"...)
	copy(b[chunkRoom-len(s):], s)
	copy(b[chunkRoom+n:], "\r\n")
	return b[chunkRoom-len(s) : chunkRoom+n+2]
}

// WriteChunk writes p as one chunk. An empty p writes nothing, for it would end the body.
func WriteChunk(w *bufio.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, _ = w.Write(append(strconv.AppendUint(w.AvailableBuffer(), uint64(len(p)), 16), "\r\n"...)) // errors are sticky
	_, _ = w.Write(p)
	_, err := w.WriteString("\r\n")
	return err
}

// EndChunks writes the last chunk and the trailer fields, of which those that frame or route are left out.
func EndChunks(w *bufio.Writer, trailer Header) error {
	for _, f := range trailer {
		if err := f.check(); err != nil {
			return err
		}
	}
	_, err := w.WriteString("0\r\n")
	for _, f := range trailer {
		if hop(f.Name) == endToEnd && !frames(f.Name) {
			writeField(w, f.Name, f.Value)
		}
	}
	if err == nil {
		_, err = w.WriteString("\r\n")
	}
	return writeError(err)
}

func writeError(err error) error {
	if err == nil {
		return nil
	}
	return &WriteError{err}
}
