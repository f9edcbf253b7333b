package capture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of an Exporter.
const (
	exportQueue   = 4096 // records that wait; more are dropped and counted
	exportBatch   = 256
	exportEvery   = time.Second
	exportTimeout = 10 * time.Second
	exportLast    = 2 * time.Second // for what is left at the end
)

// Exporter sends records to an OTLP/HTTP collector, as JSON (opentelemetry-proto, logs). The body of each is its line of the log, so
// nothing leaves that the log would not hold. Like the log it may lose records, which it counts, but hold nothing up.
type Exporter struct {
	url     string
	client  *http.Client
	service string
	queue   chan []byte // one logRecord each
	ctx     context.Context
	stop    context.CancelFunc
	done    chan struct{}

	mu   sync.Mutex
	lost uint64
	err  string
}

// NewExporter starts an exporter to the collector at endpoint, such as http://127.0.0.1:4318. project names what the records are of.
// Close ends its goroutine.
func NewExporter(endpoint, project string, way http.RoundTripper) *Exporter {
	service, _ := json.Marshal(project) // a string always can be
	e := &Exporter{
		url:     strings.TrimSuffix(strings.TrimSuffix(endpoint, "/"), "/v1/logs") + "/v1/logs",
		client:  &http.Client{Transport: way, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		service: string(service),
		queue:   make(chan []byte, exportQueue),
		done:    make(chan struct{}),
	}
	e.ctx, e.stop = context.WithCancel(context.Background())
	go e.run()
	return e
}

// Put sends r, which has its ID and time, and keeps nothing of it.
func (e *Exporter) Put(r *Record) {
	select {
	case e.queue <- logRecord(r):
	default:
		e.lose(1, "")
	}
}

// Lost tells how many records did not arrive, and why at present; "" when they do.
func (e *Exporter) Lost() (n uint64, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost, e.err
}

func (e *Exporter) lose(n int, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost += uint64(n)
	if why != "" {
		e.err = why
	}
}

// Close sends what waits, for a moment, and ends the exporter. Nothing may be put after it.
func (e *Exporter) Close() {
	e.stop()
	<-e.done
	e.client.CloseIdleConnections()
}

func (e *Exporter) run() {
	defer close(e.done)
	tick := time.NewTicker(exportEvery)
	defer tick.Stop()
	var batch [][]byte
	for {
		select {
		case r := <-e.queue:
			if batch = append(batch, r); len(batch) < exportBatch {
				continue
			}
		case <-tick.C:
		case <-e.ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), exportLast)
			defer cancel()
			for {
				select {
				case r := <-e.queue:
					batch = append(batch, r)
					continue
				default:
				}
				e.send(ctx, batch)
				return
			}
		}
		ctx, cancel := context.WithTimeout(e.ctx, exportTimeout)
		e.send(ctx, batch)
		cancel()
		batch = batch[:0]
	}
}

func (e *Exporter) send(ctx context.Context, batch [][]byte) {
	if len(batch) == 0 {
		return
	}
	if err := e.post(ctx, batch); err != nil {
		e.lose(len(batch), err.Error())
		return
	}
	e.mu.Lock()
	e.err = ""
	e.mu.Unlock()
}

func (e *Exporter) post(ctx context.Context, batch [][]byte) error {
	body := `{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"foldyard"}},{"key":"service.namespace","value":{"stringValue":` +
		e.service + `}}]},"scopeLogs":[{"scope":{"name":"foldyard"},"logRecords":[` + string(bytes.Join(batch, []byte(","))) + `]}]}]}`
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("export records: %w", err)
	}
	q.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(q)
	if err != nil {
		return fmt.Errorf("export records: %w", err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return errors.New("export records: the collector answers " + resp.Status)
	}
	return err
}

// logRecord is r as one LogRecord.
func logRecord(r *Record) []byte {
	severity, number := "INFO", 9
	if r.audited() {
		severity, number = "WARN", 13
	}
	b := append([]byte(`{"timeUnixNano":"`), strconv.FormatInt(r.TS.UnixNano(), 10)...)
	b = append(b, `","severityNumber":`...)
	b = strconv.AppendInt(b, int64(number), 10)
	b = append(b, `,"severityText":"`+severity+`","body":{"stringValue":`...)
	safe := *r
	safe.Path = RedactPath(r.Path)
	line, _ := json.Marshal(strings.TrimSuffix(string(appendRecord(nil, &safe)), "\n")) // a string always can be
	b = append(append(b, line...), `},"attributes":[`...)
	first := true
	text := func(key, value string) {
		if value == "" {
			return
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, `{"key":"`+key+`","value":{"stringValue":`...)
		b = append(appendString(b, value, 256), `}}`...)
	}
	text("foldyard.box", r.Box)
	text("foldyard.via", string(r.Via))
	text("foldyard.mode", string(r.Mode))
	text("foldyard.verdict", string(r.Verdict))
	text("foldyard.reason", r.Reason)
	text("foldyard.rule", r.Rule)
	text("foldyard.injected", r.Injected)
	text("server.address", r.Host)
	if r.Port != 0 {
		text("server.port", strconv.Itoa(int(r.Port)))
	}
	text("http.request.method", r.Method)
	if r.Status != 0 {
		text("http.response.status_code", strconv.Itoa(r.Status))
	}
	return append(b, `]}`...)
}
