// Command tour shows the main job of fy on real input, in a minute: a box, a
// request that is refused and how to permit it, the grant, a client that knows
// of no proxy, a direct way out that is none, the proof and the log.
//
//	tour [-own] FY     the tour, with the fy at that path; -own asks no registry
//	tour get URL       what the tour runs in the box: a client without proxy settings
//	tour dial ADDR     the same, for a bare connection
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "get":
		err = get(args[1])
	case len(args) == 2 && args[0] == "dial":
		err = dial(args[1])
	case len(args) == 1:
		err = tour(args[0], false)
	case len(args) == 2 && args[0] == "-own":
		err = tour(args[1], true)
	default:
		err = fmt.Errorf("usage: tour [-own] FY")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

// get fetches url with a client that knows of no proxy and prints the answer's
// beginning.
func get(url string) error {
	c := &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 2000))
	if err != nil {
		return err
	}
	fmt.Println(resp.Status)
	for i, line := range strings.Split(strings.TrimSpace(string(body)), "\n") {
		if i == 4 {
			fmt.Println("…")
			break
		}
		fmt.Println(line)
	}
	if resp.StatusCode >= 400 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

func dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("connected to", addr)
	return nil
}

// guide runs fy in a project of its own and prints what it does.
type guide struct {
	ctx     context.Context //nolint:containedctx // one command, one context
	fy, dir string
	given   string // fy as the caller wrote it
	own     bool   // no registry is asked
	direct  string
	env     []string
	n       int
}

func tour(fy string, own bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop() // whatever happens, what is left behind is taken away below
	given := fy
	fy, err := filepath.Abs(fy)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fy-tour-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g := &guide{ctx: ctx, fy: fy, given: given, dir: dir, own: own}
	for _, d := range []string{"repo", "state", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "HOME" && name != "FOLDYARD_HOME" {
			g.env = append(g.env, v)
		}
	}
	probes := os.Getenv("FY_PROBE_ADDRS")
	if probes == "" {
		// Documentation addresses: nothing real is asked, and a hole would show.
		probes = "192.0.2.1,2001:db8::1"
	}
	first, _, _ := strings.Cut(probes, ",")
	g.direct = net.JoinHostPort(first, "443")
	g.env = append(g.env, "HOME="+filepath.Join(dir, "home"), "FOLDYARD_HOME="+filepath.Join(dir, "state"), "FY_PROBE_ADDRS="+probes)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	client, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "repo", "client"), client, 0o755); err != nil {
		return err
	}
	defer g.quiet("supervisor", "stop")
	defer g.quiet("down")
	return g.walk()
}

func (g *guide) walk() error {
	what, err := g.destination()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(g.dir, "repo", "foldyard.toml"), []byte("[project]\nname = \"tour\"\n"), 0o600); err != nil {
		return err
	}
	if _, err := g.run(0, "config", "adopt"); err != nil {
		return err
	}
	g.say("A box. The repo is in it, the network is not.")
	if _, err := g.run(0, "up"); err != nil {
		return err
	}

	g.say("A program in the box asks for %s. Nobody granted that, so it is refused, with the command that permits it.", what.name)
	out, err := g.run(-1, "exec", "--", "./client", "get", what.url)
	if err != nil {
		return err
	}
	if !strings.Contains(out, "fy allow "+what.grant[0]) {
		return fmt.Errorf("the refusal does not name its fix")
	}

	inward := ""
	if len(what.grant) > 1 {
		inward = ", and that it leads to this computer, which no name may by itself"
	}
	g.say("The operator grants it, here on the host%s. Nothing restarts.", inward)
	if _, err := g.run(0, append([]string{"allow"}, what.grant...)...); err != nil {
		return err
	}
	g.say("The same request works. The client is a static program that ignores proxy variables: it is captured all the same.")
	if _, err := g.run(0, "exec", "--", "./client", "get", what.url); err != nil {
		return err
	}

	g.say("A direct connection to a raw address is refused at once: there is no route but fy.")
	if _, err := g.run(-1, "exec", "--", "./client", "dial", g.direct); err != nil {
		return err
	}
	g.say("Every one of these is in the log.")
	if err := g.await(g.direct); err != nil {
		return err
	}
	if _, err = g.run(0, "log"); err != nil {
		return err
	}

	g.say("Do not believe it: probes inside the box try to get out, and the host looks on.")
	if _, err = g.run(0, "verify"); err != nil {
		return err
	}
	g.say("So the label is earned, for this box and as long as it is built like this.")
	if _, err = g.run(0, "status"); err != nil {
		return err
	}
	fmt.Printf("\nThat was it. Your own project: cd there, then %s run -- COMMAND\n", g.given)
	return nil
}

func (g *guide) say(format string, args ...any) {
	g.n++
	fmt.Printf("\n%d. %s\n", g.n, fmt.Sprintf(format, args...))
}

// run prints and runs one fy command and wants its exit code to be want; -1
// stands for any but 0.
func (g *guide) run(want int, args ...string) (string, error) {
	fmt.Printf("\n   $ fy %s\n", strings.Join(args, " "))
	ctx, cancel := context.WithTimeout(g.ctx, 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, g.fy, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = filepath.Join(g.dir, "repo"), g.env, &out, &out
	err := cmd.Run()
	show(out.String())
	got := cmd.ProcessState.ExitCode()
	if got != want && !(want == -1 && got > 0) {
		return "", fmt.Errorf("fy %s: exit code %d (%w)", strings.Join(args, " "), got, err)
	}
	return out.String(), nil
}

// await waits until the log has a refusal of target: refused packets are
// counted by the kernel, and read once a second.
func (g *guide) await(target string) error {
	ctx, cancel := context.WithTimeout(g.ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		cmd := exec.CommandContext(ctx, g.fy, "log", "--denied")
		cmd.Dir, cmd.Env = filepath.Join(g.dir, "repo"), g.env
		out, err := cmd.Output()
		if err == nil && bytes.Contains(out, []byte(target)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the log has no refusal of %s: %w", target, ctx.Err())
		case <-tick.C:
		}
	}
}

// show prints a command's output, and of many probes that passed only the first.
func show(text string) {
	const most = 10
	passed := 0
	more := func() {
		if passed > most {
			fmt.Printf("   PASS      … and %d more\n", passed-most)
		}
		passed = 0
	}
	for line := range strings.Lines(strings.TrimSuffix(text, "\n") + "\n") {
		if strings.HasPrefix(line, "PASS ") {
			if passed++; passed > most {
				continue
			}
		} else if !strings.HasPrefix(line, "N/A ") {
			more()
		}
		fmt.Print("   ", line)
	}
	more()
}

func (g *guide) quiet(args ...string) {
	cmd := exec.Command(g.fy, args...)
	cmd.Dir, cmd.Env = filepath.Join(g.dir, "repo"), g.env
	_ = cmd.Run() // there may be nothing to stop
}
