package namespace

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reserved prepares a keeper for the user of spec.
func reserved(t *testing.T, spec Spec) *Reserve {
	t.Helper()
	r, err := Prepare(testProgram(t), spec.User)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// ends waits until a process is gone.
func ends(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d goes on", pid)
}

func TestReserve(t *testing.T) {
	_, spec := testBox(t, nil) // what a box is like, and that there can be one
	other := spec.User
	other.UID++
	for _, c := range []struct {
		name   string
		change func(*Reserve, *Spec)
		used   bool
	}{
		{"a box is made of it", func(*Reserve, *Spec) {}, true},
		{"one for another user is let go", func(r *Reserve, _ *Spec) { r.user = other }, false},
		{"one without rules is let go", func(r *Reserve, _ *Spec) { r.ports = true }, false},
		{"one that died is replaced", func(r *Reserve, _ *Spec) {
			if err := unix.Kill(r.pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			ends(t, r.pid)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spec
			s.ID = "reserved"
			socket := filepath.Join(t.TempDir(), "s")
			r := reserved(t, s)
			pid := r.pid
			c.change(r, &s)
			links, err := Start(t.Context(), testProgram(t), r, s, socket, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer links.Close()
			box := NewClient(socket, s.Nonce)
			f, err := box.Facts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if used := f.Keeper == pid; used != c.used {
				t.Errorf("the reserve is used: %v, want %v", used, c.used)
			}
			if out, code := in(t, box, s, "echo in; pwd"); code != 0 || out != "in\n"+s.Repo+"\n" {
				t.Errorf("it ran %q, status %d", out, code)
			}
			if err := box.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			ends(t, f.Keeper)
			ends(t, pid)
		})
	}
}

// A box from a reserve is constructed as any other: its evidence must hold for both.
func TestReserveMakesTheSameBox(t *testing.T) {
	plain, spec := testBox(t, nil)
	want, err := plain.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	links, err := Start(t.Context(), testProgram(t), reserved(t, spec), spec, socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	box := NewClient(socket, spec.Nonce)
	defer box.Stop(t.Context())
	got, err := box.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != want.Digest || got.Rules != want.Rules {
		t.Errorf("digest %s, rules %s; want %s, %s", got.Digest, got.Rules, want.Digest, want.Rules)
	}
}

// What is in reserve holds nothing open for good: it ends with whoever holds it.
func TestReserveEnds(t *testing.T) {
	_, spec := testBox(t, nil)
	r := reserved(t, spec)
	if !r.waits() {
		t.Error("a fresh one does not wait")
	}
	r.Close()
	ends(t, r.pid)
}
