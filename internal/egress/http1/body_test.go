package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bodyReaders are the ways to read a body: all must agree.
var bodyReaders = []struct {
	name string
	read func(*Body) ([]byte, error)
}{
	{"Read", func(b *Body) ([]byte, error) { return io.ReadAll(struct{ io.Reader }{b}) }},
	{"Read byte by byte", func(b *Body) ([]byte, error) { return io.ReadAll(oneByte{b}) }},
	{"WriteTo", func(b *Body) ([]byte, error) {
		var out bytes.Buffer
		_, err := b.WriteTo(&out)
		return out.Bytes(), err
	}},
	{"CopyBody", func(b *Body) ([]byte, error) {
		var out bytes.Buffer
		_, err := CopyBody(bufio.NewWriter(&out), b, false, nil)
		return out.Bytes(), err
	}},
	{"CopyBody, chunked", func(b *Body) ([]byte, error) {
		var out bytes.Buffer
		w := bufio.NewWriter(&out)
		_, err := CopyBody(w, b, true, nil)
		if ferr := w.Flush(); ferr != nil {
			return nil, ferr
		}
		if err != nil { // what was copied has no end, and must not look as if it had
			again := NewBody(bufio.NewReader(&out), Chunked, Limits{})
			data, rerr := io.ReadAll(again)
			if !errors.Is(rerr, io.ErrUnexpectedEOF) {
				return data, errors.Join(errors.New("a cut body was ended"), rerr)
			}
			return data, err
		}
		again := NewBody(bufio.NewReader(&out), Chunked, Limits{})
		data, err := io.ReadAll(again)
		if d := cmp.Diff(b.Trailer(), again.Trailer()); d != "" {
			err = errors.Join(err, errors.New(d))
		}
		return data, err
	}},
}

func TestBody(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 10_000)
	for _, row := range []struct {
		name   string
		length int64
		in     string
		want   string
		rest   string
	}{
		{"none", 0, "NEXT", "", "NEXT"},
		{"length", 5, "helloNEXT", "hello", "NEXT"},
		{"big length", int64(len(big)), big + "NEXT", big, "NEXT"},
		{"until close", UntilClose, "hello", "hello", ""},
		{"empty until close", UntilClose, "", "", ""},
		{"big until close", UntilClose, big, big, ""},
		{"chunked", Chunked, "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nNEXT", "hello world", "NEXT"},
		{"empty chunked", Chunked, "0\r\n\r\nNEXT", "", "NEXT"},
		{"zeros", Chunked, "0005\r\nhello\r\n000\r\n\r\nNEXT", "hello", "NEXT"},
		{"upper case", Chunked, "A\r\n0123456789\r\n0\r\n\r\nNEXT", "0123456789", "NEXT"},
		{"extensions", Chunked, "5;a=b;c=\"d e\"\r\nhello\r\n0;x\r\n\r\nNEXT", "hello", "NEXT"},
		{"trailer", Chunked, "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\nNEXT", "hello", "NEXT"},
		{"big chunk", Chunked, "27100\r\n" + big + "\r\n0\r\n\r\nNEXT", big, "NEXT"},
		{"many chunks", Chunked, strings.Repeat("1\r\nx\r\n", 9000) + "0\r\n\r\nNEXT", strings.Repeat("x", 9000), "NEXT"},
		{"data that looks like framing", Chunked, "b\r\n0\r\n\r\nGET / \r\n0\r\n\r\nNEXT", "0\r\n\r\nGET / ", "NEXT"},
	} {
		for _, how := range readings {
			for _, way := range bodyReaders {
				br := how.reader(row.in)
				b := NewBody(br, row.length, Limits{})
				got, err := way.read(b)
				if err != nil || string(got) != row.want || !b.Done() || b.Count() != int64(len(row.want)) {
					t.Errorf("%s, %s, %s: %d bytes %.40q, done %v, count %d, %v", row.name, how.name, way.name, len(got), got, b.Done(), b.Count(), err)
				}
				if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF { //nolint:errorlint // exactly
					t.Errorf("%s: after the end: %d %v", row.name, n, err)
				}
				if rest, _ := io.ReadAll(br); string(rest) != row.rest {
					t.Errorf("%s, %s, %s: what follows is %q", row.name, how.name, way.name, rest)
				}
			}
		}
	}
}

func TestBodyBroken(t *testing.T) {
	for attack, in := range map[string]string{
		"no size":                   "\r\nhello\r\n0\r\n\r\n",
		"not hexadecimal":           "5x\r\nhello\r\n0\r\n\r\n",
		"0x":                        "0x5\r\nhello\r\n0\r\n\r\n",
		"negative":                  "-5\r\nhello\r\n0\r\n\r\n",
		"plus":                      "+5\r\nhello\r\n0\r\n\r\n",
		"underscore":                "1_0\r\nhello\r\n0\r\n\r\n",
		"space before":              " 5\r\nhello\r\n0\r\n\r\n",
		"space before extensions":   "5 ;a\r\nhello\r\n0\r\n\r\n",
		"space after":               "5 \r\nhello\r\n0\r\n\r\n",
		"overflow":                  "10000000000000005\r\nhello\r\n0\r\n\r\n",
		"size of 16 digits":         "0000000000000005\r\nhello\r\n0\r\n\r\n",
		"bare LF after the size":    "5\nhello\r\n0\r\n\r\n",
		"bare CR after the size":    "5\rhello\r\n0\r\n\r\n",
		"bare LF in an extension":   "5;a\nhello\r\n0\r\n\r\n",
		"bare CR in an extension":   "5;a\rb\r\nhello\r\n0\r\n\r\n",
		"NUL in an extension":       "5;a\x00\r\nhello\r\n0\r\n\r\n",
		"longer than its size":      "4\r\nhello\r\n0\r\n\r\n",
		"shorter than its size":     "6\r\nhello\r\n0\r\n\r\n",
		"LF after the data":         "5\r\nhello\n0\r\n\r\n",
		"CR after the data":         "5\r\nhello\r0\r\n\r\n",
		"nothing after the data":    "5\r\nhello0\r\n\r\n",
		"bare LF at the end":        "5\r\nhello\r\n0\r\n\n",
		"bare LF after the last":    "5\r\nhello\r\n0\n\r\n",
		"obs-fold in a trailer":     "0\r\nX: y\r\n z\r\n\r\n",
		"space in a trailer's name": "0\r\nX : y\r\n\r\n",
		"NUL in a trailer":          "0\r\nX: \x00\r\n\r\n",
		"bare LF in a trailer":      "0\r\nX: y\n\r\n",
		"a long extension":          "5;" + strings.Repeat("a", 9000) + "\r\nhello\r\n0\r\n\r\n",
		"extensions without end":    strings.Repeat("1;"+strings.Repeat("a", 500)+"\r\nx\r\n", 100) + "0\r\n\r\n",
		"a large trailer":           "0\r\nX: " + strings.Repeat("a", 17<<10) + "\r\n\r\n",
		"many trailers":             "0\r\n" + strings.Repeat("a: b\r\n", 101) + "\r\n",
	} {
		for _, how := range readings {
			if how.name == "small buffer" && strings.Contains(in, "size of 16") {
				continue // refused all the same, as an extension that is too long
			}
			for _, way := range bodyReaders {
				b := NewBody(how.reader(in), Chunked, Limits{})
				_, err := way.read(b)
				var e *Error
				if !errors.As(err, &e) || b.Done() {
					t.Errorf("%s, %s, %s: %v, done %v", attack, how.name, way.name, err, b.Done())
				}
				if _, again := b.Read(make([]byte, 1)); again == nil || again == io.EOF { //nolint:errorlint // exactly
					t.Errorf("%s: read on after the error: %v", attack, again)
				}
			}
		}
	}
}

func TestBodyCut(t *testing.T) {
	whole := "5;x\r\nhello\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
	for i := range len(whole) {
		for _, way := range bodyReaders {
			b := NewBody(reader(whole[:i]), Chunked, Limits{})
			if _, err := way.read(b); !errors.Is(err, io.ErrUnexpectedEOF) || b.Done() {
				t.Errorf("%q, %s: %v", whole[:i], way.name, err)
			}
		}
	}
	for _, way := range bodyReaders {
		b := NewBody(reader("hell"), 5, Limits{})
		if got, err := way.read(b); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "hell" || b.Done() {
			t.Errorf("length, %s: %q %v", way.name, got, err)
		}
	}
}

func TestTrailer(t *testing.T) {
	b := NewBody(reader("0\r\nX-Sum: 1\r\ngrpc-status: 0\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nHost: evil.test\r\n"+
		"Connection: close\r\nAuthorization: x\r\nTrailer: y\r\nX-Sum: 2\r\n\r\n"), Chunked, Limits{})
	if _, err := io.ReadAll(b); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Header{{"X-Sum", "1"}, {"grpc-status", "0"}, {"X-Sum", "2"}}, b.Trailer()); d != "" {
		t.Error(d)
	}
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	if err := EndChunks(w, Header{{"X", "y"}, {"Content-Length", "4"}, {"Trailer", "x"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil || out.String() != "0\r\nX: y\r\n\r\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	if err := EndChunks(w, Header{{"X", "y\r\nZ: 1"}}); err == nil || w.Buffered() > 0 {
		t.Error("a trailer with CRLF was written")
	}
}

func TestDrain(t *testing.T) {
	for _, row := range []struct {
		name   string
		length int64
		in     string
		most   int64
		ok     bool
	}{
		{"none", 0, "NEXT", 0, true},
		{"fits", 5, "helloNEXT", 5, true},
		{"too long", 6, "helloNEXT", 5, false},
		{"chunked fits", Chunked, "5\r\nhello\r\n0\r\nX: y\r\n\r\nNEXT", 6, true},
		{"chunked too long", Chunked, "5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\nNEXT", 6, false},
		{"broken", Chunked, "5\r\nhellohello", 100, false},
		{"cut", 5, "hel", 100, false},
	} {
		for _, how := range readings {
			br := how.reader(row.in)
			b := NewBody(br, row.length, Limits{})
			err := b.Drain(row.most)
			if (err == nil) != row.ok || b.Done() != row.ok {
				t.Errorf("%s, %s: %v, done %v", row.name, how.name, err, b.Done())
			}
			if rest, _ := io.ReadAll(br); row.ok && string(rest) != "NEXT" {
				t.Errorf("%s, %s: what follows is %q", row.name, how.name, rest)
			}
		}
	}
}

// What one side sends must have reached the other before more is awaited: an event, a chunk's data before its CRLF, the head
// before the body.
func TestCopyBodyDoesNotHoldBack(t *testing.T) {
	for _, row := range []struct {
		name   string
		length int64
		steps  []string // sent one by one
		want   []string // what must be there after each, with chunked output
	}{
		{"chunked", Chunked, []string{"5\r\nhel", "lo", "\r", "\n3", "\r\nabc\r\n", "0\r\n", "X: y\r\n", "\r\n"},
			[]string{"HEAD3\r\nhel\r\n", "2\r\nlo\r\n", "", "", "3\r\nabc\r\n", "", "", "0\r\nX: y\r\n\r\n"}},
		{"until close", UntilClose, []string{"data: 1\n\n", "data: 2\n\n"}, []string{"HEAD9\r\ndata: 1\n\n\r\n", "9\r\ndata: 2\n\n\r\n"}},
		{"length", 6, []string{"", "abc", "def"}, []string{"HEAD", "3\r\nabc\r\n", "3\r\ndef\r\n0\r\n\r\n"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, feed := net.Pipe()
				out, sink := net.Pipe()
				var got bytes.Buffer
				go func() {
					if _, err := io.Copy(struct{ io.Writer }{&got}, out); err != nil && !errors.Is(err, io.ErrClosedPipe) {
						t.Error(err)
					}
				}()
				done := make(chan error)
				go func() {
					w := bufio.NewWriter(sink)
					if _, err := w.WriteString("HEAD"); err != nil {
						t.Error(err)
					}
					_, err := CopyBody(w, NewBody(bufio.NewReader(in), row.length, Limits{}), true, nil)
					done <- errors.Join(err, sink.Close())
				}()
				for i, s := range row.steps {
					if _, err := io.WriteString(feed, s); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if got.String() != row.want[i] {
						t.Errorf("after %q: %q, want %q", s, got.String(), row.want[i])
					}
					got.Reset()
				}
				if err := feed.Close(); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				_ = in.Close()
				_ = out.Close()
			})
		})
	}
}

// The head and a body that is there at once go out together.
func TestCopyBodyCoalesces(t *testing.T) {
	for _, row := range []struct {
		length  int64
		in      string
		chunked bool
	}{{5, "hello", false}, {5, "hello", true}, {Chunked, "5\r\nhello\r\n0\r\n\r\n", true}, {Chunked, "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", false}} {
		var w countWrites
		bw := bufio.NewWriter(&w)
		if _, err := bw.WriteString("HEAD"); err != nil {
			t.Fatal(err)
		}
		br := reader(row.in)
		if _, err := br.Peek(1); err != nil {
			t.Fatal(err)
		}
		if _, err := CopyBody(bw, NewBody(br, row.length, Limits{}), row.chunked, nil); err != nil || w.n != 1 {
			t.Errorf("%+v: %d writes, %v", row, w.n, err)
		}
	}
}

type countWrites struct{ n int }

func (c *countWrites) Write(p []byte) (int, error) { c.n++; return len(p), nil }

// Whose fault an error is decides what is logged and which connection is closed.
func TestCopyBodyErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, chunked := range []bool{false, true} {
		for _, in := range []string{"5\r\nhello\r\n0\r\n\r\n", strings.Repeat("5\r\nhello\r\n", 5000) + "0\r\n\r\n", "27100\r\n" + strings.Repeat("0123456789abcdef", 10_000) + "\r\n0\r\n\r\n"} {
			_, err := CopyBody(bufio.NewWriter(failing{broken}), NewBody(reader(in), Chunked, Limits{}), chunked, nil)
			var w *WriteError
			if !errors.As(err, &w) || !errors.Is(err, broken) {
				t.Errorf("%v is not a *WriteError", err)
			}
			_, err = CopyBody(bufio.NewWriter(io.Discard), NewBody(bufio.NewReader(io.MultiReader(strings.NewReader(in[:4]), failing{broken})), Chunked, Limits{}), chunked, nil)
			if errors.As(err, &w) || !errors.Is(err, broken) {
				t.Errorf("%v is not the reader's", err)
			}
			_, err = CopyBody(bufio.NewWriter(io.Discard), NewBody(reader(in), Chunked, Limits{}), chunked, func() error { return broken })
			if !errors.As(err, &w) || !errors.Is(err, broken) {
				t.Errorf("flush: %v is not a *WriteError", err)
			}
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestReaderThatNeverDelivers(t *testing.T) {
	b := NewBody(bufio.NewReader(stuck{}), 1<<20, Limits{})
	if _, err := CopyBody(bufio.NewWriter(io.Discard), b, false, nil); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestDeadlineIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, feed := net.Pipe()
		defer feed.Close()
		if err := in.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err := ReadRequest(bufio.NewReader(in), Limits{})
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Error(err)
		}
	})
}
