package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/policy"

	"golang.org/x/net/http2"
)

// FuzzFrames feeds what may be no HTTP/2 to what follows it, both ways, whole and by single bytes: the same comes out and the same is
// noted, nothing is lost, and no stream stays counted.
func FuzzFrames(f *testing.F) {
	var seed bytes.Buffer
	w := http2.NewFramer(&seed, nil)
	_ = w.WriteSettings()
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headOfA(), EndHeaders: true, PadLength: 3, Priority: http2.PriorityParam{Weight: 1}})
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: headOfA()[:4]})
	_ = w.WriteContinuation(3, true, headOfA()[4:])
	_ = w.WriteRSTStream(1, http2.ErrCodeCancel)
	_ = w.WriteData(3, true, []byte("HTTP Error 431"))
	_ = w.WriteGoAway(3, http2.ErrCodeEnhanceYourCalm, []byte("why"))
	f.Add(seed.Bytes(), seed.Bytes())
	f.Fuzz(func(t *testing.T, in, out []byte) {
		var told [2]string
		var field streamField
		for i, cut := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
			var records []string
			e := New(Config{Now: func() time.Time { return time.Unix(0, 0) }, Policy: func() *policy.Snapshot { return nil }, Record: func(r *capture.Record) {
				records = append(records, fmt.Sprint(r.Reason, r.Error, r.Method, r.Path))
			}})
			c := &client{e: e, gauge: e.live.gauge("b"), owner: nobody, ctx: context.Background()}
			s := &streams{c: c, most: 2, open: map[uint32]openStream{}}
			from := newInbound(cut(bytes.NewReader(in)), s, 1<<10)
			if i == 0 {
				field = from.field
			}
			from.field = field // the same secret, to compare
			passed, err := io.ReadAll(readFunc(from.read))
			if err != nil && err != io.ErrUnexpectedEOF {
				t.Fatal(err)
			}
			to := outbound{s: s}
			for r := cut(bytes.NewReader(out)); ; {
				b := make([]byte, 512)
				n, err := r.Read(b)
				to.follow(b[:n])
				if err != nil {
					break
				}
			}
			s.close(true)
			if n := c.gauge.requests.current.Load(); n != 0 || len(s.open) != 0 {
				t.Fatalf("%d counted, %d open", n, len(s.open))
			}
			told[i] = fmt.Sprintf("%q %q", passed, records)
			if len(passed) < len(in)-frameHeadSize { // but for a head that is not whole
				t.Fatalf("%d bytes became %d", len(in), len(passed))
			}
			e.Close()
		}
		if told[0] != told[1] {
			t.Fatalf("whole:\n%s\nby bytes:\n%s", told[0], told[1])
		}
	})
}
