package container

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"foldyard/internal/box/wire"
)

// dialHost connects to ports of this computer as if it were the container.
func dialHost(t *testing.T) Host {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Host{Argv: func(argv []string) []string {
		if want := []string{"podman", "exec", "--interactive", Name("b1"), Program, DialVerb}; strings.Join(argv[:6], " ") != strings.Join(want, " ") {
			t.Errorf("runs %q", argv)
		}
		return []string{self, argv[5], argv[6]}
	}}
}

func listenOn(t *testing.T, address string) (l net.Listener, port int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

// Both ways carry everything, and end one by one: a server that answers at the end of its input gets to.
func TestDialCarriesBothWays(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, port := listenOn(t, address)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			b, _ := io.ReadAll(c)
			_, _ = c.Write(bytes.ToUpper(b))
		}()
		s, err := Dial(t.Context(), dialHost(t), "b1", port)
		if err != nil {
			t.Fatal(err)
		}
		sent := strings.Repeat("abc\x00", 100_000)
		if _, err := io.WriteString(s, sent); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(s)
		if err != nil || string(got) != strings.ToUpper(sent) {
			t.Errorf("%s: %d bytes came back, %v; want %d", address, len(got), err, len(sent))
		}
		_ = s.Close()
		_ = s.Close() // again
	}
}

// A server that ends its own half first goes on to read, and one that is cut off is told from one that ended.
func TestServerMayEndItsHalfFirst(t *testing.T) {
	l, port := listenOn(t, "127.0.0.1:0")
	got := make(chan string, 1)
	go func() {
		for _, cut := range []bool{false, true} {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c := conn.(*net.TCPConn)
			_, _ = io.WriteString(c, "hello")
			if cut {
				_, _ = c.Read(make([]byte, 1))
				_ = c.SetLinger(0)
				_ = c.Close()
				return
			}
			_ = c.CloseWrite()
			b, _ := io.ReadAll(c)
			_ = c.Close()
			got <- string(b)
		}
	}()
	s, err := Dial(t.Context(), dialHost(t), "b1", port)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if b, err := io.ReadAll(s); err != nil || string(b) != "hello" {
		t.Errorf("the server's half: %q, %v", b, err)
	}
	sent := strings.Repeat("after the server's end ", 10_000)
	if _, err := io.WriteString(s, sent); err != nil {
		t.Error(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Error(err)
	}
	if b := <-got; b != sent {
		t.Errorf("the server read %d bytes, want %d", len(b), len(sent))
	}
	cut, err := Dial(t.Context(), dialHost(t), "b1", port)
	if err != nil {
		t.Fatal(err)
	}
	defer cut.Close()
	if _, err := io.WriteString(cut, "x"); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(cut); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix("hello", string(b)) {
		t.Errorf("a reset: %q, %v; want io.ErrUnexpectedEOF", b, err)
	}
}

func TestDialOfAPortWhereNothingListens(t *testing.T) {
	l, port := listenOn(t, "127.0.0.1:0")
	_ = l.Close()
	if _, err := Dial(t.Context(), dialHost(t), "b1", port); err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("got %v, want an error that names the port", err)
	}
}

// A client that goes away without a word takes the connection in the container with it.
func TestClosedStreamEndsTheConnection(t *testing.T) {
	l, port := listenOn(t, "127.0.0.1:0")
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
		ended <- err
	}()
	s, err := Dial(t.Context(), dialHost(t), "b1", port)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("control: ended by itself: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = s.Close()
	if err := <-ended; err == nil {
		t.Error("a byte came")
	}
}

// Whoever made a one-shot box may have died: it ends when its command does not come.
func TestBoxWithoutItsCommandEnds(t *testing.T) {
	made := func(within time.Duration) (*Keeper, string, *fakeVM) {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		vm := &fakeVM{}
		k := &Keeper{Host: vm.host(t), ID: "b2", Nonce: "n", Proxy: l, LaunchWithin: within}
		socket := t.TempDir() + "/s"
		if err := k.Serve(t.Context(), socket); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.Gone)
		return k, socket, vm
	}
	late, _, vm := made(20 * time.Millisecond)
	<-late.done
	if len(vm.ran) == 0 || !strings.Contains(strings.Join(vm.ran[0], " "), "podman rm") {
		t.Errorf("it ran %q, want its end", vm.ran)
	}
	k2, socket, _ := made(time.Hour)
	code, out, _ := runIn(t, socket, wire.Exec{Argv: []string{"/bin/sh", "-c", "echo in time"}, Dir: "/", Launch: true}, "", nil)
	if code != 0 || out != "in time\n" {
		t.Errorf("control: %d %q", code, out)
	}
	<-k2.done // it was launched with the box, and has ended
}
