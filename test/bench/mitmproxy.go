package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// mitmproxy compares with a peer, where it is installed.
func (w *world) mitmproxy(r *report, rounds int, d time.Duration) error {
	path, err := exec.LookPath("mitmdump")
	if err != nil {
		r.note("mitmproxy is not installed here: no comparison.")
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close() // its port is free a moment; mitmdump cannot be handed a socket
	conf := filepath.Join(w.dir, "mitmproxy")
	c := exec.Command(path, "-q", "--listen-host", "127.0.0.1", "-p", fmt.Sprint(addr.Port), "--set", "confdir="+conf, "--set", "stream_large_bodies=1m", //nolint:noctx // ended below
		"--set", "ssl_verify_upstream_trusted_ca="+filepath.Join(w.dir, "origin-ca.pem"), "--map-remote", "/"+webName+"/127.0.0.1/")
	if err := c.Start(); err != nil {
		return err
	}
	defer func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
	}()
	var block *pem.Block
	for end := time.Now().Add(30 * time.Second); block == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("mitmdump did not start")
		}
		if conn, err := net.Dial("tcp", addr.String()); err == nil {
			conn.Close()
			if b, err := os.ReadFile(filepath.Join(conf, "mitmproxy-ca-cert.pem")); err == nil {
				block, _ = pem.Decode(b)
			}
		}
	}
	w.way["mitmproxy"] = &way{name: "mitmproxy", proxy: addr.String(), pid: c.Process.Pid, roots: [][]byte{block.Bytes}}
	names := []string{"mitmproxy", "fy"}
	m, err := w.rounds(rounds, load{Kind: "requests", Target: w.web(), Conns: 32, For: d, Size: 1024}, names...)
	if err != nil {
		return err
	}
	r.note("Decrypted, 1 KiB, 32 connections.")
	r.details(m, names...)
	r.bounds(bound{what: "requests/s, × mitmproxy", s: ratios(m["fy"], m["mitmproxy"], rate), must: 12, goal: 25, soft: true})
	return nil
}
