package proxy

import (
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strings"

	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// TokenUser is the user name that goes with a box's token in a proxy URL.
const TokenUser = "box"

// authorized reports whether a request on the proxy port shows the token of
// its box. Where the listener is the box's own there is none to show.
func (b *BoxWay) authorized(h http1.Header) bool {
	if b.Token == nil {
		return true
	}
	token := b.Token()
	if token == "" {
		return false
	}
	found := false
	for _, v := range h.Values("Proxy-Authorization") {
		if found { // two of them: neither counts
			return false
		}
		found = true
		if !shows(v, token) {
			return false
		}
	}
	return found
}

// shows reports whether a field's value holds token, as Basic (RFC 7617).
func shows(value, token string) bool {
	scheme, rest, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Basic") || len(rest) > 512 {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimLeft(rest, " "))
	if err != nil {
		return false
	}
	want := TokenUser + ":" + token
	return subtle.ConstantTimeCompare(raw, []byte(want)) == 1
}

// tokenless answers a request that shows no token, and ends the connection: it
// says nothing about the target, which is not looked at.
func (s *session) tokenless() {
	n := s.open()
	defer s.e.finish(n)
	n.Method, n.Proto, n.Scheme = s.req.Method, "", ""
	d := malformed(http.StatusProxyAuthRequired, policy.ReasonBadRequest, "this way out is another box's, or the box's token is missing")
	d.fix = "use the box's own FY_PROXY, whole"
	d.close = true
	s.answer(n, d)
}

// tokenlessSocks refuses SOCKS5 where a token is wanted: it is served only on
// a listener that is the box's own.
func (e *Engine) tokenlessSocks(c *client) {
	n := e.begin(c)
	defer e.finish(n)
	n.refused(policy.ReasonBadRequest, "SOCKS5 carries no token: use the box's HTTP proxy")
	_, _ = c.Write([]byte{connect.SocksVersion, 0xff}) // it may be gone
	e.finish(n)
	c.linger()
}
