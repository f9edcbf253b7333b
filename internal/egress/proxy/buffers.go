package proxy

import (
	"bufio"
	"io"
	"sync"
)

const copySize = 32 << 10

type copyBuffer [copySize]byte

// Buffers are given back whenever a connection idles, so that thousands of
// quiet ones cost little.
type bufferPool struct{ p sync.Pool }

func (p *bufferPool) get() *copyBuffer {
	if b, ok := p.p.Get().(*copyBuffer); ok {
		return b
	}
	return new(copyBuffer)
}

func (p *bufferPool) put(b *copyBuffer) { p.p.Put(b) }

type readerPool struct{ p sync.Pool }

func (p *readerPool) get(r io.Reader) *bufio.Reader {
	if br, ok := p.p.Get().(*bufio.Reader); ok {
		br.Reset(r)
		return br
	}
	return bufio.NewReaderSize(r, 4<<10)
}

func (p *readerPool) put(br *bufio.Reader) {
	br.Reset(nil)
	p.p.Put(br)
}

type writerPool struct{ p sync.Pool }

func (p *writerPool) get(w io.Writer) *bufio.Writer {
	if bw, ok := p.p.Get().(*bufio.Writer); ok {
		bw.Reset(w)
		return bw
	}
	return bufio.NewWriterSize(w, 4<<10)
}

func (p *writerPool) put(bw *bufio.Writer) {
	bw.Reset(nil)
	p.p.Put(bw)
}

// Pools of memory are the one thing that engines may share.
var (
	buffers bufferPool
	readers readerPool
	writers writerPool
)
