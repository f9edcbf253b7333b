package dialer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"foldyard/internal/egress/dest"
)

const maxProxyHead = 16 << 10 // bytes of an upstream proxy's answer

// ProxyOptions are where an upstream proxy may be named: config.toml, and the
// environment of the host in either case of the variables.
type ProxyOptions struct {
	URL        string // of config.toml; for all targets, before the rest
	HTTPProxy  string // for port 80
	HTTPSProxy string // for all other ports
	AllProxy   string // where the two above are empty
	NoProxy    string // as Go and curl read it: names, .suffixes, IPs, CIDRs, ports, *
}

// ProxyFunc returns the function for Config.Proxy; nil when no proxy is named.
// Proxies are http, https, socks5 or socks5h (the two are one: names are never
// resolved here) and may hold credentials, which no error repeats.
func ProxyFunc(o ProxyOptions) (func(dest.Target) (*url.URL, error), error) {
	first := func(all ...string) string {
		for _, s := range all {
			if s != "" {
				return s
			}
		}
		return ""
	}
	plain, secure := first(o.URL, o.HTTPProxy, o.AllProxy), first(o.URL, o.HTTPSProxy, o.AllProxy)
	if plain == "" && secure == "" {
		return nil, nil
	}
	var err error
	for _, s := range []*string{&plain, &secure} {
		if *s, err = proxyURL(*s); err != nil {
			return nil, err
		}
	}
	choose := (&httpproxy.Config{HTTPProxy: plain, HTTPSProxy: secure, NoProxy: o.NoProxy}).ProxyFunc()
	return func(t dest.Target) (*url.URL, error) {
		scheme := "https"
		if t.Port == 80 {
			scheme = "http"
		}
		return choose(&url.URL{Scheme: scheme, Host: t.String()})
	}, nil
}

// proxyURL checks and completes what an operator writes as a proxy.
func proxyURL(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", errors.New("the upstream proxy is not a URL") // the cause would repeat its password
	}
	if _, err := proxyTarget(u); err != nil {
		return "", err
	}
	return u.String(), nil
}

// proxyTarget is where the proxy of the URL listens.
func proxyTarget(u *url.URL) (dest.Target, error) {
	var port uint16
	switch u.Scheme {
	case "http":
		port = 80
	case "https":
		port = 443
	case "socks5", "socks5h":
		port = 1080
	default:
		return dest.Target{}, fmt.Errorf("an upstream proxy is http, https, socks5 or socks5h, not %q", u.Scheme)
	}
	t, err := dest.ParseAuthority(u.Host, port)
	if err != nil {
		return dest.Target{}, fmt.Errorf("upstream proxy: %w", err)
	}
	return t, nil
}

// proxy returns the upstream proxy for t, nil if none.
func (d *Dialer) proxy(t dest.Target) (*url.URL, error) {
	if d.cfg.Proxy == nil {
		return nil, nil
	}
	u, err := d.cfg.Proxy(t)
	if err != nil {
		return nil, &Error{Kind: KindProxy, Target: t, Err: err}
	}
	return u, nil
}

// Forward reports whether plain HTTP requests for t go to an upstream HTTP
// proxy in absolute form: many such proxies refuse CONNECT to port 80.
func (d *Dialer) Forward(t dest.Target) bool {
	u, err := d.proxy(t)
	return err == nil && u != nil && (u.Scheme == "http" || u.Scheme == "https")
}

// DialForward connects to the upstream HTTP proxy of t itself. The caller
// writes requests in absolute form with auth, unless empty, as
// Proxy-Authorization. It may be called only where Forward is true.
func (d *Dialer) DialForward(ctx context.Context, t dest.Target, internal bool) (c net.Conn, at netip.AddrPort, auth string, err error) {
	if err := d.acquire(ctx, t); err != nil {
		return nil, at, "", err
	}
	defer d.release()
	u, err := d.proxy(t)
	if err != nil {
		return nil, at, "", err
	}
	if u == nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, at, "", &Error{Kind: KindProxy, Target: t, Err: errors.New("no upstream HTTP proxy")}
	}
	c, at, err = d.toProxy(ctx, u, t, internal)
	return c, at, basicAuth(u), err
}

// dialVia connects to t through the proxy.
func (d *Dialer) dialVia(ctx context.Context, u *url.URL, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error) {
	c, at, err := d.toProxy(ctx, u, t, internal)
	if err != nil {
		return nil, at, err
	}
	if err := d.negotiate(ctx, c, u, t); err != nil {
		c.Close()
		k := kindOf(ctx, err)
		if s, ok := errors.AsType[socksReply](err); ok {
			k = s.kind()
		} else if k != KindCanceled && k != KindTimeout {
			k = KindProxy
		}
		return nil, at, &Error{Kind: k, Target: t, Addr: at, Err: fmt.Errorf("upstream proxy: %w", err)}
	}
	return c, at, nil
}

// negotiate asks the proxy at the other end of c for t, within its phase.
func (d *Dialer) negotiate(ctx context.Context, c net.Conn, u *url.URL, t dest.Target) error {
	phase, cancel := context.WithTimeout(ctx, d.lim.Proxy)
	defer cancel()
	stop := context.AfterFunc(phase, func() { c.SetDeadline(time.Unix(1, 0)) })
	ask := connectVia
	if strings.HasPrefix(u.Scheme, "socks5") {
		ask = socks5
	}
	err := ask(c, u, t)
	if !stop() && err == nil { // the deadline is set, or about to be
		err = phase.Err()
	}
	return err
}

// toProxy connects to the proxy itself. A literal target or localhost is
// classified as always; another name is the proxy's to resolve. The proxy's own addresses, which
// the operator chose, are exempt.
func (d *Dialer) toProxy(ctx context.Context, u *url.URL, t dest.Target, internal bool) (net.Conn, netip.AddrPort, error) {
	g := d.guard(t, internal)
	for _, a := range known(t.Host) {
		if err := g.check(a); err != nil {
			return nil, netip.AddrPort{}, err
		}
	}
	p, err := proxyTarget(u)
	if err != nil {
		return nil, netip.AddrPort{}, &Error{Kind: KindProxy, Target: t, Err: err}
	}
	fail := func(at netip.AddrPort, err error) (net.Conn, netip.AddrPort, error) {
		k := KindProxy
		if e := KindOf(err); e == KindCanceled || e == KindTimeout {
			k = e
		}
		return nil, at, &Error{Kind: k, Target: t, Addr: at, Err: fmt.Errorf("upstream proxy: %w", err)}
	}
	addrs, err := d.resolve(ctx, p)
	if err != nil {
		return fail(netip.AddrPort{}, err)
	}
	c, at, err := d.race(ctx, p, addrs, func(netip.Addr) error { return nil })
	if err != nil {
		return fail(at, err)
	}
	if u.Scheme != "https" {
		return c, at, nil
	}
	tc, err := d.handshake(ctx, c, p, at, nil)
	if err != nil {
		return fail(at, err)
	}
	return tc, at, nil
}

func basicAuth(u *url.URL) string {
	if u.User == nil {
		return ""
	}
	password, _ := u.User.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
}

// connectVia asks an HTTP proxy for a tunnel. It reads no byte beyond the
// answer's head, so that the connection stays bare.
func connectVia(c net.Conn, u *url.URL, t dest.Target) error {
	req := "CONNECT " + t.String() + " HTTP/1.1\r\nHost: " + t.String() + "\r\n"
	if auth := basicAuth(u); auth != "" {
		req += "Proxy-Authorization: " + auth + "\r\n"
	}
	if _, err := io.WriteString(c, req+"\r\n"); err != nil {
		return err
	}
	head, err := readHead(c)
	if err != nil {
		return fmt.Errorf("read its answer: %w", err)
	}
	line, _, _ := strings.Cut(head, "\r\n")
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	switch {
	case err != nil || len(code) != 3 || !strings.HasPrefix(version, "HTTP/1."):
		return errors.New("its answer is not HTTP")
	case status == 407:
		return errors.New("it wants other credentials (407)")
	case status < 200 || status > 299:
		return fmt.Errorf("it answers %d to CONNECT", status)
	}
	return nil
}

// readHead reads to the first empty line. The line's end has four bytes, of
// which the bytes so far hold some: reading just the others never goes beyond.
func readHead(r io.Reader) (string, error) {
	const end = "\r\n\r\n"
	var head []byte
	for missing := len(end); missing > 0; {
		if len(head) > maxProxyHead {
			return "", errors.New("too long")
		}
		n := len(head)
		head = append(head, end[:missing]...)
		got, err := r.Read(head[n:])
		head = head[:n+got]
		if err != nil && got == 0 {
			return "", err
		}
		for missing = 0; !strings.HasSuffix(string(head[max(0, len(head)-len(end)):]), end[:len(end)-missing]); {
			missing++
		}
	}
	return string(head), nil
}
