package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/policy"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// block is a header block of name, value, name, value.
func block(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // to memory
	}
	return b.Bytes()
}

func headOfA(more ...string) []byte {
	return block(append([]string{":method", "GET", ":scheme", "https", ":authority", "a.test", ":path", "/"}, more...)...)
}

// sendHead writes a header block as one stream's.
func sendHead(f *http2.Framer, id uint32, b []byte) error {
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true, EndStream: true})
}

func TestStreamsAreNumbered(t *testing.T) {
	var wire bytes.Buffer
	f := http2.NewFramer(&wire, nil)
	f.AllowIllegalWrites = true
	ok(t, f.WriteSettings())
	ok(t, sendHead(f, 1, headOfA("x-n", "plain")))
	ok(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: headOfA("x-n", "padded"), EndHeaders: true, PadLength: 17}))
	ok(t, f.WriteDataPadded(3, false, []byte("a body"), make([]byte, 5)))
	ok(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block("x-n", "trailer"), EndHeaders: true, EndStream: true}))
	ok(t, f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 5, BlockFragment: headOfA("x-n", "prioritised"), EndHeaders: true, PadLength: 1,
		Priority: http2.PriorityParam{StreamDep: 3, Weight: 4},
	}))
	long := headOfA("x-n", "continued", "x-long", strings.Repeat("l", 2000))
	ok(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: long[:10]}))
	ok(t, f.WriteContinuation(7, false, long[10:30]))
	ok(t, f.WriteContinuation(7, true, long[30:]))
	ok(t, f.WritePing(false, [8]byte{1}))
	ok(t, sendHead(f, 9, headOfA("x-n", "forged", "foldyard-stream", "1")))
	sent := wire.Bytes()

	for name, cut := range map[string]func(io.Reader) io.Reader{
		"as it comes": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "with its end": iotest.DataErrReader,
	} {
		in := newInbound(cut(bytes.NewReader(sent)), &streams{open: map[uint32]openStream{}}, 64<<10)
		got := http2.NewFramer(nil, readFunc(in.read))
		got.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		var text []string
		for {
			frame, err := got.ReadFrame()
			if err == io.EOF {
				break
			}
			ok(t, err)
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				h := http.Header{}
				n := ""
				for _, field := range frame.RegularFields() {
					h.Add(field.Name, field.Value)
					if field.Name == "x-n" {
						n = field.Value
					}
				}
				id, found := in.field.take(h)
				text = append(text, fmt.Sprintf("%d %s %d %v", frame.StreamID, n, id, found))
			case *http2.DataFrame:
				text = append(text, fmt.Sprintf("%d %s", frame.StreamID, frame.Data()))
			}
		}
		want := "1 plain 1 true; 3 padded 3 true; 3 a body; 3 trailer 0 false; 5 prioritised 5 true; 7 continued 7 true; 9 forged 9 true"
		if g := strings.Join(text, "; "); g != want {
			t.Errorf("%s:\n%s, want\n%s", name, g, want)
		}
		if len(in.s.open) != 5 {
			t.Errorf("%s: open streams %v", name, in.s.open)
		}
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// What net/http refuses by itself reaches no handler; it leaves a record all the same.
func TestWhatNoHandlerSeesIsRecorded(t *testing.T) {
	field := newStreamField()
	number := field.of(1)
	for name, c := range map[string]struct {
		send    func(f *http2.Framer) error
		reason  policy.Reason
		detail  string
		granted bool // the connection goes on
	}{
		"no path": {func(f *http2.Framer) error {
			return sendHead(f, 1, block(":method", "GET", ":scheme", "https", ":authority", "a.test"))
		}, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"no method": {func(f *http2.Framer) error {
			return sendHead(f, 1, block(":scheme", "https", ":authority", "a.test", ":path", "/"))
		}, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"two paths":      {func(f *http2.Framer) error { return sendHead(f, 1, headOfA(":path", "/2")) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"unknown pseudo": {func(f *http2.Framer) error { return sendHead(f, 1, headOfA(":other", "x")) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"another scheme": {func(f *http2.Framer) error {
			return sendHead(f, 1, block(":method", "GET", ":scheme", "ftp", ":authority", "a.test", ":path", "/"))
		}, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"a name in capitals": {func(f *http2.Framer) error { return sendHead(f, 1, headOfA("X-Up", "x")) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"a value of control": {func(f *http2.Framer) error { return sendHead(f, 1, headOfA("x-a", "b\r\nc")) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"extended CONNECT": {func(f *http2.Framer) error {
			return sendHead(f, 1, block(":method", "CONNECT", ":scheme", "https", ":authority", "a.test", ":path", "/", ":protocol", "websocket"))
		}, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"a hop's header": {func(f *http2.Framer) error { return sendHead(f, 1, headOfA("connection", "close")) }, policy.ReasonBadRequest, "Connection", true},
		"a hop's header of a HEAD": {func(f *http2.Framer) error {
			return sendHead(f, 1, block(":method", "HEAD", ":scheme", "https", ":authority", "a.test", ":path", "/", "connection", "close"))
		}, policy.ReasonBadRequest, "without a body", true},
		"a head too large": {func(f *http2.Framer) error {
			var more []string
			for i := range 20 {
				more = append(more, "x-"+string(rune('a'+i)), strings.Repeat("v", 400))
			}
			return sendHead(f, 1, headOfA(more...))
		}, policy.ReasonLimit, "too large", true},
		"a head beyond all bounds": {func(f *http2.Framer) error { return sendHead(f, 1, headOfA("x-a", strings.Repeat("v", 50<<10))) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", false},
		"broken HPACK":             {func(f *http2.Framer) error { return sendHead(f, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) }, policy.ReasonBadRequest, "COMPRESSION_ERROR", false},
		"a stream of the server's": {func(f *http2.Framer) error { return sendHead(f, 2, headOfA()) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", false},
		"a frame out of place":     {func(f *http2.Framer) error { return f.WriteContinuation(1, true, headOfA()) }, policy.ReasonBadRequest, "PROTOCOL_ERROR", false},
		"a window of too much": {func(f *http2.Framer) error {
			_ = f.WriteWindowUpdate(0, 1<<31-1)
			return f.WriteWindowUpdate(0, 1<<31-1)
		}, policy.ReasonBadRequest, "FLOW_CONTROL_ERROR", false},
		"a block that eats what follows": {func(f *http2.Framer) error {
			return sendHead(f, 1, append(headOfA(), 0, 1, 'x', byte(len(number))))
		}, policy.ReasonBadRequest, "PROTOCOL_ERROR", true},
		"a block that eats part of it": {func(f *http2.Framer) error {
			return sendHead(f, 1, append(headOfA(), 0, 1, 'x', byte(len(number)-2)))
		}, policy.ReasonBadRequest, "COMPRESSION_ERROR", false},
		"control": {func(f *http2.Framer) error { return sendHead(f, 1, headOfA()) }, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) { c.Limits.HeaderBytes = 4 << 10 })
			w.allow("a.test")
			w.web("a.test:443", webH1, greet)
			conn := w.tls(byConnect, "a.test:443", "a.test", "h2")
			f, _ := frames(t, conn, 65535)
			f.AllowIllegalWrites = true
			ok(t, c.send(f))
			if c.reason == "" {
				readAnswer(t, f, 1)
				_ = conn.Close()
				w.settled()
				if len(w.records) != 1 || w.records[0].Verdict != capture.VerdictAllow {
					t.Errorf("%+v", w.records)
				}
				return
			}
			r := w.sawReason("a.test", c.reason)
			if r.Verdict != capture.VerdictDeny || r.Proto != capture.ProtoHTTP2 || !strings.Contains(r.Error, c.detail) {
				t.Errorf("%+v", r)
			}
			if path := map[bool]string{true: "/"}[c.granted && name != "no path"]; r.Path != path {
				t.Errorf("path %q, want %q", r.Path, path)
			}
			if c.granted {
				ok(t, sendHead(f, 101, headOfA()))
				readAnswer(t, f, 101)
				_ = conn.Close()
				w.settled()
				if len(w.records) != 2 {
					t.Errorf("the next request, and records: %d %+v", len(w.records), w.records)
				}
				return
			}
			_ = conn.Close()
			w.settled()
			if len(w.records) != 1 {
				t.Errorf("%d records", len(w.records))
			}
		})
	}
}

func TestNumbersOfStreamsStayHere(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	got := make(chan http.Header, 1)
	w.web("a.test:443", webH2, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	f, _ := frames(t, w.tls(byConnect, "a.test:443", "a.test", "h2"), 65535)
	ok(t, sendHead(f, 1, headOfA("x-other", "1", "foldyard-stream", "7")))
	readAnswer(t, f, 1)
	if h := <-got; h.Get("X-Other") != "1" || len(h[streamHeader]) > 0 {
		t.Errorf("%v", h)
	}
}

// A client that asks and takes no answers is cut off by net/http without a word.
func TestFloodOfControlFramesIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	l := smallWrites{listen(t)}
	w.proxy = l.Addr().String()
	go func() { _ = w.e.ServeProxy(w.ctx, w.box(), l) }()
	c := w.tls(byConnect, "a.test:443", "a.test", "h2")
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	_, _ = frames(t, c, 65535)
	var pings bytes.Buffer
	f := http2.NewFramer(&pings, nil)
	for range 500 {
		ok(t, f.WritePing(false, [8]byte{}))
	}
	for sent := 0; sent < 4_000_000; sent += 500 {
		if _, err := c.Write(pings.Bytes()); err != nil {
			break
		}
	}
	w.sawReason("a.test", policy.ReasonLimit)
	_ = c.Close()
	w.settled()
	if len(w.records) != 1 {
		t.Errorf("%d records", len(w.records))
	}
}

// smallWrites accepts connections that hold little of what their other side
// does not read: the kernel would take seconds' worth of answers.
type smallWrites struct{ net.Listener }

func (l smallWrites) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// net/http would answer it, granted or not.
func TestOptionsStarIsJudged(t *testing.T) {
	w := newWorld(t)
	w.web("a.test:443", webH1, greet)
	ask := func(by entry) {
		f, _ := frames(t, w.tls(by, "a.test:443", "a.test", "h2"), 65535)
		ok(t, sendHead(f, 1, block(":method", "OPTIONS", ":scheme", "https", ":authority", "a.test", ":path", "*")))
		readAnswer(t, f, 1)
	}
	ask(byRedirect)
	w.sawReason("a.test", policy.ReasonNotGranted)
	w.allow("a.test")
	ask(byConnect)
	w.saw("the one that is granted", func(r *capture.Record) bool { return r.Verdict == capture.VerdictAllow && r.Path == "*" })
}

// readAnswer reads frames until the answer of the stream has ended.
func readAnswer(t *testing.T, f *http2.Framer, id uint32) {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		ok(t, err)
		h := frame.Header()
		if h.StreamID == id && h.Flags.Has(http2.FlagDataEndStream) && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) {
			return
		}
		if _, reset := frame.(*http2.RSTStreamFrame); reset && h.StreamID == id {
			t.Fatalf("stream %d: %v", id, frame)
		}
	}
}

// A client may say its settings late: where a computer is busy, seconds after its preface.
func TestSettingsMayBeLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.tls(byConnect, "a.test:443", "a.test", "h2")
	_, err := io.WriteString(c, http2.ClientPreface)
	ok(t, err)
	time.Sleep(2500 * time.Millisecond) // the thing under test: net/http's own bound is 2 s
	f := http2.NewFramer(c, c)
	ok(t, f.WriteSettings())
	ok(t, sendHead(f, 1, headOfA()))
	readAnswer(t, f, 1)
}

func TestSettingsAreAwaitedSoLong(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.HeaderTime = 50 * time.Millisecond })
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	c := w.tls(byConnect, "a.test:443", "a.test", "h2")
	_, err := io.WriteString(c, http2.ClientPreface)
	ok(t, err)
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	w.settled()
}

func TestWhatIsNoHTTP2(t *testing.T) {
	for name, text := range map[string]string{
		"another preface": strings.Repeat("x", 64), "no settings": http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
	} {
		w := newWorld(t)
		w.allow("a.test")
		c := w.tls(byConnect, "a.test:443", "a.test", "h2")
		_, err := io.WriteString(c, text)
		ok(t, err)
		if r := w.sawReason("a.test", policy.ReasonBadRequest); r.Error != errPreface.Error() {
			t.Errorf("%s: %+v", name, r)
		}
		_ = c.Close()
		w.settled()
		if len(w.records) != 1 {
			t.Errorf("%s: %d records", name, len(w.records))
		}
	}
}

// A refusal comes before the reset of a stream whose body has not come, and
// without one where it comes.
func TestRefusedUploadOverHTTP2(t *testing.T) {
	for _, comes := range []bool{true, false} {
		t.Run(fmt.Sprint(comes), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) {
				c.Limits.Linger = map[bool]time.Duration{true: time.Minute, false: 10 * time.Millisecond}[comes]
			})
			w.allow("GET a.test")
			w.web("a.test:443", webH1, greet)
			f, _ := frames(t, w.tls(byConnect, "a.test:443", "a.test", "h2"), 65535)
			ok(t, f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, EndHeaders: true,
				BlockFragment: block(":method", "POST", ":scheme", "https", ":authority", "a.test", ":path", "/", "expect", "100-continue"),
			}))
			var told string
			var size int
			for over := false; !over; {
				frame, err := f.ReadFrame()
				ok(t, err)
				if frame.Header().StreamID != 1 {
					continue
				}
				told += frame.Header().Type.String() + " "
				switch frame := frame.(type) {
				case *http2.DataFrame:
					size += len(frame.Data())
					over = frame.StreamEnded()
					if comes && !over {
						ok(t, f.WriteData(1, true, []byte("the body")))
					}
				case *http2.RSTStreamFrame:
					t.Fatalf("%s: reset before the end of the answer", told)
				}
			}
			if told != "HEADERS DATA DATA " || size == 0 {
				t.Errorf("%d bytes in %s", size, told)
			}
			if comes {
				ok(t, sendHead(f, 3, headOfA()))
				for answered := false; !answered; {
					frame, err := f.ReadFrame()
					ok(t, err)
					if frame.Header().Type == http2.FrameRSTStream {
						t.Error("a stream that was over is reset")
					}
					data, is := frame.(*http2.DataFrame)
					answered = is && data.StreamEnded()
				}
			} else {
				frame, err := f.ReadFrame()
				ok(t, err)
				if r, is := frame.(*http2.RSTStreamFrame); !is || r.ErrCode != http2.ErrCodeNo {
					t.Errorf("%v after the answer", frame)
				}
			}
			w.sawReason("a.test", policy.ReasonMethodOrPath)
		})
	}
}
