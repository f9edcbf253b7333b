package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
)

func (a *app) status() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "status", Short: "Box, rings, evidence and label", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.project()
			if err != nil {
				return err
			}
			c := control.NewClient(p.checkout.Project.ControlSocket())
			if len(a.leftBoxes(p)) > 0 { // a box without a supervisor is taken back first
				if c, _, err = a.launch(p).Connect(cmd.Context()); err != nil {
					return err
				}
			}
			defer c.Close()
			st, err := c.Status(cmd.Context())
			if control.NotRunning(err) {
				return a.nothingRuns(p)
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(st)
			}
			a.printStatus(st)
			return nil
		},
	})
}

// leftBoxes are the records of boxes on disk.
func (a *app) leftBoxes(p *project) []string {
	found, _ := filepath.Glob(filepath.Join(p.checkout.Project.BoxesDir(), "*.json")) // the pattern is ours
	return found
}

func (a *app) nothingRuns(p *project) error {
	if a.json {
		st := control.Status{Project: p.checkout.Project.Name, Backend: "namespace", Label: "cooperative", Why: "nothing runs", Rings: []control.Ring{}, Limits: []control.Limit{}, Enforce: true}
		if g, err := state.OpenGrants(p.checkout.Project); err == nil {
			f := g.File()
			st.Enforce, st.Grants = f.Enforcing(a.Now()), len(f.Grants)
		}
		if err := a.printJSON(st); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Stdout, "%s  nothing runs\n", p.checkout.Project.Name)
		fmt.Fprintln(a.Stdout, a.style.dim("fy run -- CMD runs one command in a box; fy up starts one that stays"))
	}
	return &exit{code: exitNothing}
}

func (a *app) printStatus(st control.Status) {
	label := a.style.yellow("cooperative")
	if st.Label == "locked" {
		label = a.style.green("locked against " + st.Boundary)
	}
	fmt.Fprintf(a.Stdout, "%s  %s\n", a.style.bold(st.Project), label)
	fmt.Fprintf(a.Stdout, "%s\n\n", a.style.dim(line(st.Why)))
	rows := [][]string{{"box", "none"}}
	if st.Box != nil {
		kind := "stays until fy down"
		if st.Box.Oneshot {
			kind = "ends with its command"
		}
		rows[0][1] = fmt.Sprintf("%s, for %s, %s", st.Box.ID, ago(a.Now(), st.Box.Created), kind)
		if st.Boxes > 1 {
			rows[0][1] += fmt.Sprintf(" (and %d more)", st.Boxes-1)
		}
	}
	policy := "enforced"
	if !st.Enforce {
		policy = "not enforced: fy enforce on"
		if st.LearnUntil != nil {
			policy = "learning until " + st.LearnUntil.Local().Format("15:04:05")
		}
	}
	rows = append(rows, []string{"allowlist", fmt.Sprintf("%s, %s", policy, plural(st.Grants, "grant"))})
	if st.Asks > 0 {
		rows = append(rows, []string{"asks", fmt.Sprintf("%d unanswered: fy asks", st.Asks)})
	}
	rows = append(rows, []string{"backend", st.Backend}, []string{"supervisor", fmt.Sprintf("pid %d, for %s", st.Supervisor.PID, ago(a.Now(), st.Supervisor.Since))})
	if dir := filepath.Dir(st.Supervisor.Socket); filepath.Base(filepath.Dir(dir)) != "projects" && st.Supervisor.Socket != "" {
		rows = append(rows, []string{"socket", st.Supervisor.Socket})
	}
	table(a.Stdout, "", rows, func(_, col int, cell string) string {
		if col == 0 {
			return a.style.dim(cell)
		}
		return cell
	})
	fmt.Fprintln(a.Stdout)
	table(a.Stdout, "", a.ringRows(st.Rings), func(row, col int, cell string) string {
		switch {
		case row == 0 || col == 1:
			return a.style.dim(cell)
		case col == 2:
			return a.paintState(cell)
		}
		return cell
	})
	a.printCredentials(st.Credentials)
	for _, l := range st.Limits {
		if l.Hits > 0 {
			fmt.Fprintf(a.Stdout, "limit %s was met %s\n", l.Name, plural(int(l.Hits), "time"))
		}
	}
	for _, n := range st.Notes {
		fmt.Fprintf(a.Stdout, "%s %s\n", a.style.yellow("note:"), line(n))
	}
}

// ringRows leaves out the rings that this backend does not have.
func (a *app) ringRows(rings []control.Ring) [][]string {
	rows := [][]string{{"RING", "KIND", "STATE", "HOLDS AGAINST", "EVIDENCE"}}
	for _, r := range rings {
		if r.State == "off" && strings.HasPrefix(r.Why, "not a ring of") {
			continue
		}
		evidence := ""
		if e := r.Evidence; e != nil {
			evidence = fmt.Sprintf("%d of %d probes, %s ago", e.Passed, e.Probes, ago(a.Now(), e.At))
		}
		if r.State == "failed" || r.State == "unavailable" {
			evidence = r.Why
		}
		rows = append(rows, []string{r.Name, r.Kind, r.State, r.Boundary, escape(evidence)})
	}
	return rows
}

func (a *app) paintState(s string) string {
	switch s {
	case "proven":
		return a.style.green(s)
	case "failed":
		return a.style.red(s)
	case "stale", "unavailable":
		return a.style.yellow(s)
	}
	return s
}
