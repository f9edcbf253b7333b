package box

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strings"
)

// User is the one account of a box.
type User struct {
	Name  string
	UID   int
	GID   int
	Home  string
	Shell string // "" is /bin/sh
}

// Identity is what the files of a box say about it.
type Identity struct {
	Box      string // the box's id
	Project  string
	Backend  string
	Hostname string // one label
	User     User
	Resolver netip.Addr // of our DNS inside the box
}

// EtcFiles returns the files of /etc that a box gets from us instead of from
// the host, by absolute path. All are for 0444.
func EtcFiles(id Identity) (map[string][]byte, error) {
	marker, err := json.Marshal(struct {
		Box     string `json:"box"`
		Project string `json:"project"`
		Backend string `json:"backend"`
	}{id.Box, id.Project, id.Backend})
	if err != nil {
		return nil, fmt.Errorf("describe box %s: %w", id.Box, err)
	}
	passwd, err := Passwd(id.User)
	if err != nil {
		return nil, err
	}
	if !label(id.Hostname) {
		return nil, fmt.Errorf("hostname %q: want one label of letters, digits and dashes", id.Hostname)
	}
	if !id.Resolver.IsValid() {
		return nil, fmt.Errorf("box %s: no resolver address", id.Box)
	}
	return map[string][]byte{
		MarkerPath:           append(marker, '\n'),
		"/etc/passwd":        passwd,
		"/etc/group":         Group(id.User),
		"/etc/hostname":      []byte(id.Hostname + "\n"),
		"/etc/hosts":         Hosts(id.Hostname),
		"/etc/nsswitch.conf": Nsswitch(),
		"/etc/resolv.conf":   Resolv(id.Resolver),
	}, nil
}

// Passwd returns /etc/passwd: root, the user and nobody, each number and name
// once.
func Passwd(u User) ([]byte, error) {
	for _, field := range []string{u.Name, u.Home, u.Shell} {
		if strings.ContainsAny(field, ":\n\x00") {
			return nil, fmt.Errorf("user %q: %q cannot stand in /etc/passwd", u.Name, field)
		}
	}
	if u.Name == "" || u.Home == "" {
		return nil, fmt.Errorf("user %q (uid %d): want a name and a home", u.Name, u.UID)
	}
	shell := u.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	var b bytes.Buffer
	if u.UID != 0 && u.Name != "root" {
		b.WriteString("root:x:0:0:root:/root:/usr/sbin/nologin\n")
	}
	fmt.Fprintf(&b, "%s:x:%d:%d::%s:%s\n", u.Name, u.UID, u.GID, u.Home, shell)
	if u.UID != 65534 && u.Name != "nobody" {
		b.WriteString("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
	}
	return b.Bytes(), nil
}

// Group returns /etc/group for a user that Passwd accepts.
func Group(u User) []byte {
	var b bytes.Buffer
	if u.GID != 0 && u.Name != "root" {
		b.WriteString("root:x:0:\n")
	}
	fmt.Fprintf(&b, "%s:x:%d:\n", u.Name, u.GID)
	if u.GID != 65534 && u.Name != "nogroup" {
		b.WriteString("nogroup:x:65534:\n")
	}
	return b.Bytes()
}

// Hosts returns /etc/hosts: loopback is the box's own.
func Hosts(hostname string) []byte {
	return []byte("127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n")
}

// Nsswitch returns /etc/nsswitch.conf: files and our DNS only, no daemon of the
// host.
func Nsswitch() []byte {
	return []byte(`passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
ethers: files
rpc: files
`)
}

// Resolv returns /etc/resolv.conf. There is no search domain: a single label is
// asked for as it is.
func Resolv(resolver netip.Addr) []byte {
	return []byte("nameserver " + resolver.String() + "\noptions timeout:3 attempts:2\n")
}

// TrustFiles returns the certificate files of a box by absolute path: our CA,
// the bundle of the system's roots and the operator's own with ours at the end,
// the same for Java, and those but the system's. The result may be shared by
// all boxes.
func TrustFiles(ca, system, own []byte) (map[string][]byte, error) {
	if block, _ := pem.Decode(ca); block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("the CA is no PEM certificate")
	}
	bundle := lines(system, own, ca)
	return map[string][]byte{CAPath: ca, BundlePath: bundle, JavaPath: JavaTrustStore(bundle), ExtraPath: lines(own, ca)}, nil
}

// lines joins texts, so that each begins a line.
func lines(texts ...[]byte) []byte {
	var out []byte
	for _, t := range texts {
		if t = bytes.TrimRight(t, "\n"); len(t) > 0 {
			out = append(append(out, t...), '\n')
		}
	}
	return out
}

// SystemStores are the places where distributions keep the system's roots as
// one file; a wall may mount BundlePath over those that exist.
func SystemStores() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
		"/etc/ssl/ca-bundle.pem",
		"/etc/ssl/cert.pem",
	}
}

func label(s string) bool {
	for _, c := range []byte(s) {
		if c != '-' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 63 && s[0] != '-'
}
