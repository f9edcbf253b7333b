package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// The limits are the least that a Go program can do: fy does more, and is held against them.

// tunnelMain is L1: CONNECT, then bytes, spliced in the kernel. No policy, no log, no decryption.
func tunnelMain(string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go acceptAll(l, func(c *net.TCPConn) {
		defer c.Close()
		target, ok := connectTarget(c)
		if !ok {
			return
		}
		u, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		up := u.(*net.TCPConn)
		defer up.Close()
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			io.Copy(up, c)
			up.CloseWrite()
			close(done)
		}()
		io.Copy(c, up)
		c.CloseWrite()
		<-done
	})
	if err := say(l.Addr().String()); err != nil {
		return err
	}
	return untilTold()
}

// connectTarget reads a CONNECT. The clients here wait for the answer, so nothing follows it.
func connectTarget(c net.Conn) (string, bool) {
	r, err := http.ReadRequest(bufio.NewReaderSize(c, 2048))
	return local(r), err == nil && r.Method == http.MethodConnect
}

// local is where a name of the measurement is: here.
func local(r *http.Request) string {
	if r == nil {
		return ""
	}
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		return r.Host
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// reverse says how L2 is to be.
type reverse struct {
	Certificates certificates
	HTTP2        bool // both sides
}

// reverseMain is L2: CONNECT, then TLS with a leaf of its own for each name, http.Server and ReverseProxy over a pooled Transport.
func reverseMain(arg string) error {
	var o reverse
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return err
	}
	ca, err := o.Certificates.authority()
	if err != nil {
		return err
	}
	var names sync.Map // name → *tls.Certificate
	cfg := &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if c, ok := names.Load(h.ServerName); ok {
			return c.(*tls.Certificate), nil
		}
		c, err := ca.leaf(h.ServerName)
		if err == nil {
			names.Store(h.ServerName, c)
		}
		return c, err
	}}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	dialer := &net.Dialer{}
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(512)},
		DialContext:         dialer.DialContext,
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, DisableCompression: true, ForceAttemptHTTP2: o.HTTP2,
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// Names that nothing resolves: the address is ours, the name goes into TLS and Host.
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", r.In.Host, r.In.Host
		},
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), BufferPool: &buffers{},
	}}
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		return dialer.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}
	if o.HTTP2 {
		cfg.NextProtos = []string{"h2", "http/1.1"}
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetHTTP2(true)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	in := &handed{conns: make(chan net.Conn), addr: l.Addr()}
	go server.Serve(in)
	go acceptAll(l, func(c *net.TCPConn) {
		if _, ok := connectTarget(c); !ok {
			c.Close()
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			c.Close()
			return
		}
		in.conns <- tls.Server(c, cfg)
	})
	if err := say(l.Addr().String()); err != nil {
		return err
	}
	return untilTold()
}

// handed is a listener of connections that were accepted elsewhere.
type handed struct {
	conns chan net.Conn
	addr  net.Addr
}

func (h *handed) Accept() (net.Conn, error) { return <-h.conns, nil }
func (h *handed) Close() error              { return nil }
func (h *handed) Addr() net.Addr            { return h.addr }

// buffers is a pool for ReverseProxy.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
