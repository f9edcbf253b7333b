package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/host/config"
)

// maxHAR bounds the records that an export holds at once.
const maxHAR = 200_000

func (a *app) log() *cobra.Command {
	var f capture.Filter
	var follow bool
	var since, har string
	c := &cobra.Command{
		Use: "log", Short: "What boxes asked for, and what became of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Host = recorded(f.Host)
			p, err := a.project()
			if err != nil {
				return err
			}
			if since != "" {
				if f.Since, err = a.since(since); err != nil {
					return err
				}
			}
			damaged := 0
			f.Damaged = func(string, int) { damaged++ }
			dir := p.checkout.Project.LogDir()
			switch {
			case har != "" && follow:
				return usagef("--har and --follow do not go together")
			case har != "":
				err = a.exportHAR(cmd.Context(), p.checkout, f, har)
			case follow:
				err = capture.Follow(cmd.Context(), dir, f, a.printRecord)
				if errors.Is(err, context.Canceled) {
					return &exit{code: exitInterrupted}
				}
			default:
				err = capture.Read(cmd.Context(), dir, f, a.printRecord)
			}
			if damaged > 0 {
				a.say("%s skipped: not a record", plural(damaged, "line"))
			}
			return err
		},
	}
	fl := c.Flags()
	fl.BoolVarP(&follow, "follow", "f", false, "go on as records come")
	fl.StringVar(&since, "since", "", "from `TIME` on: a duration ago (1h) or a date")
	fl.BoolVar(&f.Denied, "denied", false, "refusals only")
	fl.StringVar(&f.Host, "host", "", "this `HOST`, or *.suffix")
	fl.StringVar(&f.Box, "box", "", "this box `ID`")
	fl.BoolVar(&f.Audit, "audit", false, "the audit log, which keeps refusals longer")
	fl.StringVar(&har, "har", "", "export as HAR to `FILE` (- for stdout)")
	return a.jsonFlag(c)
}

// recorded is a host, or *.suffix, as records write it. What is none stays as it is: records hold such names too.
func recorded(host string) string {
	name, below := strings.CutPrefix(host, "*.")
	h, err := dest.ParseHost(name)
	switch {
	case err != nil:
		return host
	case below:
		return "*." + h.String()
	}
	return h.String()
}

// since reads a duration before now, or a date.
func (a *app) since(s string) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n < 100_000 {
			return a.Now().AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil {
		return a.Now().Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("--since %q: want a duration (90m, 2h, 3d) or a date (2006-01-02)", s)
}

func (a *app) exportHAR(ctx context.Context, at config.Checkout, f capture.Filter, path string) error {
	var recs []*capture.Record
	err := capture.Read(ctx, at.Project.LogDir(), f, func(r *capture.Record) error {
		if len(recs) >= maxHAR {
			return fmt.Errorf("more than %d records: narrow it with --since, --host or --box", maxHAR)
		}
		c := *r
		recs = append(recs, &c)
		return nil
	})
	if err != nil {
		return err
	}
	if path == "-" {
		return capture.WriteHAR(a.Stdout, recs)
	}
	if err := a.writeNew(at.Dir, path, func(w io.Writer) error { return capture.WriteHAR(w, recs) }); err != nil {
		return err
	}
	a.say("%s written to %s", plural(len(recs), "record"), path)
	return nil
}

// printRecord prints one record as one line.
func (a *app) printRecord(r *capture.Record) error {
	if a.json {
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return writeAll(a.Stdout, asciiJSON(b), "\n")
	}
	var b strings.Builder
	b.WriteString(a.style.dim(r.TS.Local().Format("15:04:05.000")) + "  ")
	b.WriteString(a.paintVerdict(r) + "  ")
	b.WriteString(capture.EscapeTerm(recordTarget(r)))
	for _, s := range []string{outcome(r), r.UA} {
		if s != "" {
			b.WriteString("  " + a.style.dim(capture.EscapeTerm(s)))
		}
	}
	return writeAll(a.Stdout, b.String(), "\n")
}

func (a *app) paintVerdict(r *capture.Record) string {
	text := string(r.Verdict)
	if text == "" {
		text = string(r.Proto)
	}
	padded := fmt.Sprintf("%-5s", text)
	switch r.Verdict {
	case capture.VerdictDeny:
		return a.style.red(padded)
	case capture.VerdictAllow:
		return a.style.green(padded)
	}
	return a.style.yellow(padded)
}

func recordTarget(r *capture.Record) string {
	host := r.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if r.Method == "" {
		if r.Port == 0 {
			return host
		}
		return fmt.Sprintf("%s:%d", host, r.Port)
	}
	if r.Scheme == "" || r.Method == "CONNECT" {
		return fmt.Sprintf("%s %s:%d", r.Method, host, r.Port)
	}
	port := ""
	if r.Port != 0 && !(r.Scheme == "https" && r.Port == 443) && !(r.Scheme == "http" && r.Port == 80) {
		port = ":" + strconv.Itoa(int(r.Port))
	}
	return fmt.Sprintf("%s %s://%s%s%s", r.Method, r.Scheme, host, port, r.Path)
}

// outcome says in a few words what became of it.
func outcome(r *capture.Record) string {
	var parts []string
	if r.Status != 0 {
		parts = append(parts, strconv.Itoa(r.Status))
	}
	if r.Reason != "" {
		parts = append(parts, r.Reason)
	}
	if r.Mode == capture.ModeTunnel {
		parts = append(parts, "tunnel")
	}
	if n, ok := r.RespBytes.Get(); ok {
		parts = append(parts, size(n))
	}
	if n, ok := r.Millis.Get(); ok {
		parts = append(parts, fmt.Sprintf("%d ms", n))
	}
	if r.DeniedTimes > 1 {
		parts = append(parts, fmt.Sprintf("%d times", r.DeniedTimes))
	}
	if r.Injected != "" {
		parts = append(parts, "injected "+r.Injected)
	}
	if r.Error != "" {
		parts = append(parts, r.Error)
	}
	return strings.Join(parts, ", ")
}

func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// asciiJSON escapes what is not ASCII in JSON text, where it can only stand in strings.
func asciiJSON(b []byte) string {
	var out strings.Builder
	for _, r := range string(b) {
		switch {
		case r < 0x7f:
			out.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&out, "\\u%04x", r)
		default:
			r -= 0x10000
			fmt.Fprintf(&out, "\\u%04x\\u%04x", 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return out.String()
}
