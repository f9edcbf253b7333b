package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

func (a *app) run() *cobra.Command {
	var q control.BoxRequest
	var env []string
	var quiet, raw bool
	c := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG…]",
		Short: "Run a command in a box of its own",
		Long: `Run a command in a box of its own. The box sees this repository and the system's programs, gets an empty
environment, and reaches no host that was not granted. It is gone when the command ends.`,
		Example:     "  fy run -- npm install\n  fy run --allow example.com -- curl https://example.com/\n  fy run --home --env EDITOR -- bash",
		Args:        cobra.ArbitraryArgs,
		Annotations: map[string]string{"relays": "yes"},
		RunE: hostOnly(func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("fy run wants a command: fy run -- CMD")
			}
			q.Oneshot = true
			q.Env, q.Term = a.named(env), a.inherited()
			return a.runOnce(cmd.Context(), q, args, quiet, raw)
		}),
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringArrayVar(&q.Allow, "allow", nil, "grant `RULE` to this box alone")
	f.StringArrayVar(&env, "env", nil, "set `NAME[=VALUE]`; NAME alone passes yours")
	f.BoolVar(&q.Home, "home", false, "use the project's kept home")
	f.BoolVar(&q.RO, "ro", false, "mount the repo read-only")
	f.StringVar(&q.Backend, "backend", "", "namespace, lima or podman")
	f.BoolVar(&q.Yes, "yes", false, "accept --allow with a wildcard over a shared host")
	f.BoolVarP(&quiet, "quiet", "q", false, "no summary at the end")
	f.BoolVar(&raw, "raw-terminal", false, "do not filter what the box prints on the terminal")
	return c
}

func (a *app) runOnce(ctx context.Context, q control.BoxRequest, argv []string, quiet, raw bool) error {
	c, p, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	made := a.making(ctx, p)
	b, err := c.CreateBox(ctx, q)
	made()
	if err != nil {
		return err
	}
	for _, n := range b.Notes {
		a.say("%s", n)
	}
	code, err := (&relay{a: a, box: b, launch: true, raw: raw}).run(ctx, argv)
	stopped, stopErr := c.StopBox(context.WithoutCancel(ctx), b.ID)
	if stopErr != nil {
		a.say("%v", stopErr)
	} else if !quiet {
		a.summary(stopped)
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return &exit{code: code}
	}
	return nil
}

// named resolves --env against the caller's environment; a NAME that is not set stays unset.
func (a *app) named(env []string) []string {
	var out []string
	for _, e := range env {
		if name, _, set := strings.Cut(e, "="); !set {
			i := slices.IndexFunc(a.Environ(), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
			if i < 0 {
				a.say("--env %s: not set here, so not in the box", name)
				continue
			}
			e = a.Environ()[i]
		}
		out = append(out, e)
	}
	return out
}

// inherited are the caller's variables that describe terminal and language, the only ones that a box gets unasked.
func (a *app) inherited() []string {
	var out []string
	for _, kv := range a.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == "TERM", name == "COLORTERM", name == "LANG", name == "LANGUAGE", name == "TZ", strings.HasPrefix(name, "LC_"):
			out = append(out, kv)
		}
	}
	return out
}

// summary tells, after a box ended, what it was refused and which of its files this computer's tools would execute.
func (a *app) summary(s control.Stopped) {
	st := newStyle(a.Stderr, a.Getenv)
	if rows := refusalRows(s.Refused); len(rows) > 0 {
		fmt.Fprintf(a.Stderr, "fy: refused %s\n", plural(len(rows), "target"))
		const most = 12
		more := len(rows) - most
		if more > 0 {
			rows = rows[:most]
		}
		table(a.Stderr, "  ", rows, func(_, col int, cell string) string {
			if col == 2 {
				return st.bold(cell)
			}
			if col == 1 {
				return st.dim(cell)
			}
			return cell
		})
		if more > 0 {
			fmt.Fprintf(a.Stderr, "  and %d more: fy log --denied\n", more)
		}
	}
	if n := len(s.Changed); n > 0 {
		const most = 8
		names := s.Changed[:min(n, most)]
		list := line(strings.Join(names, ", "))
		if n > most {
			list += fmt.Sprintf(" and %d more", n-most)
		}
		fmt.Fprintf(a.Stderr, "fy: changed, and executed by tools on this computer: %s\n", st.yellow(list))
	}
}

// refusalRows folds refusals of one host and reason into one row: target, reason, command.
func refusalRows(list []control.Refusal) [][]string {
	type key struct{ host, reason, fix string }
	var order []key
	ports := map[key][]string{}
	for _, r := range list {
		k := key{r.Host, r.Reason, r.Fix}
		if _, ok := ports[k]; !ok {
			order = append(order, k)
		}
		if p := strconv.Itoa(int(r.Port)); r.Port != 0 && !slices.Contains(ports[k], p) {
			ports[k] = append(ports[k], p)
		}
	}
	var rows [][]string
	for _, k := range order {
		target := k.host
		if strings.Contains(target, ":") {
			target = "[" + target + "]"
		}
		if len(ports[k]) > 0 {
			target += ":" + strings.Join(ports[k], ",")
		}
		rows = append(rows, []string{escape(target), strings.ReplaceAll(k.reason, "_", " "), escape(k.fix)})
	}
	return rows
}
