package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
)

// openExport starts what the operator's configuration wants told to others: records to an OTLP collector, metrics to whoever asks.
// What cannot be told is said in status, and stops nothing.
func (s *Supervisor) openExport(ctx context.Context, otlp, listen string) {
	if listen != "" {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", listen)
		if err != nil { // another project's supervisor, most likely
			s.unmeasured = err.Error()
			s.log.Warn("metrics are not served", slog.String("error", err.Error()))
		} else {
			s.metrics = l
		}
	}
	if otlp != "" {
		s.exporter = capture.NewExporter(otlp, s.opt.Project.Name, s.collectorWay())
	}
}

// exportNotes say what the operator wanted told and is not.
func (s *Supervisor) exportNotes() []string {
	var out []string
	if s.unmeasured != "" {
		out = append(out, "metrics are not served: "+s.unmeasured)
	}
	if s.exporter != nil {
		if n, why := s.exporter.Lost(); n > 0 {
			out = append(out, fmt.Sprintf("%d records did not reach the collector of log.otlp; %s", n, firstNonEmpty(why, "it takes them now")))
		}
	}
	return out
}

// collectorWay is how the collector is reached: by the dialer, as everything is. It is the operator's own, so it may be anywhere.
func (s *Supervisor) collectorWay() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			t, err := dest.Parse(addr)
			if err != nil {
				return nil, err
			}
			c, _, err := s.dialer.Dial(ctx, t, true)
			return c, err
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			t, err := dest.Parse(addr)
			if err != nil {
				return nil, err
			}
			c, _, err := s.dialer.DialTLS(ctx, t, true, "http/1.1")
			return c, err
		},
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
	}
}

// outcomes count records by what came of them. Both words are of closed lists, so the count is bounded.
type outcomes struct {
	mu sync.Mutex
	n  map[[2]string]uint64 // verdict, reason
}

func (o *outcomes) add(r *capture.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == nil {
		o.n = map[[2]string]uint64{}
	}
	o.n[[2]string{string(r.Verdict), r.Reason}]++
}

func (o *outcomes) all() map[[2]string]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.n)
}

// serveMetrics answers Prometheus on loopback until ctx ends.
func (s *Supervisor) serveMetrics(ctx context.Context) {
	if s.metrics == nil {
		return
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(s.showMetrics), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // nothing of it is worth waiting for
	defer stop()
	if err := srv.Serve(s.metrics); !errors.Is(err, http.ErrServerClosed) {
		s.log.Warn("metrics are not served", slog.String("error", err.Error()))
	}
}

// showMetrics writes the text format of Prometheus. A name that leads here by way of a browser is no address of loopback.
func (s *Supervisor) showMetrics(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if a, perr := netip.ParseAddr(host); host != "localhost" && (err != nil || perr != nil || !a.IsLoopback()) {
		http.Error(w, "ask by a loopback address", http.StatusForbidden)
		return
	}
	if r.URL.Path != "/metrics" || r.Method != http.MethodGet {
		http.Error(w, "GET /metrics", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	b := bufio.NewWriter(w)
	defer b.Flush()
	project := s.opt.Project.Name // [A-Za-z0-9._-]: no escapes
	metric := func(name, kind, help string) {
		fmt.Fprintf(b, "# HELP foldyard_%s %s\n# TYPE foldyard_%s %s\n", name, help, name, kind)
	}
	sample := func(name string, value uint64, labels ...string) {
		fmt.Fprintf(b, "foldyard_%s{project=%q%s} %d\n", name, project, strings.Join(labels, ""), value)
	}
	label := func(name, value string) string { return "," + name + "=" + strconv.Quote(value) }

	metric("records_total", "counter", "Outcomes, by verdict and reason.")
	counted := s.outcomes.all()
	keys := slices.SortedFunc(maps.Keys(counted), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		sample("records_total", counted[k], label("verdict", k[0]), label("reason", k[1]))
	}
	st := s.capture.Stats()
	metric("log_dropped_total", "counter", "Records that the log lost.")
	sample("log_dropped_total", st.Dropped)
	metric("log_folded_total", "counter", "Records that became part of another line.")
	sample("log_folded_total", st.Folded)
	if s.exporter != nil {
		lost, _ := s.exporter.Lost()
		metric("export_lost_total", "counter", "Records that the collector did not get.")
		sample("export_lost_total", lost)
	}
	limits := s.engine.Limits()
	for _, m := range []struct {
		name, kind, help string
		value            func(i int) int64
	}{
		{"limit", "gauge", "Bounds.", func(i int) int64 { return limits[i].Value }},
		{"limit_current", "gauge", "How much of a bound is used.", func(i int) int64 { return limits[i].Current }},
		{"limit_hits_total", "counter", "How often a bound was met.", func(i int) int64 { return limits[i].Hits }},
	} {
		metric(m.name, m.kind, m.help)
		for i, l := range limits {
			sample(m.name, uint64(max(m.value(i), 0)), label("name", l.Name))
		}
	}
	metric("boxes", "gauge", "Running boxes.")
	sample("boxes", uint64(len(s.running())))
	metric("enforcing", "gauge", "1 while the allowlist enforces.")
	enforcing := uint64(0)
	if s.snapshotEnforces() {
		enforcing = 1
	}
	sample("enforcing", enforcing)
}
