package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"foldyard/internal/host/control"
	"foldyard/internal/proof"
)

func (a *app) verify() *cobra.Command {
	var q control.VerifyRequest
	var junit, sarif string
	c := &cobra.Command{
		Use: "verify", Short: "Try to get out of the box, from inside, and show what holds", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, p, err := a.alive(cmd.Context())
			if err != nil {
				return err
			}
			if c == nil {
				return &exit{exitNothing, hint(fmt.Errorf("no box runs"), "fy up")}
			}
			defer c.Close()
			q.Addrs = a.Getenv("FY_PROBE_ADDRS")
			raw, err := c.Verify(cmd.Context(), q)
			if control.HasCode(err, control.CodeNoBox) {
				return &exit{exitNothing, err}
			}
			if err != nil {
				return err
			}
			var rep proof.Report
			if err := json.Unmarshal(raw, &rep); err != nil {
				return fmt.Errorf("read the report: %w", err)
			}
			for file, write := range map[string]func(io.Writer, proof.Report) error{junit: writeJUnit, sarif: writeSARIF} {
				if file == "" {
					continue
				}
				if err := a.writeNew(p.checkout.Dir, file, func(w io.Writer) error { return write(w, rep) }); err != nil {
					return err
				}
			}
			if a.json {
				err = a.printJSON(rep)
			} else {
				a.printReport(rep)
			}
			if err == nil && rep.Verdict != proof.VerdictPass {
				err = &exit{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().BoolVar(&q.AsRoot, "as-root", false, "in a twin of the box, with root's powers there")
	c.Flags().StringVar(&q.Box, "box", "", "the box `ID` instead of the long-lived one")
	c.Flags().StringVar(&junit, "junit", "", "also write JUnit XML to `FILE`")
	c.Flags().StringVar(&sarif, "sarif", "", "also write SARIF to `FILE`")
	return a.jsonFlag(c)
}

func (a *app) printReport(rep proof.Report) {
	var rows [][]string
	for _, r := range rep.Rows {
		detail := ""
		if r.Result != proof.Pass {
			detail = r.Detail
		}
		rows = append(rows, []string{string(r.Result), r.ID, escape(r.Title), escape(detail)})
	}
	table(a.Stdout, "", rows, func(_, col int, cell string) string {
		switch {
		case col == 0:
			return a.paintResult(proof.Result(cell))
		case col == 1 || col == 3:
			return a.style.dim(cell)
		}
		return cell
	})
	probes, passed := rep.Counts()
	fmt.Fprintln(a.Stdout)
	switch rep.Verdict {
	case proof.VerdictPass:
		fmt.Fprintf(a.Stdout, "%s  %d of %d probes of the %s wall were held, run as %s\n", a.style.green("pass"), passed, probes, rep.Ring, rep.As)
	case proof.VerdictFail:
		fmt.Fprintf(a.Stdout, "%s  a probe got out of the box: it is not locked\n", a.style.red("FAIL"))
	default:
		fmt.Fprintf(a.Stdout, "%s  not everything could be shown: the box does not count as locked\n", a.style.yellow("unproven"))
	}
	if len(rep.Residuals) > 0 {
		fmt.Fprintln(a.Stdout, a.style.dim("what no probe can rule out:"))
		for _, r := range rep.Residuals {
			fmt.Fprintln(a.Stdout, a.style.dim("  · "+line(r)))
		}
	}
}

func (a *app) paintResult(r proof.Result) string {
	switch r {
	case proof.Pass:
		return a.style.green(string(r))
	case proof.Fail:
		return a.style.red(string(r))
	case proof.NA:
		return a.style.dim(string(r))
	}
	return a.style.yellow(string(r))
}
