package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"syscall"
	"testing"
	"time"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
)

// toLoopback finds every name at 127.0.0.1.
type toLoopback struct{ *dialer.Dialer }

func (d toLoopback) Dial(ctx context.Context, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error) {
	t.Host = dest.HostFromAddr(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	return d.Dialer.Dial(ctx, t, internal)
}

func (toLoopback) LookAhead(context.Context, dest.Target) {}

func (d toLoopback) DialTLS(ctx context.Context, t dest.Target, internal bool, alpn ...string) (*tls.Conn, netip.AddrPort, error) {
	nc, at, err := d.Dial(ctx, t, internal)
	if err != nil {
		return nil, at, err
	}
	tc := tls.Client(nc, d.TLSConfig(t, alpn...))
	return tc, at, tc.HandshakeContext(ctx)
}

// TestServeForMeasuring is no test: with FY_MEASURE=LISTEN,ORIGIN_CA_PEM,DIR it
// serves the proxy port with everything real (policy, leaves, dialer, log) in a
// process of its own, for a load client beside it. DIR gets ca.pem. An
// interrupt ends it; FY_PROFILE names a CPU profile.
func TestServeForMeasuring(t *testing.T) {
	var listenAt, originCA, dir string
	if n, _ := fmt.Sscanf(os.Getenv("FY_MEASURE"), "%s %s %s", &listenAt, &originCA, &dir); n != 3 {
		t.Skip("FY_MEASURE is not set")
	}
	pem, err := os.ReadFile(originCA)
	ok(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	a, err := ca.LoadOrCreate(dir, time.Now())
	ok(t, err)
	logs, err := capture.Open(dir+"/log", capture.Options{})
	ok(t, err)
	defer logs.Close()
	b, err := policy.Encode(policy.File{Version: 1, Generation: 1, Enforce: true, Allow: []policy.Entry{
		{Rule: "*.test", Level: policy.Permanent, Internal: true},
		{Rule: "localhost:*", Level: policy.Permanent, Internal: true},
		{Rule: "127.0.0.1:*", Level: policy.Permanent, Internal: true},
	}})
	ok(t, err)
	snap, err := policy.Decode(b)
	ok(t, err)
	e := New(Config{
		Policy: func() *policy.Snapshot { return snap }, Leaves: ca.NewLeaves(a, time.Now, ca.Limits{}), Record: logs.Put,
		Dialer: toLoopback{dialer.New(dialer.Config{Roots: roots})},
	})
	defer e.Close()
	l, err := net.Listen("tcp", listenAt)
	ok(t, err)
	if p := os.Getenv("FY_PROFILE"); p != "" {
		f, err := os.Create(p)
		ok(t, err)
		ok(t, pprof.StartCPUProfile(f))
		defer pprof.StopCPUProfile()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	tell := make(chan os.Signal, 1)
	signal.Notify(tell, syscall.SIGUSR1)
	go func() {
		for {
			select {
			case <-stop:
				_ = l.Close()
				return
			case <-tell:
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				fmt.Printf("goroutines %d, heap %d KiB, stacks %d KiB, system %d KiB\n", runtime.NumGoroutine(), m.HeapAlloc>>10, m.StackInuse>>10, m.Sys>>10)
				if p := os.Getenv("FY_HEAP"); p != "" {
					if f, err := os.Create(p); err == nil {
						_ = pprof.WriteHeapProfile(f)
						f.Close()
					}
				}
			}
		}
	}()
	box := BoxWay{ID: "measured", Resolve: func(netip.Addr) (dest.Host, bool) { return dest.Host{}, false }}
	_ = e.ServeProxy(t.Context(), box, l)
}
