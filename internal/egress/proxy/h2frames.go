package proxy

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
)

// What is known here of HTTP/2's frames, RFC 9113, section 4.1: their heads,
// and what resets.
const (
	frameHeadSize = 9

	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	frameGoAway       = 0x7
	frameContinuation = 0x9

	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20

	greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	maxFrameLength = 1<<24 - 1
	maxSettings    = 1 << 10 // of the settings that are waited for: seven are in use, of 6 bytes
)

type frameHead struct {
	length      int
	kind, flags byte
	stream      uint32
}

func headOf(b *[frameHeadSize]byte) frameHead {
	return frameHead{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: b[3], flags: b[4],
		stream: binary.BigEndian.Uint32(b[5:]) & (1<<31 - 1),
	}
}

func (h frameHead) has(flag byte) bool { return h.flags&flag != 0 }

// inbound follows what the client sends, and puts the number of each new
// stream into its request as a last field: net/http tells a handler nothing
// that would say which stream it serves.
type inbound struct {
	r     io.Reader
	s     *streams
	field streamField
	heads *headReader
	head  [frameHeadSize + 1]byte
	last  uint32 // the newest stream
	fresh bool   // the header block under way opens it

	// Of the frame under way, in the order in which it is read.
	ready  []byte
	left   int // of the payload
	block  bool
	ends   bool // the block
	number []byte
	tail   int // padding
}

func newInbound(r io.Reader, s *streams, most int) inbound {
	return inbound{r: r, s: s, field: newStreamField(), heads: newHeadReader(most)}
}

// open reads up to the client's settings, which it must say first: net/http
// gives up on one that has said its preface two seconds ago and not those,
// however busy this computer is.
func (in *inbound) open() error {
	b := make([]byte, len(greeting)+frameHeadSize, len(greeting)+frameHeadSize+maxSettings)
	if _, err := io.ReadFull(in.r, b[:len(greeting)]); err != nil {
		return err
	}
	if string(b[:len(greeting)]) != greeting {
		return errPreface
	}
	if _, err := io.ReadFull(in.r, b[len(greeting):]); err != nil {
		return err
	}
	h := headOf((*[frameHeadSize]byte)(b[len(greeting):]))
	if h.kind != frameSettings || h.length > maxSettings {
		return errPreface
	}
	n := len(b)
	b = b[:n+h.length]
	_, err := io.ReadFull(in.r, b[n:])
	in.ready = b
	return err
}

var errPreface = errors.New("not HTTP/2: another preface than its own")

func (in *inbound) read(p []byte) (int, error) {
	for {
		switch {
		case len(in.ready) > 0:
			n := copy(p, in.ready)
			in.ready = in.ready[n:]
			return n, nil
		case in.left > 0:
			n, err := in.r.Read(p[:min(len(p), in.left)])
			in.left -= n
			if in.block {
				in.heads.add(p[:n])
			}
			if n > 0 {
				err = nil // it comes again, after what is still to be read
			}
			return n, err
		case in.ends:
			in.ends = false
			if h := in.heads.end(); in.fresh {
				in.fresh = false
				in.s.asked(in.last, h)
			}
		case in.number != nil:
			in.ready, in.number = in.number, nil
		case in.tail > 0:
			in.left, in.block, in.tail = in.tail, false, 0
		default:
			if err := in.next(); err != nil {
				return 0, err
			}
		}
	}
}

// next reads the head of a frame.
func (in *inbound) next() error {
	b := in.head[:frameHeadSize]
	if _, err := io.ReadFull(in.r, b); err != nil {
		return err
	}
	h := headOf((*[frameHeadSize]byte)(b))
	in.ready, in.left = b, h.length
	in.block = h.kind == frameHeaders || h.kind == frameContinuation
	switch h.kind {
	case frameReset:
		in.s.ended(h.stream, endedByClient)
	case frameHeaders:
		if in.fresh = h.stream%2 == 1 && h.stream > in.last; in.fresh {
			in.last = h.stream
			in.s.opened(h.stream)
		}
		in.heads.begin(h.has(flagPriority))
		if h.has(flagPadded) && h.length > 0 {
			b = in.head[:]
			if _, err := io.ReadFull(in.r, b[frameHeadSize:]); err != nil {
				return err
			}
			in.ready = b
			in.left--
			if in.tail = int(b[frameHeadSize]); in.tail > in.left {
				in.tail, in.fresh = 0, false // net/http will end the connection
			}
			in.left -= in.tail
		}
	}
	in.ends = in.block && h.has(flagEndHeaders)
	if !in.ends || !in.fresh {
		return nil
	}
	number := in.field.of(in.last)
	if n := h.length + len(number); n <= maxFrameLength {
		b[0], b[1], b[2] = byte(n>>16), byte(n>>8), byte(n)
		in.number = number
	}
	return nil
}

// outbound follows what net/http sends.
type outbound struct {
	s    *streams
	head [frameHeadSize]byte
	have int // bytes of head
	left int // of the payload
	keep []byte
}

// follow looks at the next bytes.
func (out *outbound) follow(p []byte) {
	for len(p) > 0 {
		if out.have < frameHeadSize {
			n := copy(out.head[out.have:], p)
			out.have, p = out.have+n, p[n:]
			if out.have < frameHeadSize {
				return
			}
			h := headOf(&out.head)
			out.left, out.keep = h.length, out.keep[:0]
			if h.has(flagEndStream) && h.kind == frameHeaders {
				out.s.answered(h.stream, "refused without a body")
			}
		}
		n := min(len(p), out.left)
		if room := out.most() - len(out.keep); room > 0 {
			out.keep = append(out.keep, p[:min(n, room)]...)
		}
		out.left, p = out.left-n, p[n:]
		if out.left == 0 {
			out.frame()
			out.have = 0
		}
	}
}

// most is how much of the payload is looked at.
func (out *outbound) most() int {
	switch h := headOf(&out.head); h.kind {
	case frameReset, frameGoAway:
		return 8
	case frameData:
		if out.s.unclaimed(h.stream) {
			return 120
		}
	}
	return 0
}

// frame is called at the end of one.
func (out *outbound) frame() {
	switch h := headOf(&out.head); {
	case h.kind == frameReset && len(out.keep) >= 4:
		out.s.reset(h.stream, h2code(binary.BigEndian.Uint32(out.keep)))
	case h.kind == frameGoAway && len(out.keep) >= 8:
		out.s.goAway(h2code(binary.BigEndian.Uint32(out.keep[4:])))
	case h.kind == frameData && h.has(flagEndStream):
		out.s.answered(h.stream, string(out.keep))
	}
}

// h2code is an error code of HTTP/2.
type h2code uint32

const (
	codeNone     h2code = 0x0
	codeInternal h2code = 0x2
	codeRefused  h2code = 0x7
	codeCalm     h2code = 0xb
)

func (c h2code) String() string {
	names := [...]string{
		"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
		"REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
	}
	if int64(c) < int64(len(names)) {
		return names[c]
	}
	return "code " + strconv.FormatUint(uint64(c), 10)
}
