package proxy

import (
	"crypto/rand"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// streamHeader is the field that carries a stream's number, behind a secret of
// the connection: a header block could end in the middle of a text, which would
// swallow the field, and bring one of its own.
const streamHeader = "Foldyard-Stream"

type streamField struct {
	secret string
	b      []byte
}

// streamFieldRoom is what the field adds to a header list at most.
const streamFieldRoom = len(streamHeader) + 26 + 10 + 32

func newStreamField() streamField {
	f := streamField{secret: rand.Text()}
	// A literal in HPACK, RFC 7541, that no table keeps. The value's length is still to come.
	f.b = append(f.b, 0, byte(len(streamHeader)))
	f.b = append(f.b, strings.ToLower(streamHeader)...)
	f.b = append(f.b, 0)
	f.b = append(f.b, f.secret...)
	return f
}

// of returns the field of stream id, until the next call.
func (f *streamField) of(id uint32) []byte {
	at := 2 + len(streamHeader)
	f.b = strconv.AppendUint(f.b[:at+1+len(f.secret)], uint64(id), 10)
	f.b[at] = byte(len(f.b) - at - 1)
	return f.b
}

// take takes the field out of a request.
func (f *streamField) take(h http.Header) (id uint32, ok bool) {
	for _, v := range h[streamHeader] {
		if text, ours := strings.CutPrefix(v, f.secret); ours {
			n, err := strconv.ParseUint(text, 10, 31)
			id, ok = uint32(n), err == nil
		}
	}
	delete(h, streamHeader)
	return id, ok
}

// headline is what a record says of a request that no handler sees.
type headline struct{ method, path, ua string }

// headReader reads header blocks beside net/http, for that record only: what
// it makes of them decides nothing.
type headReader struct {
	dec  *hpack.Decoder // nil once a block was none: the connection ends
	most int            // bytes of a header list that are looked at
	size int
	skip int // bytes before the block
	line headline
}

const hpackTable = 4096 // what net/http lets a client have

func newHeadReader(most int) *headReader {
	h := &headReader{most: most}
	h.dec = hpack.NewDecoder(hpackTable, h.field)
	h.dec.SetMaxStringLength(most)
	return h
}

func (h *headReader) begin(priority bool) {
	h.size, h.skip, h.line = 0, 0, headline{}
	if priority {
		h.skip = 5
	}
	if h.dec != nil {
		h.dec.SetEmitEnabled(true)
	}
}

func (h *headReader) add(p []byte) {
	n := min(h.skip, len(p))
	h.skip -= n
	if h.dec == nil {
		return
	}
	if _, err := h.dec.Write(p[n:]); err != nil {
		h.dec = nil
	}
}

func (h *headReader) end() headline {
	if h.dec != nil && h.dec.Close() != nil {
		h.dec = nil
	}
	return h.line
}

func (h *headReader) field(f hpack.HeaderField) {
	if h.size += int(f.Size()); h.size > h.most {
		h.dec.SetEmitEnabled(false)
		return
	}
	switch {
	case f.Name == ":method" && h.line.method == "":
		h.line.method = start(f.Value, 32)
	case f.Name == ":path" && h.line.path == "":
		h.line.path = start(f.Value, 2<<10)
	case f.Name == "user-agent" && h.line.ua == "":
		h.line.ua = start(f.Value, 512)
	}
}

// start returns the first bytes of s, and keeps no more of it.
func start(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.Clone(s[:most])
}
