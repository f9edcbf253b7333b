package inject

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"
)

// chunkSigner signs the chunks of an aws-chunked body again, each over the one
// before. Lengths stay as they were.
type chunkSigner struct {
	trailer      bool
	key          []byte
	stamp, scope string
	previous     string // signature
	fail         func(why string) error
}

// Bounds of an aws-chunked body.
const (
	maxChunk     = 8 << 20
	maxChunkLine = 1 << 10
	maxTrailer   = 16 << 10
)

func (c *chunkSigner) over(r io.Reader) io.Reader {
	return &chunkReader{sign: c, br: bufio.NewReaderSize(r, 32<<10)}
}

type chunkReader struct {
	sign *chunkSigner
	br   *bufio.Reader
	out  []byte // signed, not yet read
	buf  []byte
	err  error
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.next()
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// next signs one chunk, or the trailer.
func (c *chunkReader) next() {
	size, data, err := c.chunk()
	if err != nil {
		c.err = err
		return
	}
	s := c.sign
	s.previous = hex.EncodeToString(mac(s.key, "AWS4-HMAC-SHA256-PAYLOAD\n"+s.stamp+"\n"+s.scope+"\n"+s.previous+"\n"+hexSum(nil)+"\n"+hexSum(data)))
	c.buf = append(append(append(c.buf[:0], size...), ";chunk-signature="...), s.previous...)
	c.buf = append(append(c.buf, "\r\n"...), data...)
	if len(data) > 0 {
		c.out = append(c.buf, "\r\n"...)
		return
	}
	if c.err = c.end(); c.err == nil {
		c.err = io.EOF
	}
	c.out = c.buf
	if !errors.Is(c.err, io.EOF) {
		c.out = nil
	}
}

// chunk reads the size, as it is written, and the data of one chunk.
func (c *chunkReader) chunk() (size string, data []byte, err error) {
	line, err := c.line(maxChunkLine)
	if err != nil {
		return "", nil, err
	}
	size, ext, ok := strings.Cut(line, ";chunk-signature=")
	n, perr := strconv.ParseUint(size, 16, 32)
	if !ok || perr != nil || !isHex(ext) {
		return "", nil, c.sign.fail("a chunk without size and signature")
	}
	if n > maxChunk {
		return "", nil, c.sign.fail("a chunk is over 8 MiB")
	}
	if n == 0 {
		return size, nil, nil
	}
	data = make([]byte, n+2)
	if _, err := io.ReadFull(c.br, data); err != nil {
		return "", nil, c.short(err)
	}
	if data[n] != '\r' || data[n+1] != '\n' {
		return "", nil, c.sign.fail("a chunk does not end where its size says")
	}
	return size, data[:n], nil
}

// end reads what follows the last chunk and appends it to buf, signed.
func (c *chunkReader) end() error {
	var canonical strings.Builder
	signed := false
	for total := 0; ; {
		line, err := c.line(maxChunkLine)
		if errors.Is(err, io.ErrUnexpectedEOF) && !c.sign.trailer {
			return nil // some clients leave the last line out
		}
		if err != nil {
			return err
		}
		if total += len(line); total > maxTrailer {
			return c.sign.fail("the trailer is too long")
		}
		if line == "" {
			if signed != c.sign.trailer {
				return c.sign.fail("the trailer is not signed, or should not be")
			}
			c.buf = append(c.buf, "\r\n"...)
			if _, err := c.br.ReadByte(); err != io.EOF {
				return c.sign.fail("bytes after the end")
			}
			return nil
		}
		name, value, ok := strings.Cut(line, ":")
		switch {
		case !ok || signed || !c.sign.trailer:
			return c.sign.fail("the trailer is not one")
		case strings.EqualFold(name, "x-amz-trailer-signature"):
			s := c.sign
			s.previous = hex.EncodeToString(mac(s.key, "AWS4-HMAC-SHA256-TRAILER\n"+s.stamp+"\n"+s.scope+"\n"+s.previous+"\n"+hexSum([]byte(canonical.String()))))
			line, signed = name+":"+s.previous, true
		default:
			canonical.WriteString(strings.ToLower(name) + ":" + strings.TrimSpace(value) + "\n")
		}
		c.buf = append(append(c.buf, line...), "\r\n"...)
	}
}

// line reads one line without its end, which may be a bare newline.
func (c *chunkReader) line(most int) (string, error) {
	b, err := c.br.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			return "", c.sign.fail("a line is too long")
		}
		return "", c.short(err)
	}
	if len(b) > most {
		return "", c.sign.fail("a line is too long")
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
}

func (c *chunkReader) short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
