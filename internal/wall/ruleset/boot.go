package ruleset

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
)

// Places in the guest that the boot script writes and the host reads.
const (
	ReportPath  = "/run/foldyard/report"   // written last: without it the boot failed
	BootLogPath = "/run/foldyard/boot.log" // what the script did, and where it stopped
)

// Boot is what happens as root in the guest, at every boot and at no other time.
type Boot struct {
	User     string // the VM's user
	UID      int
	CA       string // PEM, one certificate
	Firewall bool
	Guest    Guest
}

//go:embed boot.sh
var bootScript string

// digestMark stands in the script where its own digest goes.
const digestMark = "@DIGEST@"

// Script renders the boot script, and returns the digest that its report carries.
func (b Boot) Script() (script, digest string, err error) {
	if !plain().MatchString(b.User) || b.User == "root" {
		return "", "", fmt.Errorf("VM user %q: want a plain name that is not root", b.User)
	}
	if b.UID <= 0 {
		return "", "", fmt.Errorf("VM user id %d: want one that is not root's", b.UID)
	}
	if err := b.Guest.Check(); err != nil {
		return "", "", err
	}
	ca := strings.TrimSpace(b.CA)
	if !strings.HasPrefix(ca, "-----BEGIN CERTIFICATE-----\n") || strings.ContainsAny(ca, "'\\$`@{") {
		return "", "", fmt.Errorf("the CA is no PEM certificate")
	}
	firewall := "off"
	if b.Firewall {
		firewall = "on"
	}
	var units strings.Builder
	rendered := GuestUnits()
	for _, path := range sortedKeys(rendered) {
		fmt.Fprintf(&units, "put %s <<'FY_END'\n%sFY_END\n", path, rendered[path])
	}
	text := strings.NewReplacer(
		"@USER@", b.User, "@UID@", fmt.Sprint(b.UID), "@FIREWALL@", firewall, "@UNBOUND@", Unbound().String(),
		"@CA@\n", ca+"\n", "@TABLE@\n", b.Guest.template(), "@UNITS@\n", units.String(),
		"@GUEST_TABLE@", TablePath, "@UNIT@", UnitName, "@REPORT@", ReportPath, "@LOG@", BootLogPath,
	).Replace(bootScript)
	sum := sha256.Sum256([]byte(text))
	digest = hex.EncodeToString(sum[:])
	return strings.ReplaceAll(text, digestMark, digest), digest, nil
}

// Report is what the boot script wrote last.
type Report struct {
	Digest   string
	Firewall bool
	Walled   string // the user ids as nft took them
	BootID   string
}

// ParseReport reads a report. It is the guest's word.
func ParseReport(text string) (Report, error) {
	var r Report
	if len(text) > 4096 {
		return r, fmt.Errorf("boot report: %d bytes, want at most 4096", len(text))
	}
	head, rest, _ := strings.Cut(text, "\n")
	if head != "foldyard boot report 1" {
		return r, fmt.Errorf("boot report: not one")
	}
	seen := map[string]bool{}
	for line := range strings.Lines(rest) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || seen[key] {
			return Report{}, fmt.Errorf("boot report: a bad line")
		}
		seen[key] = true
		switch key {
		case "digest":
			r.Digest = value
		case "firewall":
			r.Firewall = value == "on"
		case "walled":
			r.Walled = value
		case "boot":
			r.BootID = value
		default:
			return Report{}, fmt.Errorf("boot report: a bad line")
		}
	}
	for _, want := range []string{"digest", "firewall", "walled", "boot"} {
		if !seen[want] {
			return Report{}, fmt.Errorf("boot report: no %s", want)
		}
	}
	return r, nil
}
