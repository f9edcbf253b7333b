package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"foldyard/internal/egress/dest"
	"foldyard/internal/host/control"
	"foldyard/internal/proof/doctor"
)

// handshakeTime bounds what the doctor tries in a box.
const handshakeTime = 40 * time.Second

// clientScript has the clients of a box shake hands with the supervisor's own name, as strictly as each can, and then, where $1 is a
// granted passthrough host, with that. It prints a line each: what, how it went, and the client's last words.
const clientScript = `
try() {
	family=$1; shift
	command -v "$1" >/dev/null 2>&1 || return 0
	if said=$("$@" 2>&1 </dev/null); then echo "$how ok $family"; else echo "$how fail $family: $(echo "$said" | tail -n 1)"; fi
}
all() {
	try openssl openssl s_client -brief -x509_strict -verify_return_error -verify_hostname "$1" -servername "$1" -CAfile /etc/foldyard/bundle.pem -connect "$1:443"
	try python3 python3 -c 'import socket, ssl, sys
c = ssl.create_default_context(); c.verify_flags |= ssl.VERIFY_X509_STRICT
c.wrap_socket(socket.create_connection((sys.argv[1], 443), 10), server_hostname=sys.argv[1])' "$1"
	try curl curl -sS -m 10 -o /dev/null "https://$1/"
	try node node -e 'require("https").get("https://" + process.argv[1] + "/", r => process.exit(0)).on("error", e => { console.log(e.message); process.exit(1) })' "$1"
}
how=decrypted; all ` + dest.ControlName + `
if [ -n "$1" ]; then how=tunnelled; all "$1"; fi
`

// handshakes tells which families of clients would trust a box's connections: it runs those that are here in a box of its own.
func (a *app) handshakes(ctx context.Context, passthrough []string) []doctor.Row {
	const name, fix = "clients in a box", "fy supervisor logs, fy log"
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	c, _, err := a.connect(ctx)
	if err != nil {
		return []doctor.Row{{Name: name, State: doctor.Fail, Detail: err.Error(), Fix: fix}}
	}
	defer c.Close()
	tunnelled := a.tunnelled(ctx, c, passthrough)
	said, err := a.inBox(ctx, c, []string{"/bin/sh", "-c", clientScript, "sh", tunnelled})
	if err != nil {
		return []doctor.Row{{Name: name, State: doctor.Fail, Detail: err.Error(), Fix: fix}}
	}
	rows := clientRows(said)
	if tunnelled == "" {
		rows = append(rows, doctor.Row{Name: "tunnelled handshake", State: doctor.OK, Detail: "not tried: no passthrough host is granted"})
	}
	return rows
}

// clientRows reads what clientScript printed. The box is a stranger: what it says is shown, and never makes another row.
func clientRows(said string) []doctor.Row {
	var rows []doctor.Row
	for _, how := range []struct{ word, name, fix string }{
		{"decrypted", "clients in a box", "it does not trust foldyard's certificates: see which file or store it reads, and /etc/foldyard in the box"},
		{"tunnelled", "tunnelled handshake", "it does not trust the real certificate: is its authority among the system's, or in [upstream] ca?"},
	} {
		var ok []string
		for line := range strings.Lines(said) {
			rest, mine := strings.CutPrefix(strings.TrimSpace(line), how.word+" ")
			if family, good := strings.CutPrefix(rest, "ok "); mine && good {
				ok = append(ok, family)
			} else if problem, bad := strings.CutPrefix(rest, "fail "); mine && bad {
				rows = append(rows, doctor.Row{Name: how.name, State: doctor.Fail, Detail: problem, Fix: how.fix})
			}
		}
		if len(ok) > 0 {
			rows = append(rows, doctor.Row{Name: how.name, State: doctor.OK, Detail: "verified by " + strings.Join(ok, ", ")})
		}
	}
	if len(rows) == 0 {
		rows = append(rows, doctor.Row{Name: "clients in a box", State: doctor.Warn, Detail: "none of openssl, python3, curl and node is here to try"})
	}
	return rows
}

// tunnelled is the first passthrough host that a box may reach, "" if there is none.
func (a *app) tunnelled(ctx context.Context, c *control.Client, passthrough []string) string {
	for _, p := range passthrough {
		h, err := dest.ParseHost(p)
		if err != nil || h.Name() == "" {
			continue // a pattern
		}
		if w, err := c.Why(ctx, control.WhyRequest{Target: h.Name()}); err == nil && w.Verdict == "allow" && strings.HasPrefix(w.Mode, "tunnelled") {
			return h.Name()
		}
	}
	return ""
}

// inBox runs argv in a box of its own and returns what it printed, at most 64 KiB of it.
func (a *app) inBox(ctx context.Context, c *control.Client, argv []string) (string, error) {
	b, err := c.CreateBox(ctx, control.BoxRequest{Oneshot: true, RO: true})
	if err != nil {
		return "", err
	}
	defer func() { _, _ = c.StopBox(context.WithoutCancel(ctx), b.ID) }() // it ends with its command in any case
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	var said bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&said, io.LimitReader(r, 64<<10)) // what came counts
		_, _ = io.Copy(io.Discard, r)
	}()
	quiet := *a
	quiet.Stdin, quiet.Stdout, quiet.Stderr = null, w, w
	_, err = (&relay{a: &quiet, box: b, launch: true}).run(ctx, argv)
	_ = w.Close() // nothing is written to it any more
	<-read
	return said.String(), err
}
