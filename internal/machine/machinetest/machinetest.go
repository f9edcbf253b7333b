// Package machinetest is the suite that every machine.Machine passes, and an
// in-memory Fake that passes it too. It may not know one backend from another.
package machinetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"foldyard/internal/machine"
)

// Suite is what the tests need of a backend.
type Suite struct {
	Machine machine.Machine
	Spec    machine.Spec
	// Crash ends the machine's processes as a kill -9 would. Nil: not tried.
	Crash func(t *testing.T)
	// Changed is another Spec that the machine must be made anew for. Zero: the backend cannot.
	Changed machine.Spec
	// Start bounds one start.
	Start time.Duration
}

// Run runs the suite. The machine must be absent, and is again at the end.
func Run(t *testing.T, s Suite) {
	m := s.Machine
	state := func(want machine.State) {
		t.Helper()
		st, err := m.State(t.Context())
		if err != nil {
			t.Fatalf("state: %v", err)
		}
		if st.State != want {
			t.Fatalf("state %s (%s), want %s", st.State, st.Why, want)
		}
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	up := func(spec machine.Spec) (machine.Report, []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), s.Start)
		defer cancel()
		var said []string
		begin := time.Now()
		r, err := m.Up(ctx, spec, func(line string) {
			said = append(said, line)
			t.Logf("%5.1fs %s", time.Since(begin).Seconds(), line)
		})
		must("up", err)
		return r, said
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		must("remove at the end", m.Remove(ctx))
	})

	state(machine.Absent)
	must("stop what is not there", m.Stop(t.Context()))
	must("remove what is not there", m.Remove(t.Context()))
	if _, err := m.Run(t.Context(), machine.Command{Argv: []string{"true"}}); !errors.Is(err, machine.ErrNotRunning) {
		t.Fatalf("run in what is not there: %v, want ErrNotRunning", err)
	}

	// Interrupted before it is half done, it leaves nothing that the next one stumbles over.
	cut, cancel := context.WithCancel(t.Context())
	_, err := m.Up(cut, s.Spec, func(string) { cancel() })
	cancel()
	if err == nil {
		t.Log("was up before it could be interrupted")
	}

	first, said := up(s.Spec)
	if first.BootID == "" || len(said) == 0 && err != nil {
		t.Errorf("up reports %+v, and said %q", first, said)
	}
	state(machine.Running)
	again, _ := up(s.Spec)
	if again != first {
		t.Errorf("up again reports %+v, want the same boot %+v", again, first)
	}

	out, err := m.Run(t.Context(), machine.Command{Argv: []string{"echo", "a  b", "$HOME", "'", "*"}})
	must("echo", err)
	if got := string(out); got != "a  b $HOME ' *\n" {
		t.Errorf("words arrive as %q", got)
	}
	out, err = m.Run(t.Context(), machine.Command{Argv: []string{"cat"}, Stdin: strings.NewReader("through\x00it\n")})
	must("cat", err)
	if string(out) != "through\x00it\n" {
		t.Errorf("standard input arrives as %q", out)
	}
	var exit *machine.ExitError
	if _, err := m.Run(t.Context(), machine.Command{Argv: []string{"sh", "-c", "echo no >&2; exit 7"}}); !errors.As(err, &exit) || exit.Code != 7 || exit.Stderr != "no" {
		t.Errorf("exit 7: %v", err)
	}
	if argv := m.Argv(machine.Command{Argv: []string{"true"}}); len(argv) == 0 {
		t.Error("no command line")
	}

	if s.Crash != nil {
		s.Crash(t)
		if st, err := m.State(t.Context()); err != nil || st.State == machine.Running {
			t.Errorf("after a crash: %+v, %v", st, err)
		}
		r, _ := up(s.Spec)
		if r.BootID == first.BootID {
			t.Error("after a crash: the same boot")
		}
		first = r
	}

	if s.Changed != (machine.Spec{}) {
		changed, said := up(s.Changed)
		if changed.BootID == first.BootID {
			t.Error("a machine of another kind: the same boot")
		}
		if len(said) == 0 {
			t.Error("a running machine was stopped without a word")
		}
	}

	must("stop", m.Stop(t.Context()))
	state(machine.Stopped)
	must("stop again", m.Stop(t.Context()))
	if _, err := m.Run(t.Context(), machine.Command{Argv: []string{"true"}}); !errors.Is(err, machine.ErrNotRunning) {
		t.Errorf("run in what is stopped: %v, want ErrNotRunning", err)
	}
	must("remove", m.Remove(t.Context()))
	state(machine.Absent)
}
