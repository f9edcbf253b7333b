// Package doctor says whether this computer can do what foldyard needs, row by
// row, each with its fix. It looks, and changes nothing; the rows of a backend
// are handed to it.
package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// State of a row.
const (
	OK   = "ok"
	Warn = "warn"
	Fail = "fail"
)

// Row is one thing that was looked at.
type Row struct {
	Name   string `json:"name"`
	State  string `json:"state"` // ok, warn, fail; anything else counts as fail
	Detail string `json:"detail"`
	Fix    string `json:"fix"` // a command or a sentence; "" when ok
}

// Options say where to look.
type Options struct {
	Inside  bool      // this process runs in a box
	Now     time.Time //
	Built   time.Time // when this binary was made; zero: not known
	Config  string    // directory of config.toml
	State   string    // directory of the projects' state
	CA      string    // directory of the authority
	Project string    // the project's directory; "" for none
	Program string    // path of the fy that was started

	// Wall looks at what the backend needs.
	Wall func(ctx context.Context) []Row
	// Roots returns the system's certificates and where they are.
	Roots func() ([]byte, string, error)
	// Resolver is the configured one; "" is the system's.
	Resolver string
	Getenv   func(string) string
}

// Healthy reports whether no row failed.
func Healthy(rows []Row) bool {
	for _, r := range rows {
		if r.State != OK && r.State != Warn {
			return false
		}
	}
	return len(rows) > 0
}

// Run looks at everything and returns the rows in the order to show them.
func Run(ctx context.Context, o Options) []Row {
	if o.Inside {
		return []Row{{"host", Fail, "this is a box; the doctor looks at the operator's computer", "run fy doctor outside the box"}}
	}
	var rows []Row
	if o.Wall != nil {
		rows = append(rows, o.Wall(ctx)...)
	}
	rows = append(rows, clock(o)...)
	rows = append(rows, directory("config directory", o.Config), directory("state directory", o.State))
	rows = append(rows, disk(o.State), authority(o), roots(o), resolver(o), files(), program(o))
	if r, ok := upstream(o); ok {
		rows = append(rows, r)
	}
	return rows
}

func clock(o Options) []Row {
	year := o.Now.UTC().Format("2006-01-02 15:04 UTC")
	if !o.Built.IsZero() && o.Now.Before(o.Built.Add(-24*time.Hour)) {
		return []Row{{
			"clock", Fail, "it is " + year + ", before this fy was made (" + o.Built.UTC().Format("2006-01-02") + "): certificates will not verify",
			"set the clock, such as with: sudo timedatectl set-ntp true",
		}}
	}
	return []Row{{"clock", OK, year, ""}}
}

// directory looks at one of foldyard's own: nobody else may write there, and
// what is secret lies in it.
func directory(name, path string) Row {
	if path == "" {
		return Row{name, Fail, "not known", "set HOME or FOLDYARD_HOME"}
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Row{name, OK, path + " is made when first needed", ""}
	case err != nil:
		return Row{name, Fail, err.Error(), "see that you own " + path}
	case info.Mode()&fs.ModeSymlink != 0:
		if info, err = os.Stat(path); err != nil {
			return Row{name, Fail, err.Error(), "remove the link " + path}
		}
	}
	if !info.IsDir() {
		return Row{name, Fail, path + " is no directory", "move it away"}
	}
	if owner, ok := owner(info); ok && owner != os.Getuid() {
		return Row{name, Fail, fmt.Sprintf("%s belongs to uid %d, not to you (%d)", path, owner, os.Getuid()), "sudo chown -R " + fmt.Sprint(os.Getuid()) + " " + quote(path)}
	}
	if perm := info.Mode().Perm(); perm&0o022 != 0 {
		return Row{name, Fail, fmt.Sprintf("%s can be written by others (mode %04o)", path, perm), "chmod 700 " + quote(path)}
	}
	return Row{name, OK, path, ""}
}

// Room that a state directory needs, in bytes.
const (
	roomFail = 64 << 20
	roomWarn = 1 << 30
)

func disk(path string) Row {
	const name = "disk"
	for path != "" && path != "/" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Row{name, Warn, fmt.Sprintf("%s: %v", path, err), "see that " + path + " is mounted"}
	}
	return room(path, uint64(st.Bavail)*uint64(st.Bsize))
}

func room(path string, free uint64) Row {
	detail := fmt.Sprintf("%d MiB free at %s", free>>20, path)
	switch {
	case free < roomFail:
		return Row{"disk", Fail, detail + ": the log stops, and state cannot be saved", "make room"}
	case free < roomWarn:
		return Row{"disk", Warn, detail, "make room soon: the log stops when it is full"}
	}
	return Row{"disk", OK, detail, ""}
}

func authority(o Options) Row {
	const name = "CA"
	certPath, keyPath := filepath.Join(o.CA, "ca.pem"), filepath.Join(o.CA, "ca-key.pem")
	cert, err := os.ReadFile(certPath)
	if errors.Is(err, fs.ErrNotExist) {
		if _, kerr := os.Stat(keyPath); kerr == nil {
			return Row{name, Fail, certPath + " is missing, its key is there", "fy ca rotate"}
		}
		return Row{name, OK, "made at the first start", ""}
	}
	if err != nil {
		return Row{name, Fail, err.Error(), "see that you own " + o.CA}
	}
	info, err := os.Stat(keyPath)
	if err != nil {
		return Row{name, Fail, err.Error(), "fy ca rotate"}
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Row{name, Fail, fmt.Sprintf("%s can be read by others (mode %04o)", keyPath, info.Mode().Perm()), "chmod 600 " + quote(keyPath) + " && fy ca rotate"}
	}
	if _, err := tls.LoadX509KeyPair(certPath, keyPath); err != nil {
		return Row{name, Fail, fmt.Sprintf("%s: %v", certPath, err), "fy ca rotate"}
	}
	block, _ := pem.Decode(cert)
	if block == nil {
		return Row{name, Fail, certPath + " is no PEM file", "fy ca rotate"}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return Row{name, Fail, fmt.Sprintf("%s: %v", certPath, err), "fy ca rotate"}
	case !c.IsCA:
		return Row{name, Fail, certPath + " is no CA certificate", "fy ca rotate"}
	case o.Now.Before(c.NotBefore):
		return Row{name, Fail, "valid only from " + c.NotBefore.UTC().Format(time.RFC3339) + ": the clock is behind", "set the clock"}
	case o.Now.After(c.NotAfter):
		return Row{name, Fail, "ended at " + c.NotAfter.UTC().Format(time.RFC3339), "fy ca rotate"}
	case o.Now.After(c.NotAfter.Add(-30 * 24 * time.Hour)):
		return Row{name, Warn, "ends at " + c.NotAfter.UTC().Format(time.RFC3339), "fy ca rotate"}
	}
	return Row{name, OK, "valid until " + c.NotAfter.UTC().Format("2006-01-02"), ""}
}

func roots(o Options) Row {
	const name = "system certificates"
	if o.Roots == nil {
		return Row{name, Warn, "not looked for", ""}
	}
	bundle, from, err := o.Roots()
	if err != nil {
		return Row{name, Fail, err.Error(), "install the package ca-certificates"}
	}
	n := strings.Count(string(bundle), "-----BEGIN CERTIFICATE-----")
	if n == 0 {
		return Row{name, Fail, from + " holds none: no upstream can be verified", "install the package ca-certificates"}
	}
	return Row{name, OK, fmt.Sprintf("%d in %s", n, from), ""}
}

func resolver(o Options) Row {
	const name = "resolver"
	if o.Resolver != "" {
		return Row{name, OK, o.Resolver + ", from config.toml", ""}
	}
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return Row{name, Warn, err.Error(), "name one in config.toml: [upstream] resolver"}
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			return Row{name, OK, f[1] + ", the system's", ""}
		}
	}
	return Row{name, Warn, "/etc/resolv.conf names none", "name one in config.toml: [upstream] resolver"}
}

// wantFiles is how many descriptors a supervisor under load needs.
const wantFiles = 4096

func files() Row {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return Row{"open files", Warn, err.Error(), ""}
	}
	if lim.Max < wantFiles {
		return Row{"open files", Warn, fmt.Sprintf("at most %d: fewer connections at once than the limits allow", lim.Max), "raise it: ulimit -Hn 65536, or in limits.conf"}
	}
	return Row{"open files", OK, fmt.Sprintf("up to %d", lim.Max), ""}
}

// program looks whether a box could change the fy that the operator starts.
func program(o Options) Row {
	const name = "fy"
	if o.Program == "" {
		return Row{name, Warn, "its own path is not known", ""}
	}
	if o.Project != "" && within(o.Project, o.Program) {
		return Row{name, Warn, o.Program + " lies in the project, where a box can change it", "install it outside, such as: install " + quote(o.Program) + " ~/.local/bin/"}
	}
	info, err := os.Stat(o.Program)
	if err != nil {
		return Row{name, Warn, err.Error(), ""}
	}
	if info.Mode().Perm()&0o022 != 0 {
		return Row{name, Fail, o.Program + " can be written by others", "chmod 755 " + quote(o.Program)}
	}
	return Row{name, OK, o.Program, ""}
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func upstream(o Options) (Row, bool) {
	if o.Getenv == nil {
		return Row{}, false
	}
	for _, n := range []string{"HTTPS_PROXY", "https_proxy"} {
		if o.Getenv(n) != "" {
			return Row{"upstream proxy", Warn, "from " + n + ": names are resolved there, so address classes and rebinding are that proxy's to judge", "unset " + n + " if that is not wanted"}, true
		}
	}
	return Row{}, false
}

// quote makes a path one word of a shell.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
