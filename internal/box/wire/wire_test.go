package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

func pair(t *testing.T) (*Conn, *Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]*Conn
	for i, fd := range fds {
		c, err := FromFile(os.NewFile(uintptr(fd), "pair"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		out[i] = c
	}
	return out[0], out[1]
}

func TestMessageAndDescriptorsArriveTogether(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		a.Send(&Message{Op: "one"})
		a.Send(&Message{Op: "two", Exec: &Exec{Argv: []string{"x"}}}, w)
		w.Close()
		a.Close()
	}()
	m, files, err := b.Recv()
	if err != nil || m.Op != "one" || len(files) != 0 {
		t.Fatalf("got %+v %d %v", m, len(files), err)
	}
	m, files, err = b.Recv()
	if err != nil || m.Op != "two" || len(files) != 1 || m.Exec.Argv[0] != "x" {
		t.Fatalf("got %+v %d %v", m, len(files), err)
	}
	if _, err := files[0].WriteString("hi"); err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	if got, _ := io.ReadAll(r); string(got) != "hi" {
		t.Fatalf("through the descriptor: %q", got)
	}
	if _, _, err := b.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v, want EOF", err)
	}
}

func TestOversizedMessageIsRefusedBeforeItIsRead(t *testing.T) {
	a, b := pair(t)
	go func() {
		var u *net.UnixConn = a.Unix()
		u.Write(binary.BigEndian.AppendUint32(nil, MaxMessage+1))
	}()
	if _, _, err := b.Recv(); err == nil {
		t.Fatal("a length over the bound was accepted")
	}
}

func FuzzRecvNeverPanics(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x05null\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := pair(t)
		go func() { a.Unix().Write(in); a.Close() }()
		for {
			_, files, err := b.Recv()
			if err != nil {
				return
			}
			for _, f := range files {
				f.Close()
			}
		}
	})
}
