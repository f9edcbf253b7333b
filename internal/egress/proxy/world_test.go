package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an engine with one box, a policy, and origins on loopback that only
// its fake dialer knows.
type world struct {
	t       testing.TB
	e       *Engine
	snap    atomic.Pointer[policy.Snapshot]
	trust   *x509.CertPool // what the box trusts
	origins *ca.Leaves

	mu      sync.Mutex // guards the fields that follow
	file    policy.File
	at      map[dest.Target]string // where origins listen
	classes map[dest.Target]dest.Class
	dials   map[dest.Target]int
	ahead   map[dest.Target]int
	shared  map[string]bool // names that an origin has a certificate for besides its own; set before it is reached
	records []*capture.Record
	arrived chan struct{}
	toward  map[uint16]netip.AddrPort // original destinations, by listener port
	names   map[netip.Addr]dest.Host
	ctx     context.Context // the test's
	proxy   string          // address of the proxy port
	roots   *x509.CertPool
}

const testBox = "box1"

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{
		t: t, at: map[dest.Target]string{}, dials: map[dest.Target]int{}, ahead: map[dest.Target]int{}, classes: map[dest.Target]dest.Class{},
		ctx: t.Context(), toward: map[uint16]netip.AddrPort{}, names: map[netip.Addr]dest.Host{}, arrived: make(chan struct{}, 1),
		file: policy.File{Version: 1, Generation: 1, Enforce: true},
	}
	ours, err := ca.LoadOrCreate(t.TempDir(), time.Now())
	ok(t, err)
	theirs, err := ca.LoadOrCreate(t.TempDir(), time.Now())
	ok(t, err)
	w.trust, w.roots = x509.NewCertPool(), x509.NewCertPool()
	w.trust.AddCert(ours.Certificate())
	w.roots.AddCert(theirs.Certificate())
	w.origins = ca.NewLeaves(theirs, time.Now, ca.Limits{})
	w.publish()
	cfg := Config{
		Policy: w.snap.Load, Dialer: (*worldDialer)(w), Leaves: ca.NewLeaves(ours, time.Now, ca.Limits{}), Record: w.record,
		originalDst: w.originalDst, Limits: Limits{Linger: 10 * time.Millisecond},
	}
	for _, f := range change {
		f(&cfg)
	}
	w.e = New(cfg)
	t.Cleanup(w.e.Close)
	l := listen(t)
	w.proxy = l.Addr().String()
	go func() { _ = w.e.ServeProxy(w.ctx, w.box(), l) }()
	return w
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	ok(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (w *world) box() BoxWay {
	return BoxWay{ID: testBox, Resolve: func(a netip.Addr) (dest.Host, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		h, ok := w.names[a]
		return h, ok
	}}
}

func (w *world) record(r *capture.Record) {
	w.mu.Lock()
	w.records = append(w.records, r)
	w.mu.Unlock()
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// saw waits for a record that f accepts.
func (w *world) saw(what string, f func(*capture.Record) bool) *capture.Record {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		for _, r := range w.records {
			if f(r) {
				w.mu.Unlock()
				return r
			}
		}
		w.mu.Unlock()
		select {
		case <-w.arrived:
		case <-deadline:
			w.t.Fatalf("no record %s; there are:\n%s", what, w.dump())
		}
	}
}

func (w *world) sawReason(host string, why policy.Reason) *capture.Record {
	w.t.Helper()
	return w.saw(string(why)+" for "+host, func(r *capture.Record) bool {
		return r.Reason == string(why) && (host == "" || r.Host == host)
	})
}

func (w *world) dump() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, r := range w.records {
		fmt.Fprintf(&b, "%+v\n", *r)
	}
	return b.String()
}

// allow grants rules for good.
func (w *world) allow(rules ...string) {
	w.edit(func(f *policy.File) {
		for _, r := range rules {
			f.Allow = append(f.Allow, policy.Entry{Rule: r, Level: policy.Permanent})
		}
	})
}

// tunnel grants hosts for good, and has them tunnelled.
func (w *world) tunnel(hosts ...string) {
	w.edit(func(f *policy.File) { f.Passthrough = append(f.Passthrough, hosts...) })
	w.allow(hosts...)
}

// edit changes the policy and tells the engine.
func (w *world) edit(change func(*policy.File)) {
	w.t.Helper()
	w.mu.Lock()
	change(&w.file)
	w.file.Generation++
	w.mu.Unlock()
	w.publish()
	w.e.Reconsider()
}

func (w *world) publish() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	b, err := policy.Encode(w.file)
	ok(w.t, err)
	s, err := policy.Decode(b)
	ok(w.t, err)
	w.snap.Store(s)
}

func target(s string) dest.Target { return must(dest.Parse(s)) }

// raw serves hostport with handle, one connection at a time in a goroutine.
func (w *world) raw(hostport string, handle func(net.Conn)) {
	l := listen(w.t)
	w.place(hostport, l.Addr().String())
	var wg sync.WaitGroup
	w.t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				stop := context.AfterFunc(w.ctx, func() { _ = c.Close() })
				defer stop()
				handle(c)
			})
		}
	}()
}

func (w *world) place(hostport, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[target(hostport)] = addr
}

// share makes name a second name of the origin at hostport.
func (w *world) share(name, hostport string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[target(name+":443")] = w.at[target(hostport)]
	w.shared = map[string]bool{name: true}
}

// web serves hostport with h: over TLS with h2 unless plain or h1 is asked for.
func (w *world) web(hostport string, how web, h http.HandlerFunc) *http.Server {
	l := listen(w.t)
	w.place(hostport, l.Addr().String())
	p := new(http.Protocols)
	p.SetHTTP1(how != webH2C)
	p.SetHTTP2(how == webH2)
	p.SetUnencryptedHTTP2(how == webH2C)
	srv := &http.Server{Handler: h, Protocols: p, ErrorLog: quiet(), TLSConfig: &tls.Config{
		GetCertificate: func(hi *tls.ClientHelloInfo) (*tls.Certificate, error) {
			host := target(hostport).Host
			if w.shared[hi.ServerName] {
				host = must(dest.ParseHost(hi.ServerName))
			}
			return w.origins.Get(hi.Context(), "origin", host)
		},
	}}
	w.t.Cleanup(func() { _ = srv.Close() })
	go func() {
		if how == webPlain || how == webH2C {
			_ = srv.Serve(l)
		} else {
			_ = srv.ServeTLS(l, "", "")
		}
	}()
	return srv
}

type web int

const (
	webH2 web = iota
	webH1
	webPlain
	webH2C
)

// worldDialer is world as the engine's Dialer.
type worldDialer world

func (d *worldDialer) Dial(ctx context.Context, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error) {
	d.mu.Lock()
	d.dials[t]++
	addr, known := d.at[t]
	class, bad := d.classes[t]
	d.mu.Unlock()
	switch {
	case bad && !internal:
		return nil, netip.AddrPort{}, &dialer.Error{Kind: dialer.KindClass, Class: class, Target: t, Err: errors.New("not public")}
	case !known:
		return nil, netip.AddrPort{}, &dialer.Error{Kind: dialer.KindNoName, Target: t, Err: errors.New("no such name")}
	}
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		k := dialer.KindOther
		if errors.Is(err, syscall.ECONNREFUSED) {
			k = dialer.KindRefused
		}
		return nil, netip.AddrPort{}, &dialer.Error{Kind: k, Target: t, Err: err}
	}
	return nc, must(netip.ParseAddrPort(addr)), nil
}

func (d *worldDialer) LookAhead(_ context.Context, t dest.Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ahead[t]++
}

func (d *worldDialer) DialTLS(ctx context.Context, t dest.Target, internal bool, alpn ...string) (*tls.Conn, netip.AddrPort, error) {
	nc, ap, err := d.Dial(ctx, t, internal)
	if err != nil {
		return nil, ap, err
	}
	tc := tls.Client(nc, &tls.Config{RootCAs: d.roots, ServerName: t.Host.String(), NextProtos: alpn})
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, ap, &dialer.Error{Kind: dialer.KindTLS, Target: t, Addr: ap, Err: err}
	}
	return tc, ap, nil
}

func (w *world) dialled(hostport string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials[target(hostport)]
}

// entry is a way in.
type entry string

const (
	byConnect  entry = "connect"
	bySocks    entry = "socks"
	byRedirect entry = "redirect"
)

func ways() []entry { return []entry{byConnect, bySocks, byRedirect} }

var errRefused = errors.New("refused by the proxy")

// dial opens a connection to hostport as a box would. A refusal of the proxy
// port is errRefused.
func (w *world) dial(by entry, hostport string) (net.Conn, error) {
	w.t.Helper()
	switch by {
	case byRedirect:
		return net.Dial("tcp", w.redirect(hostport))
	case byConnect:
		c, head, err := w.connect(hostport)
		if err == nil && !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			_ = c.Close()
			return nil, fmt.Errorf("%w: %s", errRefused, head)
		}
		return c, err
	case bySocks:
		c, err := net.Dial("tcp", w.proxy)
		if err != nil {
			return nil, err
		}
		code, err := socksTo(c, hostport)
		if err == nil && code != 0 {
			_ = c.Close()
			return nil, fmt.Errorf("%w: %d", errRefused, code)
		}
		return c, err
	}
	panic("no such way")
}

// connect sends a CONNECT and returns the whole head of the answer.
func (w *world) connect(hostport string) (net.Conn, string, error) {
	c, err := net.Dial("tcp", w.proxy)
	if err != nil {
		return nil, "", err
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", hostport)
	head, err := readUntil(c, "\r\n\r\n")
	return c, head, err
}

func readUntil(c io.Reader, end string) (string, error) {
	var b []byte
	var one [1]byte
	for !bytes.HasSuffix(b, []byte(end)) {
		if _, err := io.ReadFull(c, one[:]); err != nil {
			return string(b), err
		}
		b = append(b, one[0])
	}
	return string(b), nil
}

func socksTo(c net.Conn, hostport string) (byte, error) {
	host, port, _ := strings.Cut(hostport, ":")
	var p uint16
	fmt.Sscan(port, &p)
	req := append([]byte{5, 1, 0, 3, byte(len(host))}, host...)
	req = binary.BigEndian.AppendUint16(req, p)
	if _, err := c.Write([]byte{5, 1, 0}); err != nil {
		return 0, err
	}
	var b [10]byte
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return 0, err
	}
	if _, err := c.Write(req); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(c, b[:])
	return b[1], err
}

// redirect returns the address of a listener whose connections were going to
// hostport: a name by its synthetic address, or a raw address.
func (w *world) redirect(hostport string) string {
	w.t.Helper()
	t := target(hostport)
	w.mu.Lock()
	a := t.Host.Addr()
	if !t.Host.IsIP() {
		a = netip.AddrFrom4([4]byte{198, 18, 1, byte(len(w.names) + 2)})
		w.names[a] = t.Host
	}
	w.mu.Unlock()
	return w.toAddr(netip.AddrPortFrom(a, t.Port))
}

func (w *world) toAddr(to netip.AddrPort) string {
	l := listen(w.t)
	w.mu.Lock()
	w.toward[uint16(l.Addr().(*net.TCPAddr).Port)] = to
	w.mu.Unlock()
	go func() { _ = w.e.ServeRedirect(w.ctx, w.box(), l) }()
	return l.Addr().String()
}

func (w *world) originalDst(c net.Conn) (netip.AddrPort, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.toward[uint16(c.LocalAddr().(*net.TCPAddr).Port)], nil
}

// client is an HTTP client in the box. It uses HTTP/2 where it is offered, if
// h2.
func (w *world) client(by entry, h2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!h2)
	p.SetHTTP2(h2)
	tr := &http.Transport{
		Protocols: p, DisableCompression: true, ForceAttemptHTTP2: h2,
		TLSClientConfig: &tls.Config{RootCAs: w.trust},
		DialContext:     func(_ context.Context, _, addr string) (net.Conn, error) { return w.dial(by, addr) },
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// tls opens TLS to hostport with an SNI.
func (w *world) tls(by entry, hostport, sni string, alpn ...string) *tls.Conn {
	w.t.Helper()
	c, err := w.dial(by, hostport)
	ok(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	tc := tls.Client(c, &tls.Config{RootCAs: w.trust, ServerName: sni, NextProtos: alpn, InsecureSkipVerify: true}) //nolint:gosec // a test
	ok(w.t, tc.Handshake())
	return tc
}

// ask sends text and reads one response to its end.
func ask(t testing.TB, c io.ReadWriter, text string) (*http.Response, string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	ok(t, err)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	ok(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	ok(t, err)
	return r, string(b)
}

func get(t testing.TB, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	r, err := c.Get(url)
	ok(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	ok(t, err)
	return r, string(b)
}

func greet(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "hello from %s %s %s %s", r.Host, r.Proto, r.Method, r.RequestURI)
}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
