package capture

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestHAR(t *testing.T) {
	r := full()
	r.Path = "/har?a=b%20c&d&&%zz=1"
	recs := []*Record{
		r,
		{TS: noon, Host: "2001:db8::1", Port: 8080, Scheme: "http", Method: "GET", Path: "/", Proto: ProtoHTTP2},
		{TS: noon, Host: "t.test", Port: 443, Mode: ModeTunnel},
		{TS: noon, Host: "c.test", Port: 443, Method: "CONNECT"},
		{TS: noon, Host: "a.test", Via: ViaDNS, Proto: ProtoDNS},
	}
	var out bytes.Buffer
	if err := WriteHAR(&out, recs); err != nil {
		t.Fatal(err)
	}
	// What HAR 1.2 requires of every entry, by name.
	var doc struct {
		Log struct {
			Version string
			Creator struct{ Name, Version string }
			Entries []map[string]any
		}
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Log.Version != "1.2" || doc.Log.Creator.Name == "" || doc.Log.Creator.Version == "" || len(doc.Log.Entries) != 2 {
		t.Fatalf("%s", out.String())
	}
	for _, e := range doc.Log.Entries {
		for _, key := range []string{"startedDateTime", "time", "request", "response", "cache", "timings"} {
			if _, ok := e[key]; !ok {
				t.Errorf("an entry without %s", key)
			}
		}
		for part, keys := range map[string][]string{
			"request":  {"method", "url", "httpVersion", "cookies", "headers", "queryString", "headersSize", "bodySize"},
			"response": {"status", "statusText", "httpVersion", "cookies", "headers", "content", "redirectURL", "headersSize", "bodySize"},
			"timings":  {"send", "wait", "receive"},
		} {
			m, _ := e[part].(map[string]any)
			for _, key := range keys {
				if v, ok := m[key]; !ok || v == nil {
					t.Errorf("%s without %s", part, key)
				}
			}
		}
	}
	req, _ := doc.Log.Entries[0]["request"].(map[string]any)
	if req["url"] != "https://a.test/har?a=b%20c&d&&%zz=1" {
		t.Error(req["url"])
	}
	if q, _ := json.Marshal(req["queryString"]); string(q) != `[{"name":"a","value":"b c"},{"name":"d","value":""},{"name":"%zz","value":"1"}]` {
		t.Errorf("%s", q)
	}
	req, _ = doc.Log.Entries[1]["request"].(map[string]any)
	if req["url"] != "http://[2001:db8::1]:8080/" || req["httpVersion"] != "HTTP/2" || req["bodySize"] != -1.0 {
		t.Error(req)
	}
	out.Reset()
	if err := WriteHAR(&out, nil); err != nil || !bytes.Contains(out.Bytes(), []byte(`"entries": []`)) {
		t.Errorf("%s %v", out.String(), err)
	}
}
