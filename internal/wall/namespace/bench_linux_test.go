package namespace

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"foldyard/internal/box/wire"
)

// BenchmarkBox makes a box, runs a program in it and ends it.
func BenchmarkBox(b *testing.B) {
	p, err := OpenProgram("/proc/self/exe")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	dir := b.TempDir()
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 65534, 65534
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	spec := Spec{ID: "bench", Nonce: "n", Repo: dir, User: User{Name: "dev", UID: uid, GID: gid, Home: "/home/dev", Shell: "/bin/sh"}}
	for b.Loop() {
		socket := filepath.Join(dir, "box.sock")
		links, err := Start(context.Background(), p, nil, spec, socket, nil)
		if err != nil {
			b.Fatal(err)
		}
		c := NewClient(socket, spec.Nonce)
		s, err := c.Exec(context.Background(), wire.Exec{Argv: []string{"/bin/true"}, Dir: "/", Launch: true}, null, null, null)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Wait(); err != nil {
			b.Fatal(err)
		}
		links.Close()
		os.Remove(socket)
	}
}
