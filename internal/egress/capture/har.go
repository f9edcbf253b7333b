package capture

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// WriteHAR writes the HTTP requests among recs as one HAR 1.2 log. What a record does not know is what HAR says for unknown: -1,
// or an empty list. Fields that a record has and HAR has not are under "_foldyard".
func WriteHAR(w io.Writer, recs []*Record) error {
	var doc harDoc
	doc.Log.Version = "1.2"
	doc.Log.Creator.Name, doc.Log.Creator.Version = "foldyard", "1"
	doc.Log.Entries = []harEntry{}
	for _, r := range recs {
		if r.Method != "" && r.Method != "CONNECT" && r.Host != "" {
			doc.Log.Entries = append(doc.Log.Entries, entry(r))
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	if err := e.Encode(doc); err != nil {
		return fmt.Errorf("write HAR: %w", err)
	}
	return nil
}

type harDoc struct {
	Log struct {
		Version string `json:"version"`
		Creator struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"creator"`
		Entries []harEntry `json:"entries"`
	} `json:"log"`
}

type harEntry struct {
	Started  string      `json:"startedDateTime"`
	Time     int64       `json:"time"`
	Request  harRequest  `json:"request"`
	Response harResponse `json:"response"`
	Cache    struct{}    `json:"cache"`
	Timings  harTimings  `json:"timings"`
	Server   string      `json:"serverIPAddress,omitempty"`
	Record   *Record     `json:"_foldyard"`
}

type harPair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type harRequest struct {
	Method   string    `json:"method"`
	URL      string    `json:"url"`
	Version  string    `json:"httpVersion"`
	Cookies  []harPair `json:"cookies"`
	Headers  []harPair `json:"headers"`
	Query    []harPair `json:"queryString"`
	HeadSize int64     `json:"headersSize"`
	BodySize int64     `json:"bodySize"`
}

type harResponse struct {
	Status     int        `json:"status"`
	StatusText string     `json:"statusText"`
	Version    string     `json:"httpVersion"`
	Cookies    []harPair  `json:"cookies"`
	Headers    []harPair  `json:"headers"`
	Content    harContent `json:"content"`
	Redirect   string     `json:"redirectURL"`
	HeadSize   int64      `json:"headersSize"`
	BodySize   int64      `json:"bodySize"`
	Error      string     `json:"_error,omitempty"`
}

type harContent struct {
	Size int64  `json:"size"`
	Type string `json:"mimeType"`
}

type harTimings struct {
	Send    int64 `json:"send"`
	Wait    int64 `json:"wait"`
	Receive int64 `json:"receive"`
}

func entry(r *Record) harEntry {
	version := "HTTP/1.1"
	if r.Proto == ProtoHTTP2 || r.Proto == ProtoGRPC {
		version = "HTTP/2"
	}
	total, wait := orUnknown(r.Millis), orUnknown(r.TTFBMillis)
	receive := int64(-1)
	if total >= 0 && wait >= 0 {
		receive = max(0, total-wait)
	}
	headers := []harPair{{"Host", r.Host}}
	if r.UA != "" {
		headers = append(headers, harPair{"User-Agent", r.UA})
	}
	server, _, err := net.SplitHostPort(r.Upstream)
	if err != nil {
		server = ""
	}
	return harEntry{
		Started: string(appendTime(nil, r.TS)),
		Time:    max(0, total),
		Request: harRequest{
			Method: r.Method, URL: recordURL(r), Version: version, Cookies: []harPair{}, Headers: headers, Query: query(r.Path),
			HeadSize: -1, BodySize: orUnknown(r.ReqBytes),
		},
		Response: harResponse{
			Status: r.Status, Version: version, Cookies: []harPair{}, Headers: []harPair{}, HeadSize: -1, BodySize: orUnknown(r.RespBytes),
			Content: harContent{Size: max(0, orUnknown(r.RespBytes))}, Error: r.Error,
		},
		Timings: harTimings{Wait: max(0, wait), Receive: max(0, receive)},
		Server:  server,
		Record:  r,
	}
}

func orUnknown(i Int) int64 {
	if n, ok := i.Get(); ok {
		return n
	}
	return -1
}

func recordURL(r *Record) string {
	scheme := r.Scheme
	if scheme == "" {
		scheme = "https"
	}
	host := r.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if r.Port != 0 && !(scheme == "https" && r.Port == 443) && !(scheme == "http" && r.Port == 80) {
		host += ":" + strconv.Itoa(int(r.Port))
	}
	return scheme + "://" + host + r.Path
}

// query splits the query of a path in its order. What cannot be decoded stays as it is.
func query(path string) []harPair {
	pairs := []harPair{}
	_, q, _ := strings.Cut(path, "?")
	for q != "" {
		var one string
		one, q, _ = strings.Cut(q, "&")
		if one == "" {
			continue
		}
		name, value, _ := strings.Cut(one, "=")
		pairs = append(pairs, harPair{decoded(name), decoded(value)})
	}
	return pairs
}

func decoded(s string) string {
	if d, err := url.QueryUnescape(s); err == nil {
		return d
	}
	return s
}
