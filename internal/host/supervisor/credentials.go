package supervisor

import (
	"fmt"

	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/control"
)

// credentialNotes are what status says about credentials.
func (s *Supervisor) credentialNotes() []string {
	var out []string
	snap := s.effective.Snapshot()
	for _, r := range s.creds.in.Status() {
		if r.Off != "" {
			out = append(out, fmt.Sprintf("no credential %s: %s: %s", r.Rule, r.Off, r.Fix))
		}
		for _, h := range r.Hosts {
			if t, err := dest.ParseAuthority(h, 443); err == nil && !snap.Granted(t.Host, "", s.now()) {
				out = append(out, fmt.Sprintf("the credential %s goes to %s, which is not granted: fy allow %s", r.Rule, h, h))
			}
		}
	}
	s.creds.mu.Lock()
	defer s.creds.mu.Unlock()
	if s.creds.fault != nil {
		out = append(out, "credentials are off: "+s.creds.fault.Error())
	}
	for _, a := range s.creds.alerts {
		times := ""
		if a.times > 1 {
			times = fmt.Sprintf(", %d times", a.times)
		}
		out = append(out, fmt.Sprintf("alert %s%s: %s: %s (%s, box %s): fy log --denied", a.at.UTC().Format("15:04:05Z"), times, a.Reason, a.Detail, a.Host, a.Box))
	}
	return out
}

// credentialList is the rules as status shows them.
func (s *Supervisor) credentialList() []control.Credential {
	var out []control.Credential
	for _, r := range s.creds.in.Status() {
		out = append(out, control.Credential{
			Name: r.Rule, Kind: r.Kind, Place: r.Place, Hosts: r.Hosts, Path: r.Path, Off: r.Off, Fix: r.Fix,
			Scope: r.Scope, Read: r.Read, Expires: r.Expires,
		})
	}
	return out
}

// wouldCarry says which credential a request would carry, nil if none.
func (s *Supervisor) wouldCarry(q policy.Query, d policy.Decision) *string {
	if q.Scheme == policy.SchemeHTTP || q.Target.Port == 80 {
		return nil
	}
	path := q.Path
	if path == "" {
		path = "/"
	}
	r, ok := s.creds.in.Would(q.Target, q.Method, path)
	if !ok {
		return nil
	}
	text := fmt.Sprintf("%s (%s, %s)", r.Rule, r.Kind, r.Place)
	switch {
	case r.Off != "":
		text += ": off: " + r.Off + ": " + r.Fix
	case d.Verdict != policy.Allow:
		text += ": not without a grant"
	default:
		if r.Scope != "" {
			text += ": " + r.Scope
		}
		if !r.Read.IsZero() {
			text += ", read " + r.Read.UTC().Format("2006-01-02 15:04:05Z")
		}
		if !r.Expires.IsZero() {
			text += ", until " + r.Expires.UTC().Format("2006-01-02 15:04:05Z")
		}
	}
	return &text
}
