package lima

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"foldyard/internal/machine"
	"foldyard/internal/machine/machinetest"
)

func labSpec() machine.Spec {
	s := testSpec()
	s.Share = ""
	return s
}

func TestSuite(t *testing.T) {
	l := newLab(t)
	changed := labSpec()
	changed.Band, changed.DNS, changed.SSH = 41200, 41201, 41390
	machinetest.Run(t, machinetest.Suite{
		Machine: l.d, Spec: labSpec(), Changed: changed, Start: time.Minute,
		Crash: func(t *testing.T) {
			kill(t, l.d)
			for len(l.pids()) > 0 {
				time.Sleep(5 * time.Millisecond)
			}
		},
	})
	if n := l.pids(); len(n) > 0 {
		t.Errorf("%d processes are left", len(n))
	}
}

// What a machine is wanted to be is applied by the next Up, which says so and stops it first.
func TestChangeIsAppliedAfterSayingSo(t *testing.T) {
	for name, change := range map[string]func(*machine.Spec){
		"the band": func(s *machine.Spec) { s.Band, s.DNS, s.SSH = 41200, 41201, 41390 },
		"firewall": func(s *machine.Spec) { s.Firewall = false },
		"the CA": func(s *machine.Spec) {
			s.CA = "-----BEGIN CERTIFICATE-----\nMIIBOTHER\n-----END CERTIFICATE-----\n"
		},
		"memory":        func(s *machine.Spec) { s.Memory = 4 << 30 },
		"a larger disk": func(s *machine.Spec) { s.Disk = 80 << 30 },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			first, _, err := l.up(labSpec())
			if err != nil {
				t.Fatal(err)
			}
			spec := labSpec()
			change(&spec)
			second, said, err := l.up(spec)
			if err != nil {
				t.Fatal(err)
			}
			if second.BootID == first.BootID {
				t.Error("it was not started anew")
			}
			if len(said) == 0 || !strings.Contains(said[0], "made otherwise") {
				t.Errorf("said %q, want first that it is stopped", said)
			}
			config, _, err := l.d.p.render(spec)
			if err != nil || !l.d.recorded(config) {
				t.Errorf("what is wanted was not recorded, %v", err)
			}
			if third, said, err := l.up(spec); err != nil || third != second || len(said) > 0 {
				t.Errorf("and again: %+v, said %q, %v", third, said, err)
			}
		})
	}
}

// A script of another fy in the recorded configuration is replaced, whatever the machine says of itself.
func TestBootScriptOfAnotherFyIsReplaced(t *testing.T) {
	l := newLab(t)
	first, _, err := l.up(labSpec())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(l.d.configPath())
	if err != nil {
		t.Fatal(err)
	}
	old := strings.Replace(string(b), "set -eu", "set -e", 1)
	if err := os.WriteFile(l.d.configPath(), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	second, said, err := l.up(labSpec())
	if err != nil || second.BootID == first.BootID || len(said) == 0 {
		t.Errorf("%+v, said %q, %v; want another boot", second, said, err)
	}
	if now, err := os.ReadFile(l.d.configPath()); err != nil || string(now) != string(b) {
		t.Errorf("the script of the other fy stays, %v", err)
	}
}

// A disk cannot become another image's, nor smaller: that is said before anything is stopped.
func TestWhatCannotBeChangedIsRefusedAndNothingStopped(t *testing.T) {
	l := newLab(t)
	if _, _, err := l.up(labSpec()); err != nil {
		t.Fatal(err)
	}
	before := l.calls()
	for name, change := range map[string]func(*machine.Spec){
		"another image":  func(s *machine.Spec) { s.Image = "https://images.example.com/other.qcow2" },
		"another digest": func(s *machine.Spec) { s.Digest = "sha256:" + strings.Repeat("0b", 32) },
		"another kernel": func(s *machine.Spec) { s.Kernel = "/vm/vmlinuz" },
		"a smaller disk": func(s *machine.Spec) { s.Disk = 10 << 30 },
	} {
		spec := labSpec()
		change(&spec)
		_, _, err := l.up(spec)
		var e *machine.Error
		if !errors.As(err, &e) || !strings.Contains(e.Fix, "fy machine rm") {
			t.Errorf("%s: %v, want a refusal that names fy machine rm", name, err)
		}
	}
	if l.calls() != before || len(l.pids()) != 2 {
		t.Errorf("limactl was told %q", strings.TrimPrefix(l.calls(), before))
	}
}

// Each process of the machine may be killed by itself.
func TestKilledProcessIsMended(t *testing.T) {
	for _, name := range []string{"qemu", "ha"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			first, _, err := l.up(labSpec())
			if err != nil {
				t.Fatal(err)
			}
			f := fake{dir: l.d.dir()}
			victim := f.pid(name)
			if err := unix.Kill(victim, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for alive(victim) {
				time.Sleep(5 * time.Millisecond)
			}
			if st, err := l.d.State(t.Context()); err != nil || st.State != machine.Broken || st.Why == "" {
				t.Errorf("state %+v, %v; want broken, and why", st, err)
			}
			second, said, err := l.up(labSpec())
			if err != nil || second.BootID == first.BootID || len(said) == 0 {
				t.Errorf("up: %+v, said %q, %v", second, said, err)
			}
			if n := len(l.pids()); n != 2 {
				t.Errorf("%d processes run, want the two of the new start", n)
			}
		})
	}
}

// limactl start may be killed while it waits: what it started is found, and ended or used.
func TestInterruptedStartIsResumed(t *testing.T) {
	l := newLab(t)
	l.turn(knobHang, "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := l.d.Up(ctx, labSpec(), nil)
		done <- err
	}()
	for len(l.pids()) < 2 {
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err == nil {
		t.Fatal("an interrupted start is no error")
	}
	l.turnBack(knobHang)
	if _, _, err := l.up(labSpec()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.pids()); n != 2 {
		t.Errorf("%d processes run, want 2", n)
	}
}

// fy machine rm leaves no process and no file, whatever state it finds.
func TestRemoveEndsEverything(t *testing.T) {
	for name, spoil := range map[string]func(*lab){
		"a running one":       func(*lab) {},
		"limactl was killed":  func(l *lab) { _ = unix.Kill(fake{dir: l.d.dir()}.pid("ha"), unix.SIGKILL) },
		"QEMU was killed":     func(l *lab) { _ = unix.Kill(fake{dir: l.d.dir()}.pid("qemu"), unix.SIGKILL) },
		"its config is gone":  func(l *lab) { _ = os.Remove(l.d.configPath()) },
		"limactl cannot list": func(l *lab) { l.turn(knobNoList, "") },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			if _, _, err := l.up(labSpec()); err != nil {
				t.Fatal(err)
			}
			if len(l.pids()) != 2 {
				t.Fatal("control: nothing runs")
			}
			spoil(l)
			if err := l.d.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := l.pids(); len(n) > 0 {
				t.Errorf("processes %v are left", n)
			}
			if _, err := os.Lstat(l.d.dir()); !os.IsNotExist(err) {
				t.Errorf("its directory is left: %v", err)
			}
		})
	}
}

// A process id that is another program's by now is not killed.
func TestStrangerWithAnOldProcessIDIsLeftAlone(t *testing.T) {
	l := newLab(t)
	if err := os.MkdirAll(l.d.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill() // it may have been killed
		_ = stranger.Wait()
	})
	b := []byte(strconv.Itoa(stranger.Process.Pid))
	if err := os.WriteFile(filepath.Join(l.d.dir(), "qemu.pid"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.d.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !alive(stranger.Process.Pid) {
		t.Error("the stranger was killed")
	}
}

// limactl's word is not the machine's: one that is slow to answer limactl, and answers us, is left running.
func TestSlowHostAgentIsNoReasonToStop(t *testing.T) {
	l := newLab(t)
	first, _, err := l.up(labSpec())
	if err != nil {
		t.Fatal(err)
	}
	l.turn(knobSlowInfo, "")
	if again, said, err := l.up(labSpec()); err != nil || again != first || len(said) > 0 {
		t.Errorf("%+v, said %q, %v; want the same boot", again, said, err)
	}
	l.turn(knobNoConn, "") // control: it does not answer us either
	if st, err := l.d.State(t.Context()); err != nil || st.State != machine.Broken {
		t.Errorf("state %+v, %v; want broken", st, err)
	}
}

// A limactl that fails for a moment must not cost the disk.
func TestDiskOfAMachineThatCannotBeListedStays(t *testing.T) {
	l := newLab(t)
	if _, _, err := l.up(labSpec()); err != nil {
		t.Fatal(err)
	}
	l.turn(knobNoList, "")
	_, _, err := l.up(labSpec())
	var e *machine.Error
	if !errors.As(err, &e) || !strings.Contains(e.Fix, "fy machine rm") {
		t.Errorf("%v, want a broken machine explained", err)
	}
	if _, err := os.Stat(filepath.Join(l.d.dir(), "disk")); err != nil {
		t.Errorf("its disk: %v", err)
	}
	l.turnBack(knobNoList)
	if _, _, err := l.up(labSpec()); err != nil {
		t.Errorf("control: %v", err)
	}
}

// A create that died half way leaves what the next Up removes.
func TestHalfMadeInstanceIsMadeAnew(t *testing.T) {
	l := newLab(t)
	l.turn(knobCrash, "")
	if _, _, err := l.up(labSpec()); err == nil {
		t.Fatal("a limactl that was killed is no error")
	}
	if st, err := l.d.State(t.Context()); err != nil || st.State != machine.Absent {
		t.Errorf("it left %+v, %v", st, err)
	}
	l.turnBack(knobCrash)
	if _, _, err := l.up(labSpec()); err != nil {
		t.Errorf("control: %v", err)
	}
}

// fy uninstall leaves no machine of ours, with a limactl or without, and none of somebody else's gone.
func TestRemoveAll(t *testing.T) {
	for _, with := range []bool{true, false} {
		l := newLab(t)
		if _, _, err := l.up(labSpec()); err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(l.d.opt.Home, "theirs", "lima.yaml")
		if err := os.MkdirAll(filepath.Dir(other), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(other, []byte("images: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		opt := l.d.opt
		opt.Instance = ""
		if !with {
			opt.Getenv = func(string) string { return "" }
		}
		if len(l.pids()) != 2 {
			t.Fatal("control: nothing runs")
		}
		if err := RemoveAll(t.Context(), opt); err != nil {
			t.Errorf("with limactl %t: %v", with, err)
		}
		if _, err := os.Stat(l.d.dir()); !os.IsNotExist(err) || len(l.pids()) > 0 {
			t.Errorf("with limactl %t: processes %v, directory %v", with, l.pids(), err)
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	}
}

// A limactl that hangs holds up no end: what runs from the instance is killed.
func TestStopEndsThoughLimactlHangs(t *testing.T) {
	l := newLab(t)
	if _, _, err := l.up(labSpec()); err != nil {
		t.Fatal(err)
	}
	l.turn(knobNoStop, "")
	l.d.patience = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.d.Stop(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("stop: %v, %v", err, ctx.Err())
	}
	if n := l.pids(); len(n) > 0 {
		t.Errorf("processes %v go on", n)
	}
	l.turnBack(knobNoStop)
	l.d.patience = stopTimeout
	if _, _, err := l.up(labSpec()); err != nil {
		t.Errorf("control: %v", err)
	}
}
