package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// install is an fy with a home and a project of its own.
type install struct {
	fy   string
	home string
	dir  string // the project
}

// newInstall makes home and project below dir. config is the operator's config.toml, "" for none.
func newInstall(fy, dir, config string) (*install, error) {
	in := &install{fy: fy, home: filepath.Join(dir, "home"), dir: filepath.Join(dir, "project")}
	for _, d := range []string{in.home, filepath.Join(in.dir, ".git")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if config == "" {
		return in, nil
	}
	return in, os.WriteFile(filepath.Join(in.home, "config.toml"), []byte(config), 0o600)
}

func (in *install) command(args ...string) *exec.Cmd {
	c := exec.Command(in.fy, args...) //nolint:noctx // a run of make bench is stopped by hand
	c.Dir = in.dir
	c.Env = []string{"FOLDYARD_HOME=" + in.home, "HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH"), "TERM=dumb"}
	return c
}

// run runs fy and returns what it printed; its words are the error's when it fails.
func (in *install) run(args ...string) (string, error) { return in.runWith(nil, args...) }

func (in *install) runWith(stdin io.Reader, args ...string) (string, error) {
	c := in.command(args...)
	c.Stdin = stdin
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("fy %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return out.String(), nil
}

// supervisor is the pid of the project's supervisor.
func (in *install) supervisor() (int, error) {
	text, err := in.run("supervisor", "status", "--json")
	if err != nil {
		return 0, err
	}
	var st struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		return 0, err
	}
	if st.PID == 0 {
		return 0, errors.New("fy supervisor status names no pid")
	}
	return st.PID, nil
}

// stop ends the supervisor and waits until its process is gone.
func (in *install) stop() error {
	pid, err := in.supervisor()
	if err != nil {
		return nil //nolint:nilerr // none runs
	}
	if _, err := in.run("supervisor", "stop"); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); alive(pid); time.Sleep(time.Millisecond) {
		reapOrphans()
		if time.Now().After(end) {
			return fmt.Errorf("supervisor %d does not end", pid)
		}
	}
	return nil
}

func alive(pid int) bool {
	_, err := cpuOf(pid)
	return err == nil
}
