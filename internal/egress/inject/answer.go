package inject

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"

	"foldyard/internal/egress/policy"
)

// answer is what is done to what comes back.
type answer struct {
	search bool
	gunzip bool
	unread string // the coding of a body that is passed on unread
	hits   map[*credential]bool
	guess  bool
}

// maxDecoded bounds what is decoded of one answer.
const maxDecoded = 8 << 20

// Header redacts the fields of an answer, interim or final, or of a trailer.
func (g *Grip) Header(h Header) {
	if g == nil || g.view == nil {
		return
	}
	m, owners := g.view.current()
	if m == nil {
		return
	}
	hit := func(i int) { g.hit(owners[i]) }
	h.Rewrite(func(name, value string) (string, bool) {
		if i, ok := m.in(name); ok {
			hit(i)
			return "", false
		}
		return m.redact(value, hit), true
	})
}

// Text redacts the reason phrase of an answer.
func (g *Grip) Text(s string) string {
	if g == nil || g.view == nil {
		return s
	}
	m, owners := g.view.current()
	return m.redact(s, func(i int) { g.hit(owners[i]) })
}

// Answer redacts the head of a final answer and decides how its body is read.
// An answer that is coded, though that was not asked for, and cannot be read is
// refused. It reports whether the length of the body is no longer known.
func (g *Grip) Answer(status int, h Header, bodiless bool) (recoded bool, refusal *Refusal) {
	if g == nil || g.view == nil {
		return false, nil
	}
	g.Header(h)
	if bodiless {
		return false, nil
	}
	coding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	text := readable(h.Get("Content-Type")) || h.Get("Content-Type") == ""
	switch {
	case coding == "" || coding == "identity":
		g.answer.search = true
	case (coding == "gzip" || coding == "x-gzip") && text && status != http.StatusPartialContent:
		g.answer.search, g.answer.gunzip = true, true
		h.Rewrite(func(name, value string) (string, bool) {
			return value, !strings.EqualFold(name, "Content-Encoding") && !strings.EqualFold(name, "Content-Length")
		})
		return true, nil
	case text:
		return false, &Refusal{
			Status: http.StatusBadGateway, Reason: policy.ReasonRedacted,
			What:   "the answer is coded, though that was not asked for, and cannot be searched for the credential",
			Fix:    "ask for it with Accept-Encoding: identity, or from a host without a credential",
			Detail: "content coding " + cut(coding),
		}
	default:
		g.answer.unread = cut(coding)
	}
	return false, nil
}

func cut(s string) string { return s[:min(len(s), 40)] }

// Body returns the body of the answer as it is to be passed on.
func (g *Grip) Body(r io.Reader) io.Reader {
	if !g.Searches() {
		return r
	}
	if g.answer.gunzip {
		r = &gunzip{src: r, left: maxDecoded}
	}
	m, owners := g.view.current()
	if m == nil {
		return r
	}
	out := newReader(r, m, func(i int) error {
		g.hit(owners[i])
		return nil
	})
	out.partial = func() {
		if !g.answer.guess {
			g.answer.guess = true
			for _, c := range g.view.creds {
				c.hit()
			}
			g.alert(policy.ReasonRedacted, g.view.creds[0].name, "an answer stopped in the middle of the beginning of a credential")
		}
	}
	return out
}

// Searches reports whether Body reads the answer.
func (g *Grip) Searches() bool {
	return g != nil && g.answer.search && (g.answer.gunzip || g.view.now() != nil)
}

// hit notes that a credential came back, once an answer.
func (g *Grip) hit(c *credential) {
	if g.answer.hits[c] {
		return
	}
	if g.answer.hits == nil {
		g.answer.hits = map[*credential]bool{}
	}
	g.answer.hits[c] = true
	c.hit()
	g.alert(policy.ReasonRedacted, c.name, "the credential was in the answer, and was masked")
}

func (g *Grip) alert(reason policy.Reason, rule, detail string) {
	g.in.cfg.Alert(Alert{Reason: reason, Rule: rule, Box: g.req.Box, Host: g.req.Target.String(), Detail: detail})
}

// Outcome is what a record says of it.
type Outcome struct {
	Injected string
	Replayed bool
	Redacted bool
	Note     string // what else happened; "" nothing
	Query    string // the parameter that carries the credential
}

// Outcome returns what was done, once the exchange is over.
func (g *Grip) Outcome() Outcome {
	if g == nil {
		return Outcome{}
	}
	o := Outcome{Injected: g.Rule, Replayed: g.replayed, Redacted: len(g.answer.hits) > 0 || g.answer.guess}
	if g.rule != nil {
		o.Query = g.rule.Query
	}
	if g.answer.unread != "" {
		o.Note = "answer passed unread: content coding " + g.answer.unread
	}
	return o
}

// gunzip decodes at most left bytes.
type gunzip struct {
	src  io.Reader
	zr   *gzip.Reader
	left int64
}

// ErrTooMuch is the end of a coded answer that was too large to be searched.
var ErrTooMuch = errors.New("the coded answer is over 8 MiB")

var errCoded = errors.New("the coded answer is not what its coding says")

func (d *gunzip) Read(p []byte) (int, error) {
	if d.zr == nil {
		zr, err := gzip.NewReader(d.src)
		if err != nil {
			return 0, errCoded
		}
		d.zr = zr
	}
	n, err := d.zr.Read(p)
	if d.left -= int64(n); d.left < 0 {
		return 0, ErrTooMuch
	}
	if err != nil && err != io.EOF { //nolint:errorlint // as io.Reader says
		err = errCoded
	}
	return n, err
}

// readable reports whether a body of this type is text that is worth reading.
func readable(contentType string) bool {
	t, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	t = strings.TrimSpace(t)
	if strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "+xml") {
		return true
	}
	switch t {
	case "application/json", "application/x-www-form-urlencoded", "application/xml", "application/javascript",
		"application/x-ndjson", "application/jsonl", "application/graphql", "application/x-amz-json-1.0", "application/x-amz-json-1.1",
		"application/yaml", "application/x-yaml", "application/toml", "multipart/form-data":
		return true
	}
	return false
}
