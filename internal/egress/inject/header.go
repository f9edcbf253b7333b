package inject

import (
	"net/http"
	"net/url"
	"strings"

	"foldyard/internal/egress/http1"
)

// Header is the fields of a message, whatever the protocol.
type Header interface {
	// Rewrite calls f for every field in turn: the field gets the value that f
	// returns, or goes.
	Rewrite(f func(name, value string) (string, bool))
	Get(name string) string
	Set(name, value string)
}

// H1 is the fields of an HTTP/1.1 message.
type H1 struct{ *http1.Header }

// Rewrite implements Header.
func (h H1) Rewrite(f func(name, value string) (string, bool)) {
	out := (*h.Header)[:0]
	for _, field := range *h.Header {
		value, keep := f(field.Name, field.Value)
		if keep {
			field.Value = value
			out = append(out, field)
		}
	}
	*h.Header = out
}

// H2 is the fields of an HTTP/2 message, as net/http keeps them.
type H2 struct{ http.Header }

// Rewrite implements Header.
func (h H2) Rewrite(f func(name, value string) (string, bool)) {
	for name, values := range h.Header {
		kept := values[:0]
		for _, v := range values {
			if v, keep := f(name, v); keep {
				kept = append(kept, v)
			}
		}
		if len(kept) == 0 && len(values) > 0 {
			delete(h.Header, name)
			continue
		}
		h.Header[name] = kept
	}
}

// withoutParameter cuts every parameter called name, however it is written,
// from the query of a target, and reports whether there was one. found gets
// their values as written.
func withoutParameter(target, name string, found func(value string)) string {
	path, query, ok := strings.Cut(target, "?")
	if !ok {
		return target
	}
	var kept []string
	cut := false
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err == nil && strings.EqualFold(plain, name) {
			cut = true
			found(value)
			continue
		}
		kept = append(kept, part)
	}
	if !cut {
		return target
	}
	if len(kept) == 0 {
		return path
	}
	return path + "?" + strings.Join(kept, "&")
}

func withParameter(target, name, value string) string {
	sep := "?"
	if strings.Contains(target, "?") {
		sep = "&"
	}
	return target + sep + url.QueryEscape(name) + "=" + url.QueryEscape(value)
}

// afterScheme returns what follows the first word of a header's value, or all
// of it.
func afterScheme(s string) string {
	if i := strings.LastIndexByte(s, ' '); i >= 0 {
		return s[i+1:]
	}
	return s
}
