package cli

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"foldyard/internal/box"
	"foldyard/internal/egress/ca"
	"foldyard/internal/host/config"
	"foldyard/internal/proof/doctor"
	"foldyard/internal/wall/namespace"
)

func (a *app) doctor() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "doctor", Short: "Can this computer do it, and how to make it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := a.layout()
			if err != nil {
				return err
			}
			o := doctor.Options{
				Inside: box.Inside(), Now: a.Now(), Config: h.Layout.ConfigDir, State: h.Layout.StateDir, CA: h.Layout.CADir(), Program: a.Program,
				Wall: wallRows, Roots: ca.SystemBundle, Getenv: a.Getenv,
			}
			if info, err := os.Stat(a.Program); err == nil {
				o.Built = info.ModTime()
			}
			var cfg *config.Effective
			var configured []doctor.Row
			project := ""
			if dir, err := h.Discover(a.dir()); err == nil {
				o.Project = dir
				if p, err := h.Resolve(dir); err == nil {
					project = p.Project.Name
					row := doctor.Row{Name: "configuration", State: doctor.OK, Detail: "as it is obeyed, without a fault"}
					if cfg, err = h.Load(p); err == nil {
						o.Resolver = cfg.Upstream.Resolver
						if p.Notice != "" {
							row.Detail = p.Notice
						} else if d, err := h.Drift(p); err == nil && d.Different {
							row.Detail = "what was adopted, without a fault; foldyard.toml differs from it: fy config diff, then fy config adopt"
						}
					} else {
						row.State, row.Detail, row.Fix = doctor.Fail, err.Error(), "mend what the row names; fy config check tells of both files"
					}
					configured = append(configured, row)
				}
			}
			backend := config.DefaultBackend(runtime.GOOS)
			if cfg != nil && cfg.Machine.Backend != "" {
				backend = cfg.Machine.Backend
			}
			if backend != config.Namespace && cfg != nil {
				o.Wall = func(ctx context.Context) []doctor.Row { return a.MachineRows(ctx, h, project, cfg) }
			}
			rows := append(doctor.Run(cmd.Context(), o), configured...)
			if doctor.Healthy(rows) && cfg != nil && backend == config.Namespace {
				rows = append(rows, a.handshakes(cmd.Context(), cfg.Tunnels)...)
			}
			if a.json {
				err = a.printJSON(rows)
			} else {
				a.printDoctor(rows)
			}
			if err == nil && !doctor.Healthy(rows) {
				err = &exit{code: exitFailed}
			}
			return err
		},
	})
}

// wallRows asks the namespace backend what it can do here.
func wallRows(ctx context.Context) []doctor.Row {
	var out []doctor.Row
	for _, f := range namespace.Available(ctx) {
		out = append(out, doctor.Row{Name: f.Name, State: f.State, Detail: f.Detail, Fix: f.Fix})
	}
	return out
}

func (a *app) printDoctor(rows []doctor.Row) {
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{r.State, r.Name, escape(r.Detail)})
		if r.Fix != "" {
			cells = append(cells, []string{"", "", "fix: " + escape(r.Fix)})
		}
	}
	table(a.Stdout, "", cells, func(_, col int, cell string) string {
		switch {
		case col == 0 && cell == "ok":
			return a.style.green(cell)
		case col == 0 && cell == "warn":
			return a.style.yellow(cell)
		case col == 0:
			return a.style.red(cell)
		}
		return cell
	})
	if !doctor.Healthy(rows) {
		fmt.Fprintln(a.Stdout, a.style.dim("a row that failed says what to do"))
	}
}
