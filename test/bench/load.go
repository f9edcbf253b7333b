package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load says what to ask for, and by which way.
type load struct {
	Kind   string // requests, bulk, raw, hold
	Target string // host:port; a %d in it is a number that no request had before
	Proxy  string // host:port that takes CONNECT; "" goes straight to Direct, or to the target
	Direct string
	Roots  [][]byte // DER
	HTTP2  bool

	Conns    int
	For      time.Duration // of requests
	Count    int64         // instead of For
	Size     int64
	Up       bool
	NewConn  bool // a connection for every request
	Tickets  bool // keep TLS session tickets between connections
	Plain    bool // hold connections without TLS
	FirstNum int64
}

// result is what a load saw.
type result struct {
	N       int64
	Errors  int64
	Error   string
	Seconds float64
	P50     float64 // ms
	P99     float64 // ms
	Resumed int64   // handshakes that were
}

func (r result) perSecond() float64 { return float64(r.N) / r.Seconds }

// loadMain is the client of the measurement.
func loadMain(arg string) error {
	var o load
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return err
	}
	c := &client{load: o}
	pool := x509.NewCertPool()
	for _, der := range o.Roots {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		pool.AddCert(cert)
	}
	// One key exchange for all, so that its cost is the same for everyone.
	c.tls = &tls.Config{RootCAs: pool, CurvePreferences: []tls.CurveID{tls.X25519}}
	if o.Tickets {
		c.tls.ClientSessionCache = tls.NewLRUClientSessionCache(256)
	}
	c.number.Store(o.FirstNum)
	var r result
	var err error
	switch o.Kind {
	case "requests":
		r = c.requests()
	case "bulk":
		r, err = timedOnce(c.bulk)
	case "raw":
		r, err = timedOnce(c.raw)
	case "hold":
		return c.hold()
	default:
		err = fmt.Errorf("unknown load %q", o.Kind)
	}
	if err != nil {
		return err
	}
	return say(r)
}

type client struct {
	load
	tls     *tls.Config
	number  atomic.Int64
	resumed atomic.Int64
}

func timedOnce(f func() error) (result, error) {
	begin := time.Now()
	err := f()
	return result{N: 1, Seconds: time.Since(begin).Seconds()}, err
}

// target is the next one.
func (c *client) target() string {
	if strings.Contains(c.Target, "%d") {
		return fmt.Sprintf(c.Target, c.number.Add(1))
	}
	return c.Target
}

// dial connects to a target by the way of this load.
func (c *client) dial(target string) (net.Conn, error) {
	if c.Proxy == "" {
		if c.Direct != "" {
			target = c.Direct
		}
		return net.Dial("tcp", target)
	}
	conn, err := net.Dial("tcp", c.Proxy)
	if err != nil {
		return nil, err
	}
	if err := connect(conn, target); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect asks for a tunnel. It reads no byte beyond the answer.
func connect(conn net.Conn, target string) error {
	if _, err := io.WriteString(conn, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n"); err != nil {
		return err
	}
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); {
		if _, err := io.ReadFull(conn, b); err != nil {
			return fmt.Errorf("CONNECT: %w", err)
		}
		if head = append(head, b[0]); len(head) > 16<<10 {
			return errors.New("CONNECT: an endless answer")
		}
	}
	if !strings.HasPrefix(string(head), "HTTP/1.1 200") {
		return fmt.Errorf("CONNECT %s: %.80s", target, head)
	}
	return nil
}

func (c *client) dialTLS(target string) (*tls.Conn, error) {
	conn, err := c.dial(target)
	if err != nil {
		return nil, err
	}
	cfg := c.tls.Clone()
	cfg.ServerName, _, _ = strings.Cut(target, ":")
	t := tls.Client(conn, cfg)
	if err := t.Handshake(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake with %s: %w", target, err)
	}
	if t.ConnectionState().DidResume {
		c.resumed.Add(1)
	}
	return t, nil
}

// requests asks for Size bytes again and again on Conns connections.
func (c *client) requests() result {
	var r result
	var mu sync.Mutex
	var all series
	var issued atomic.Int64
	var stop atomic.Bool
	ask := c.asker()
	if c.For > 0 {
		time.AfterFunc(c.For, func() { stop.Store(true) })
	}
	begin := time.Now()
	var wg sync.WaitGroup
	for range c.Conns {
		wg.Go(func() {
			var times series
			one := ask()
			for !stop.Load() && (c.Count == 0 || issued.Add(1) <= c.Count) {
				at := time.Now()
				err := one()
				if err == nil {
					times = append(times, time.Since(at).Seconds()*1e3)
					continue
				}
				mu.Lock()
				r.Errors++
				r.Error = err.Error()
				mu.Unlock()
				if c.Count == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			mu.Lock()
			all = append(all, times...)
			mu.Unlock()
		})
	}
	wg.Wait()
	r.Seconds = time.Since(begin).Seconds()
	r.N, r.P50, r.P99, r.Resumed = int64(len(all)), all.quantile(.5), all.quantile(.99), c.resumed.Load()
	return r
}

// asker returns what makes a connection's worth of requests: each call of the inner function is one.
func (c *client) asker() func() func() error {
	if c.HTTP2 {
		hc := c.transport()
		url := "https://" + c.Target + fmt.Sprintf("/%d", c.Size)
		return func() func() error {
			buf := make([]byte, chunk)
			return func() error { return fetch(hc, url, c.Size, buf) }
		}
	}
	return func() func() error {
		k := &keepAlive{c: c, scratch: make([]byte, 64<<10)}
		return func() error {
			if c.NewConn {
				k.drop()
			}
			err := k.get(c.target(), c.Size)
			if err != nil {
				k.drop()
			}
			return err
		}
	}
}

// transport is an h2 client.
func (c *client) transport() *http.Client {
	t := &http.Transport{TLSClientConfig: c.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 8 << 20, MaxReceiveBufferPerStream: 4 << 20}}
	if c.Proxy != "" {
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: c.Proxy})
	} else if c.Direct != "" {
		var d net.Dialer
		t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return d.DialContext(ctx, network, c.Direct)
		}
	}
	return &http.Client{Transport: t}
}

func fetch(hc *http.Client, url string, size int64, buf []byte) error {
	resp, err := hc.Get(url) //nolint:noctx // the load ends by itself
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(onlyWriter{io.Discard}, resp.Body, buf)
	if err == nil && (n != size || resp.StatusCode != 200 || resp.ProtoMajor != 2) {
		err = fmt.Errorf("%s: %s, %d bytes, %s", url, resp.Proto, n, resp.Status)
	}
	return err
}

// bulk moves Size bytes in one request.
func (c *client) bulk() error {
	k := &keepAlive{c: c, scratch: make([]byte, chunk)}
	defer k.drop()
	if c.Up {
		return k.post(c.target(), c.Size)
	}
	return k.get(c.target(), c.Size)
}

// raw moves Size bytes without HTTP.
func (c *client) raw() error {
	conn, err := c.dial(c.target())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := begin(conn, map[bool]byte{false: rawDown, true: rawUp}[c.Up], c.Size); err != nil {
		return err
	}
	if !c.Up {
		n, err := io.CopyBuffer(onlyWriter{io.Discard}, io.LimitReader(conn, c.Size), make([]byte, chunk))
		if err == nil && n != c.Size {
			err = fmt.Errorf("%d bytes of %d", n, c.Size)
		}
		return err
	}
	if err := send(conn, c.Size); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func begin(w io.Writer, what byte, n int64) error {
	_, err := w.Write(binary.BigEndian.AppendUint64([]byte{what}, uint64(n)))
	return err
}

// hold opens Count connections, says so, and keeps them until it is told to end.
func (c *client) hold() error {
	var keep []any
	for range c.Count {
		if c.Plain {
			conn, err := c.dial(c.target())
			if err != nil {
				return err
			}
			if err := begin(conn, rawHold, 0); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				return err
			}
			keep = append(keep, conn)
			continue
		}
		k := &keepAlive{c: c, scratch: make([]byte, 4<<10)}
		if err := k.get(c.target(), c.Size); err != nil {
			return err
		}
		keep = append(keep, k)
	}
	if err := say(result{N: int64(len(keep))}); err != nil {
		return err
	}
	return untilTold()
}

// keepAlive is one HTTP/1.1 connection, by hand: the client must not be what is measured.
type keepAlive struct {
	c       *client
	conn    *tls.Conn
	br      *bufio.Reader
	scratch []byte
	request []byte
	target  string
}
