package main

import (
	"fmt"
	"os/exec"
	"time"
)

// starts measures how long it takes until true has run in a box, against the same in a bubblewrap sandbox.
type starts struct {
	Wall, CPU         series // fy run with the supervisor up, × bwrap, one value a round
	Fy, Bwrap         series // milliseconds, one value a run
	FyCPU, BwrapCPU   float64
	Cold              series // fy run that starts the supervisor, ms more than one that does not
	Supervisor        series // ms that a verb takes longer when it starts the supervisor
	IdleRSS           int    // KiB
	withoutBubblewrap string
}

var bubblewrap = []string{"bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"}

// timed runs a command and returns how long it took and the processor time of it and of what it left.
func timed(c *exec.Cmd) (wall, cpu time.Duration, err error) {
	begin := time.Now()
	err = c.Run()
	wall = time.Since(begin)
	if c.ProcessState != nil {
		cpu = spent(c.ProcessState)
	}
	return wall, cpu + reapOrphans(), err
}

const runsInRound = 10

func measureStarts(in *install, rounds int) (*starts, error) {
	if err := adoptOrphans(); err != nil {
		return nil, err
	}
	s := &starts{}
	if _, err := exec.LookPath(bubblewrap[0]); err != nil {
		s.withoutBubblewrap = "bwrap is not installed"
	} else if out, err := exec.Command(bubblewrap[0], bubblewrap[1:]...).CombinedOutput(); err != nil {
		s.withoutBubblewrap = fmt.Sprintf("bwrap does not run here: %s", out)
	}
	defer in.stop()
	if _, err := in.run("run", "--", "true"); err != nil {
		return nil, err
	}
	pid, err := in.supervisor()
	if err != nil {
		return nil, err
	}
	for range rounds {
		var wall [2]series
		var cpu [2]time.Duration
		before, err := supervisorCPU(pid)
		if err != nil {
			return nil, err
		}
		for range runsInRound {
			for _, who := range mirrored(2) {
				c := in.command("run", "-q", "--", "true")
				if who == 1 {
					if s.withoutBubblewrap != "" {
						continue
					}
					c = exec.Command(bubblewrap[0], bubblewrap[1:]...)
				}
				w, u, err := timed(c)
				if err != nil {
					return nil, fmt.Errorf("%v: %w", c.Args, err)
				}
				wall[who] = append(wall[who], w.Seconds()*1e3)
				cpu[who] += u
			}
		}
		settle(pid)
		after, err := supervisorCPU(pid)
		if err != nil {
			return nil, err
		}
		cpu[0] += after - before
		s.Fy, s.Bwrap = append(s.Fy, wall[0]...), append(s.Bwrap, wall[1]...)
		n := float64(len(wall[0]))
		s.FyCPU += cpu[0].Seconds() * 1e3 / n / float64(rounds)
		s.BwrapCPU += cpu[1].Seconds() * 1e3 / n / float64(rounds)
		if s.withoutBubblewrap == "" {
			s.Wall = append(s.Wall, wall[0].median()/wall[1].median())
			s.CPU = append(s.CPU, cpu[0].Seconds()/cpu[1].Seconds())
		}
	}
	if s.IdleRSS, err = memory(pid, "VmRSS"); err != nil {
		return nil, err
	}
	for range rounds {
		var up, cold series
		for range 3 {
			w, _, err := timed(in.command("run", "-q", "--", "true"))
			if err != nil {
				return nil, err
			}
			up = append(up, w.Seconds()*1e3)
			if err := in.stop(); err != nil {
				return nil, err
			}
			if w, _, err = timed(in.command("run", "-q", "--", "true")); err != nil {
				return nil, err
			}
			cold = append(cold, w.Seconds()*1e3)
		}
		s.Cold = append(s.Cold, cold.median()-up.median())
	}
	return s, s.measureSupervisor(in, rounds)
}

// measureSupervisor measures how long a verb takes that starts a supervisor, more than the same verb with one that runs.
func (s *starts) measureSupervisor(in *install, rounds int) error {
	for range rounds {
		if err := in.stop(); err != nil {
			return err
		}
		cold, _, err := timed(in.command("grants"))
		if err != nil {
			return err
		}
		up, _, err := timed(in.command("grants"))
		if err != nil {
			return err
		}
		s.Supervisor = append(s.Supervisor, (cold-up).Seconds()*1e3)
	}
	return nil
}

// supervisorCPU is the processor time of a supervisor and of the boxes that it made and that are gone.
func supervisorCPU(pid int) (time.Duration, error) {
	own, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	boxes, err := childrenCPU(pid)
	return own + boxes, err
}

// settle waits until what the last box left has ended.
func settle(pid int) {
	last := time.Duration(-1)
	for range 50 {
		time.Sleep(20 * time.Millisecond)
		now, err := childrenCPU(pid)
		if err != nil || now == last {
			return
		}
		last = now
	}
}
