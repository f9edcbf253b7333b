package redirect

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestPeekTakesNothing(t *testing.T) {
	a, b := pair(t)
	buf := make([]byte, 16)
	have := 0
	for _, more := range []string{"GET", " / ", "HTTP"} {
		go a.Write([]byte(more)) //nolint:errcheck // a failure shows in the peek
		n, err := Peek(b, buf, have)
		if err != nil || n != have+len(more) {
			t.Fatalf("peek: %d %v", n, err)
		}
		have = n
	}
	n, err := b.Read(buf)
	if err != nil || string(buf[:n]) != "GET / HTTP" {
		t.Fatalf("read %q %v", buf[:n], err)
	}
}

func TestPeekWaitsNoLongerThanItsDeadline(t *testing.T) {
	a, b := pair(t)
	_ = b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := Peek(b, make([]byte, 4), 0); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
	_ = b.SetReadDeadline(time.Time{})
	_, _ = a.Write([]byte("x"))
	if n, err := Peek(b, make([]byte, 4), 0); n != 1 || err != nil {
		t.Errorf("after it: %d %v", n, err)
	}
	_ = b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := Peek(b, make([]byte, 4), 1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no more: %v", err)
	}
}

func TestPeekSeesTheEnd(t *testing.T) {
	a, b := pair(t)
	_, _ = a.Write([]byte("x"))
	_ = a.CloseWrite()
	_ = b.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := Peek(b, make([]byte, 4), 0); n != 1 || err != nil {
		t.Errorf("got %d %v", n, err)
	}
	if runtime.GOOS == "linux" { // elsewhere the deadline ends it
		if n, err := Peek(b, make([]byte, 4), 1); n != 1 || !errors.Is(err, ErrClosed) {
			t.Errorf("past the end: %d %v", n, err)
		}
	}
	a, b = pair(t)
	a.Close()
	_ = b.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := Peek(b, make([]byte, 4), 0); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("nothing at all: %d %v", n, err)
	}
}

// An idle connection is open, holds bytes, or has ended.
func TestPending(t *testing.T) {
	a, b := pair(t)
	if pending, err := Pending(b); pending || err != nil {
		t.Errorf("idle: %v %v", pending, err)
	}
	_, _ = a.Write([]byte("x"))
	if _, err := Peek(b, make([]byte, 1), 0); err != nil {
		t.Fatal(err)
	}
	if pending, err := Pending(b); !pending || err != nil {
		t.Errorf("with a byte: %v %v", pending, err)
	}
	a, b = pair(t)
	a.Close()
	_, _ = Peek(b, make([]byte, 1), 0) // until the FIN is there
	if _, err := Pending(b); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	b.Close()
	if _, err := Pending(b); err == nil {
		t.Error("closed by us: no error")
	}
}

func TestGoneAndDead(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells while bytes are unread")
	}
	a, b := pair(t)
	_, _ = a.Write([]byte("unread"))
	_, _ = Peek(b, make([]byte, 1), 0)
	if Gone(b) || Dead(b) {
		t.Error("an open connection is gone")
	}
	_ = a.CloseWrite()
	until := time.Now().Add(5 * time.Second)
	for !Gone(b) && time.Now().Before(until) {
		runtime.Gosched()
	}
	if !Gone(b) || Dead(b) {
		t.Errorf("half-closed: gone %v, dead %v", Gone(b), Dead(b))
	}
	_ = a.SetLinger(0)
	a.Close()
	for !Dead(b) && time.Now().Before(until) {
		runtime.Gosched()
	}
	if !Dead(b) {
		t.Error("reset, and not dead")
	}
}

func TestQuiet(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	a, b := pair(t)
	_, _ = a.Write([]byte("x"))
	_, _ = Peek(b, make([]byte, 1), 0)
	<-time.After(60 * time.Millisecond)
	if q, known := Quiet(b); !known || q < 30*time.Millisecond || q > 5*time.Second {
		t.Errorf("quiet for %v, known %v", q, known)
	}
	b.Close()
	if _, known := Quiet(b); known {
		t.Error("a closed connection is quiet")
	}
}

// A connection that was not redirected is for the address it came to.
func TestOriginalDstOfADirectConnection(t *testing.T) {
	_, b := pair(t)
	if runtime.GOOS != "linux" {
		if _, err := OriginalDst(b); !errors.Is(err, ErrNotSupported) {
			t.Errorf("got %v", err)
		}
		return
	}
	got, err := OriginalDst(b)
	if err != nil {
		t.Fatalf("without a redirect: %v", err)
	}
	if want := b.LocalAddr().(*net.TCPAddr).AddrPort(); got.Port() != want.Port() || got.Addr() != want.Addr().Unmap() {
		t.Errorf("got %v, want %v", got, want)
	}
}
