package proxy

import (
	"strings"

	"foldyard/internal/egress/http1"
)

// Some servers take a whole connection to be whoever once showed a credential
// on it (NTLM and Negotiate, RFC 4559). An upstream connection that may be such
// a one is its client's alone: it is not pooled, and ends with the client.

// personal reports whether an exchange may have bound its connection to a user.
func personal(req, resp http1.Header) bool {
	return bindsUser(req, "Authorization") || bindsUser(resp, "WWW-Authenticate")
}

func bindsUser(h http1.Header, name string) bool {
	for _, f := range h {
		if len(f.Name) == len(name) && strings.EqualFold(f.Name, name) && bindingScheme(f.Value) {
			return true
		}
	}
	return false
}

// bindingScheme looks for the schemes in a credential or a list of challenges.
func bindingScheme(value string) bool {
	for part := range strings.SplitSeq(value, ",") {
		scheme, _, _ := strings.Cut(strings.TrimSpace(part), " ")
		if strings.EqualFold(scheme, "NTLM") || strings.EqualFold(scheme, "Negotiate") {
			return true
		}
	}
	return false
}

// take returns the connection that is this client's alone, if it leads where k
// does and is still open.
func (s *session) take(k poolKey) *upstream {
	u := s.own
	if u == nil || u.key != k {
		return nil
	}
	s.own = nil
	if !u.fresh() {
		_ = u.Close() // nobody waits for it
		return nil
	}
	u.open()
	return u
}

// keep sets a connection aside for this client, in the place of another.
func (s *session) keep(u *upstream) {
	if u.br.Buffered() > 0 {
		u.abort()
		return
	}
	u.release()
	u.used = true
	s.part()
	s.own = u
}

// part ends the connection that was kept.
func (s *session) part() {
	if s.own != nil {
		_ = s.own.Close() // nobody waits for it
		s.own = nil
	}
}
