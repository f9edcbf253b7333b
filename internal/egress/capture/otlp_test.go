package capture

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A collector gets what the log holds, as OTLP says; secret-looking values are masked there as here.
func TestExport(t *testing.T) {
	type value struct {
		StringValue string `json:"stringValue"`
	}
	type attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	var doc struct {
		ResourceLogs []struct {
			ScopeLogs []struct {
				LogRecords []struct {
					TimeUnixNano string      `json:"timeUnixNano"`
					SeverityText string      `json:"severityText"`
					Body         value       `json:"body"`
					Attributes   []attribute `json:"attributes"`
				} `json:"logRecords"`
			} `json:"scopeLogs"`
		} `json:"resourceLogs"`
	}
	var mu sync.Mutex
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if b, err := io.ReadAll(r.Body); err != nil || r.URL.Path != "/v1/logs" || json.Unmarshal(b, &doc) != nil {
			t.Errorf("%s %v: %s", r.URL, err, b)
		}
	}))
	defer srv.Close()
	e := NewExporter(srv.URL, `a "project"`, new(http.Transport))
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e.Put(&Record{TS: at, ID: "1", Host: "a.test", Port: 443, Method: "GET", Path: "/x?token=s3cr3t\u202e", Verdict: VerdictDeny, Reason: "not_granted", Status: 403})
	e.Put(&Record{TS: at, ID: "2", Host: "b.test", Verdict: VerdictAllow})
	e.Close()
	if n, why := e.Lost(); n != 0 || why != "" {
		t.Fatalf("lost %d: %s", n, why)
	}
	got := doc.ResourceLogs[0].ScopeLogs[0].LogRecords
	if len(got) != 2 || got[0].TimeUnixNano != "1767323045000000000" || got[0].SeverityText != "WARN" || got[1].SeverityText != "INFO" {
		t.Fatalf("got %+v", got)
	}
	attributes := map[string]string{}
	for _, a := range got[0].Attributes {
		attributes[a.Key] = a.Value.StringValue
	}
	if attributes["server.address"] != "a.test" || attributes["foldyard.reason"] != "not_granted" || attributes["http.response.status_code"] != "403" {
		t.Errorf("attributes %v", attributes)
	}
	var r Record
	if err := json.Unmarshal([]byte(got[0].Body.StringValue), &r); err != nil || r.Host != "a.test" || strings.Contains(got[0].Body.StringValue, "s3cr3t") {
		t.Errorf("body %v %s", err, got[0].Body.StringValue)
	}
}

// A collector that fails costs records, which are counted, and nothing else.
func TestExportThatFails(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	e := NewExporter(srv.URL+"/v1/logs", "p", new(http.Transport))
	for range exportQueue * 2 {
		e.Put(&Record{Host: "a.test"})
	}
	e.Close()
	srv.Close()
	if n, why := e.Lost(); n != exportQueue*2 || !strings.Contains(why, "418") {
		t.Errorf("lost %d: %s", n, why)
	}
}
