package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
)

// levels are the flags that choose how long a grant lives.
type levels struct {
	once, session, permanent bool
	ttl                      time.Duration
	given                    func() bool // --ttl was
}

func (l *levels) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&l.once, "once", false, "for a short time (--ttl)")
	f.BoolVar(&l.session, "session", false, "until fy down or the idle stop (default)")
	f.BoolVar(&l.permanent, "permanent", false, "until revoked")
	f.DurationVar(&l.ttl, "ttl", 0, "how long --once lives (default 2m)")
	l.given = func() bool { return f.Changed("ttl") }
	c.MarkFlagsMutuallyExclusive("once", "session", "permanent")
}

// fill puts the chosen level into q.
func (l *levels) fill(q *control.RuleRequest) error {
	switch {
	case l.given() && !l.once:
		return usagef("--ttl goes with --once")
	case l.given() && l.ttl <= 0:
		return usagef("--ttl %s: want a duration above zero", l.ttl)
	case l.once:
		q.Level, q.TTL = "once", control.Duration(l.ttl)
	case l.permanent:
		q.Level = "permanent"
	default:
		q.Level = "session"
	}
	return nil
}

// change runs one change of policy and tells what it came to.
func (a *app) change(cmd *cobra.Command, verb string, f func(*control.Client) (control.Changed, error)) error {
	c, _, err := a.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := f(c)
	if err != nil {
		return err
	}
	for _, n := range got.Notes {
		a.say("%s", n)
	}
	if a.json {
		return a.printJSON(got.Rules)
	}
	for _, g := range got.Rules {
		fmt.Fprintf(a.Stdout, "%s %s%s\n", verb, line(g.Rule), a.style.dim(a.lifetime(g)))
	}
	return nil
}

// lifetime says how long a grant lives, "" for a rule that is gone.
func (a *app) lifetime(g control.Grant) string {
	var parts []string
	switch {
	case g.Level == "":
		return ""
	case g.Expires != nil:
		parts = append(parts, "for "+short(g.Expires.Sub(a.Now()).Round(time.Second)))
	case g.Level == "session":
		parts = append(parts, "until fy down")
	default:
		parts = append(parts, g.Level)
	}
	if g.Internal {
		parts = append(parts, "internal")
	}
	if g.Box != "" {
		parts = append(parts, "box "+g.Box)
	}
	return "  (" + strings.Join(parts, ", ") + ")"
}
