package lima

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// environment is what limactl gets: nothing of the operator's but what it needs to find programs and itself.
func (d *Driver) environment() []string {
	env := []string{"LIMA_HOME=" + d.opt.Home}
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "QEMU_SYSTEM_X86_64", "QEMU_SYSTEM_AARCH64"} {
		if v := d.opt.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	if d.opt.Cache != "" { // Linux; elsewhere no variable moves it
		env = append(env, "XDG_CACHE_HOME="+d.opt.Cache)
	}
	return append(env, "LC_ALL=C", "LIMA_SSH_OVER_VSOCK=false")
}

func (d *Driver) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.limactl, args...)
	cmd.Env = d.environment()
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// say drops what nobody wants to hear.
func sayer(say func(string)) func(string) {
	if say == nil {
		return func(string) {}
	}
	return say
}

// limactl runs one of its verbs and passes on what it logs, without colours.
func (d *Driver) run(ctx context.Context, say func(string), args ...string) error {
	cmd := d.command(ctx, append([]string{"--tty=false", "--log-format=json"}, args...)...)
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = io.Discard, pw
	var last, fault string
	done := make(chan struct{})
	go func() {
		defer close(done)
		dec := json.NewDecoder(pr)
		for {
			var line struct{ Level, Msg string }
			if err := dec.Decode(&line); err != nil {
				_, _ = io.Copy(io.Discard, pr) // it must not block
				return
			}
			last = line.Msg
			if line.Level == "fatal" || line.Level == "error" {
				fault = line.Msg
			}
			msg := strings.TrimPrefix(line.Msg, "[hostagent] ")
			if line.Level == "info" && len(msg) < 200 && !strings.HasPrefix(msg, "Time sync") && !strings.HasPrefix(msg, "READY.") { // it names a verb that does not find this LIMA_HOME
				say(msg)
			}
		}
	}()
	err := cmd.Run()
	_ = pw.Close() // never fails
	<-done
	if err == nil {
		return nil
	}
	if fault == "" {
		fault = last
	}
	return fmt.Errorf("limactl %s: %w: %s", args[0], err, clip(fault))
}

func clip(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > 600 {
		s = s[:600] + "…"
	}
	return s
}

// listed is what limactl says of the instance.
type listed struct {
	Status       string
	Errors       []string
	HostAgentPID int
	DriverPID    int
}

func (d *Driver) list(ctx context.Context) (listed, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := d.command(ctx, "--tty=false", "list", "--json", d.opt.Instance).Output()
	if err != nil {
		return listed{}, fmt.Errorf("limactl list: %w", err)
	}
	var raw struct {
		Status       string   `json:"status"`
		HostAgentPID int      `json:"hostAgentPID"`
		DriverPID    int      `json:"driverPID"`
		Errors       []string `json:"errors"`
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&raw); err != nil {
		return listed{}, fmt.Errorf("limactl list: %w", err)
	}
	return listed{raw.Status, raw.Errors, raw.HostAgentPID, raw.DriverPID}, nil
}
