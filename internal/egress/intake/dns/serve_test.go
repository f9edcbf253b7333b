package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	return pc, l
}

// The standard library's own resolver, over both transports.
func TestServe(t *testing.T) {
	w := newWorld(0, "a.test")
	w.Record, w.OnAssign = nil, nil
	pc, l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- w.ServeUDP(ctx, pc) }()
	go func() { done <- w.ServeTCP(ctx, l) }()
	for network, addr := range map[string]string{"udp": pc.LocalAddr().String(), "tcp": l.Addr().String()} {
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}}
		got, err := r.LookupNetIP(t.Context(), "ip", "a.test.")
		if err != nil || len(got) != 2 {
			t.Errorf("%s: %v %v", network, got, err)
		}
		if names, err := r.LookupAddr(t.Context(), "198.18.0.2"); err != nil || len(names) != 1 || names[0] != "a.test." {
			t.Errorf("%s: %v %v", network, names, err)
		}
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTCPPipelining(t *testing.T) {
	w := newWorld(0)
	_, l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.ServeTCP(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var out []byte
	for i := range 20 {
		q := query(t, fmt.Sprintf("n%d.test.", i), dnsmessage.TypeA)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(q))), q...)
	}
	for _, part := range [][]byte{out[:1], out[1:33], out[33:]} {
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		var n [2]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(n[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if m := parse(t, b); m.Questions[0].Name.String() != fmt.Sprintf("n%d.test.", i) || len(m.Answers) != 1 {
			t.Errorf("answer %d: %+v", i, m)
		}
	}
	if _, err := c.Write([]byte{0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
		t.Error("an oversized message is waited for")
	}
}

func TestTCPIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(0)
		client, server := net.Pipe()
		defer client.Close()
		go w.serveConn(t.Context(), server)
		start := time.Now()
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("read something")
		}
		if d := time.Since(start); d != idleAfter {
			t.Errorf("closed after %v", d)
		}
	})
}

func TestTCPConnectionsAreBounded(t *testing.T) {
	w := newWorld(0)
	_, l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.ServeTCP(ctx, l) }()
	q := query(t, "a.test.", dnsmessage.TypeA)
	q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	answered := func() bool {
		c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // a test
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Write(q); err != nil {
			return false
		}
		_, err = io.ReadFull(c, make([]byte, 2))
		return err == nil
	}
	for i := range maxConns {
		if !answered() {
			t.Fatalf("control: connection %d is not served", i)
		}
	}
	if answered() {
		t.Error("one connection too many is served")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r := w.records[len(w.records)-1]; r.Reason != "limit" {
		t.Errorf("%+v", r)
	}
}

// A message that no client would send is not read.
func TestMessagesAreBounded(t *testing.T) {
	for size, served := range map[int]bool{maxQuery: true, maxQuery + 1: false} {
		w := newWorld(0)
		pc, l := listen(t)
		_ = pc.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.ServeTCP(ctx, l) }()
		c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // a test
		if err != nil {
			t.Fatal(err)
		}
		message := make([]byte, size)
		copy(message, query(t, "a.test.", dnsmessage.TypeA))
		_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(size)), message...)) // it may have been closed by then
		if _, err := io.ReadFull(c, make([]byte, 2)); (err == nil) != served {
			t.Errorf("%d bytes: %v", size, err)
		}
		_ = c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
