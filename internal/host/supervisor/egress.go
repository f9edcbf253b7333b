package supervisor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"foldyard/internal/box"
	"foldyard/internal/egress/ca"
	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/dialer"
	"foldyard/internal/egress/policy"
	"foldyard/internal/egress/proxy"
	"foldyard/internal/host/config"
	"foldyard/internal/host/state"
)

// maxPEM bounds a certificate file of the operator's.
const maxPEM = 8 << 20

// openEgress makes log, dialer and engine as the operator's configuration says.
func (s *Supervisor) openEgress(ctx context.Context, cfg *config.Effective) (err error) {
	extra, err := readPEMs(cfg.Upstream.CA)
	if err != nil {
		return err
	}
	dc := dialer.Config{Resolver: cfg.Upstream.Resolver}
	if len(extra) > 0 {
		if dc.Roots, err = x509.SystemCertPool(); err != nil {
			return fmt.Errorf("read the system's roots: %w", err)
		}
		for i, pem := range extra {
			if !dc.Roots.AppendCertsFromPEM(pem) {
				return fmt.Errorf("%s holds no certificate", cfg.Upstream.CA[i])
			}
		}
	}
	if dc.Proxy, err = dialer.ProxyFunc(s.proxyOptions(cfg.Upstream.Proxy)); err != nil {
		return err
	}
	s.upstream = dc.Proxy
	if dc.ClientCerts, err = clientCerts(cfg.Upstream.ClientCerts); err != nil {
		return err
	}
	s.dialer = dialer.New(dc)
	if s.capture, err = capture.Open(s.opt.Project.LogDir(), capture.Options{MaxSize: int64(cfg.Log.MaxSize), Keep: cfg.Log.Keep, Compress: true, Now: s.now}); err != nil {
		return err
	}
	s.openExport(ctx, cfg.Log.OTLP, cfg.Metrics.Listen)
	s.openCredentials()
	pc := proxy.Config{
		Inject:    s.creds.in,
		Policy:    s.effective.Snapshot,
		Dialer:    s.dialer,
		Leaves:    ca.NewLeaves(s.authority, s.now, ca.Limits{}),
		Record:    s.record,
		Control:   &s.control,
		Now:       s.now,
		Attribute: s.attribute,
	}
	if cfg.Proxy.Ask == "hold" {
		pc.Hold = s.hold
	}
	if s.opt.Listen != "" && !s.opt.Auth {
		pc.Inject = nil // whoever asks on this computer would be given credentials
	}
	s.engine = proxy.New(pc)
	s.loadCredentials()
	return nil
}

// proxyOptions are the upstream proxies that config.toml or the host's environment name.
func (s *Supervisor) proxyOptions(upstream string) dialer.ProxyOptions {
	either := func(name string) string { return cmp.Or(s.opt.Getenv(name), s.opt.Getenv(strings.ToLower(name))) }
	return dialer.ProxyOptions{URL: upstream, HTTPProxy: either("HTTP_PROXY"), HTTPSProxy: either("HTTPS_PROXY"), AllProxy: either("ALL_PROXY"), NoProxy: either("NO_PROXY")}
}

// hold waits for the operator's answer to a refused request. While a battery runs nothing of its box waits: what it tries is to
// be refused, and is nobody's wish.
func (s *Supervisor) hold(ctx context.Context, a proxy.Ask) policy.Reason {
	if b := s.box(a.Box); b != nil && b.probing.Load() {
		return policy.ReasonNotGranted
	}
	if s.asks.hold(ctx, a.Target, processJSON(a.Process), s.now(), s.cfg.Load().Proxy.AskTimeout.Duration()) {
		return ""
	}
	return policy.ReasonHeldTimeout
}

func readPEMs(files []string) ([][]byte, error) {
	var out [][]byte
	for _, f := range files {
		b, err := state.ReadFile(f, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read upstream ca: %w", err)
		}
		out = append(out, b)
	}
	return out, nil
}

// clientCerts finds the operator's certificate for a host; the first entry that covers it wins.
func clientCerts(list []config.ClientCert) (func(dest.Host) *tls.Certificate, error) {
	type entry struct {
		hosts []policy.Rule
		cert  *tls.Certificate
	}
	var entries []entry
	for _, c := range list {
		certPEM, err := state.ReadFile(c.Cert, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		keyPEM, err := state.ReadSecret(c.Key, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read client key: %w", err)
		}
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			return nil, fmt.Errorf("client certificate %s: %w", c.Cert, err)
		}
		e := entry{cert: &pair}
		for _, h := range c.Hosts {
			r, err := policy.ParseRule(h)
			if err != nil {
				return nil, fmt.Errorf("client certificate %s: %w", c.Cert, err)
			}
			e.hosts = append(e.hosts, r)
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, nil
	}
	return func(h dest.Host) *tls.Certificate {
		for _, e := range entries {
			if slices.ContainsFunc(e.hosts, func(r policy.Rule) bool { return r.MatchesHost(h) }) {
				return e.cert
			}
		}
		return nil
	}, nil
}

// trustFiles are the certificates that a box trusts: this computer's roots, the operator's, and ours.
func (s *Supervisor) trustFiles() (map[string][]byte, error) {
	system, _, err := ca.SystemBundle()
	if err != nil {
		s.log.Warn("boxes get no system roots", "error", err.Error())
	}
	extra, err := readPEMs(s.cfg.Load().Upstream.CA)
	if err != nil {
		return nil, err
	}
	return box.TrustFiles(s.authority.PEM(), ca.Bundle(system), ca.Bundle(nil, extra...))
}

// bootChanged tells whether the project was last supervised under another boot, and notes this one. A note that cannot be
// read counts as another boot: grants are dropped rather than kept too long.
func bootChanged(p state.Project, boot string) bool {
	path := p.Dir + "/boot-id"
	old, err := state.ReadFile(path, 64)
	if err == nil && string(old) == boot {
		return false
	}
	if werr := state.WriteAtomic(path, []byte(boot), 0o600); werr != nil {
		return true
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// listenProxy serves the proxy without a box, for fy proxy.
func (s *Supervisor) listenProxy(ctx context.Context) error {
	if s.opt.Listen == "" {
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.opt.Listen)
	if err != nil {
		return fmt.Errorf("listen for the proxy: %w", err)
	}
	way := proxy.BoxWay{ID: "proxy", Resolve: func(netip.Addr) (dest.Host, bool) { return dest.Host{}, false }}
	shown := url.URL{Scheme: "http", Host: l.Addr().String()}
	if s.opt.Auth {
		token := randomHex(16)
		way.Token = func() string { return token }
		shown.User = url.UserPassword(proxy.TokenUser, token)
	}
	s.serving.Go(func() {
		if err := s.engine.ServeProxy(ctx, way, l); err != nil && ctx.Err() == nil {
			s.log.Error("proxy ended", slog.String("error", err.Error()))
			s.quit()
		}
	})
	s.opt.Listening(shown.String(), filepath.Join(s.opt.Host.Layout.CADir(), "ca.pem"))
	return nil
}
