// Package cli is the command line: one file a verb. It parses, asks the supervisor through host/control, runs commands
// over a box's socket, and prints. It decides no policy and keeps no state; what goes to stdout is what was asked for,
// everything else goes to stderr.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"foldyard/internal/box"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/proof/doctor"
)

// Exit codes beyond a verb's own; CONTRACT.md has the table.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNothing     = 3
	exitFoldyard    = 125 // run, exec, shell: foldyard failed, not the command
	exitInterrupted = 130
)

// Env is what the command line takes from the process it runs in.
type Env struct {
	Args    []string // without the program's name
	Stdin   *os.File
	Stdout  *os.File
	Stderr  *os.File
	Getenv  func(string) string
	Environ func() []string
	Dir     string // the working directory
	Now     func() time.Time
	Version string
	Program string // path of this executable, to start the supervisor from
	// Serve is the supervisor in this process, for fy proxy. It returns when ctx ends.
	Serve func(ctx context.Context, s Serve) error
	// RemoveMachines deletes every virtual machine, for fy uninstall, and says which it could not.
	RemoveMachines func(ctx context.Context, h config.Host, say func(string)) error
	// MachineRows looks, for fy doctor, at what the virtual machine of a project needs.
	MachineRows func(ctx context.Context, h config.Host, project string, cfg *config.Effective) []doctor.Row
}

// Serve says for which project a supervisor serves the proxy, and where.
type Serve struct {
	Host      config.Host
	Project   state.Project
	Dir       string // the checkout
	Listen    string // loopback ADDR:PORT
	Auth      bool   // want a token, which is in the URL
	Listening func(url, caFile string)
}

// app is one invocation.
type app struct {
	Env
	chdir string
	json  bool
	style style
}

// exit is an error that chooses the exit code. Without err nothing is printed.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// hinted is an error with the next command to type.
type hinted struct {
	err   error
	hints []string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

func hint(err error, hints ...string) error { return &hinted{err, hints} }

// usage is a mistake on the command line.
type usage struct{ err error }

func (u *usage) Error() string { return u.err.Error() }
func (u *usage) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return &usage{fmt.Errorf(format, args...)} }

// Main runs one command line and returns its exit code.
func Main(env Env) int {
	a := &app{Env: env, style: newStyle(env.Stdout, env.Getenv)}
	root := a.root()
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	return a.fail(ctx, cmd, err)
}

// fail prints err and chooses the exit code.
func (a *app) fail(ctx context.Context, cmd *cobra.Command, err error) int {
	relays := cmd != nil && cmd.Annotations["relays"] != ""
	e, chosen := errors.AsType[*exit](err)
	switch {
	case chosen && e.err == nil:
		return e.code
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	fmt.Fprintf(a.Stderr, "%s %s\n", newStyle(a.Stderr, a.Getenv).red("error:"), block(err.Error()))
	for _, h := range hints(err) {
		fmt.Fprintf(a.Stderr, "hint: %s\n", line(h))
	}
	switch _, wrong := errors.AsType[*usage](err); {
	case chosen:
		return e.code
	case relays:
		return exitFoldyard
	case wrong, isCobraUsage(err):
		return exitUsage
	}
	return exitFailed
}

func hints(err error) []string {
	if h, ok := errors.AsType[*hinted](err); ok {
		return h.hints
	}
	if e, ok := errors.AsType[*control.Error](err); ok && e.Hint != "" {
		return strings.Split(e.Hint, "\n")
	}
	return nil
}

// isCobraUsage tells cobra's own complaints, which have no type, from ours.
func isCobraUsage(err error) bool {
	for _, s := range []string{"unknown command", "unknown flag", "unknown shorthand", "accepts ", "requires ", "invalid argument", "flag needs an argument", "bad flag syntax", "required flag", "if any flags in the group"} {
		if strings.HasPrefix(err.Error(), s) {
			return true
		}
	}
	return false
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fy",
		Short: "Run untrusted code in a box whose only way out is yours",
		Long: `fy runs code that you do not trust in a box. Every request it makes is seen, only hosts that you granted are
reached, and fy verify shows from inside the box that there is no other way out.

  fy run -- npm install            refused requests name the command that permits them
  fy run --allow example.com -- curl https://example.com/
  fy up && fy shell                a box that stays`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              cobra.NoArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVarP(&a.chdir, "directory", "C", "", "act as if started in `DIR`")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usage{err} })
	root.AddGroup(&cobra.Group{ID: "box", Title: "Boxes"}, &cobra.Group{ID: "policy", Title: "What a box may reach"},
		&cobra.Group{ID: "proof", Title: "What it did, and what holds"}, &cobra.Group{ID: "host", Title: "This computer"})
	for group, verbs := range map[string][]*cobra.Command{
		"box":    {a.run(), a.up(), a.down(), a.shell(), a.exec(), a.home(), a.machine()},
		"policy": {a.allow(), a.deny(), a.revoke(), a.grants(), a.asks(), a.ask(), a.enforce(), a.learn(), a.why(), a.secret()},
		"proof":  {a.status(), a.verify(), a.log(), a.claims()},
		"host":   {a.initialise(), a.config(), a.doctor(), a.ca(), a.proxy(), a.supervisor(), a.uninstall(), a.version()},
	} {
		for _, c := range verbs {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(unbuilt()...)
	root.SetHelpCommandGroupID("host")
	root.SetCompletionCommandGroupID("host")
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.RunE = func(*cobra.Command, []string) error {
				return usagef("want fy completion bash, fish, powershell or zsh")
			}
		}
	}
	return root
}

// jsonFlag adds --json to a verb that prints data.
func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
}

// printJSON writes v to stdout, indented.
func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = a.Stdout.Write(append(b, '\n'))
	return err
}

// printPath writes a path to stdout, as what it is or as JSON.
func (a *app) printPath(path string) error {
	if a.json {
		return a.printJSON(map[string]string{"path": path})
	}
	_, err := fmt.Fprintln(a.Stdout, path)
	return err
}

// say writes progress to stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "fy: %s\n", block(fmt.Sprintf(format, args...)))
}

// hostOnly refuses a verb that changes policy, config or secrets, or makes boxes, when it is run inside a box.
func hostOnly(f func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if box.Inside() {
			code := exitFailed
			if cmd.Annotations["relays"] != "" {
				code = exitFoldyard
			}
			return &exit{code, hint(fmt.Errorf("fy %s is refused inside a box: only the host decides", path(cmd)), "run it on the host, outside the box")}
		}
		return f(cmd, args)
	}
}

// path is a command's name without "fy".
func path(cmd *cobra.Command) string { return strings.TrimPrefix(cmd.CommandPath(), "fy ") }

func writeAll(w io.Writer, parts ...string) error {
	_, err := io.WriteString(w, strings.Join(parts, ""))
	return err
}
