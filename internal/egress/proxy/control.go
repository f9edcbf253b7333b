package proxy

import (
	"bytes"
	"net/http"
	"net/url"
	"strconv"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/http1"
)

// control answers a request for the supervisor's own name, in process.
func (s *session) control(n *note, a *asked, h http.Handler) bool {
	n.silent = a.target.Host.Name() == dest.ControlName
	n.Verdict = capture.VerdictAllow
	n.Mode = capture.ModeDecrypted
	if s.req.Length != 0 && !s.drained() {
		return s.refuse(n, malformed(http.StatusRequestEntityTooLarge, "limit", "the control name takes no body"))
	}
	u, err := url.ParseRequestURI(a.path)
	if err != nil {
		return s.refuse(n, malformed(http.StatusBadRequest, "bad_request", "the path is not one"))
	}
	r := (&http.Request{
		Method: s.req.Method, URL: u, RequestURI: a.path, Host: s.req.Host, Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header), RemoteAddr: s.c.RemoteAddr().String(),
	}).WithContext(s.c.ctx)
	for _, f := range s.req.Header {
		r.Header.Add(f.Name, f.Value)
	}
	w := &recorder{header: make(http.Header)}
	h.ServeHTTP(w, r)
	out := http1.Response{
		Minor: 1, Status: max(w.status, http.StatusOK), Length: int64(w.body.Len()), Close: s.req.Close,
		NoBody: s.req.Method == http.MethodHead,
	}
	out.Text, n.Status = http.StatusText(out.Status), out.Status
	w.header.Set("Content-Length", strconv.Itoa(w.body.Len()))
	for k, vs := range w.header {
		for _, v := range vs {
			out.Header.Add(k, v)
		}
	}
	if out.WriteHead(s.bw) != nil {
		return false
	}
	if !out.NoBody {
		_, _ = s.bw.Write(w.body.Bytes()) // errors are sticky
	}
	if s.bw.Flush() != nil {
		return false
	}
	if out.Close {
		s.hangUp()
	}
	return !out.Close
}

// recorder keeps a small answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}
