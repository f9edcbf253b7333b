package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"foldyard/internal/box"
	"foldyard/internal/egress/policy"
	"foldyard/internal/host/state"
)

// checker judges what well-formed files mean. Each fault is put at the place
// of the key it is about.
type checker struct {
	*report
	at   map[string]pos
	goos string
	dir  string   // the project
	dirs []string // foldyard's own
	// bundles are the hosts of presets that name none themselves.
	bundles map[string][]string
}

func (c *checker) set(key string) bool { _, ok := c.at[key]; return ok }

// bad reports a fault at key, or at the table it is missing from.
func (c *checker) bad(key, format string, args ...any) {
	p, ok := c.at[key]
	for at := key; !ok; p, ok = c.at[at] {
		i := strings.LastIndexAny(at, ".[")
		if i < 0 {
			break
		}
		at = at[:i]
	}
	c.fault(p, key, format, args...)
}

// file checks f and fills in the defaults that depend on other settings.
func (c *checker) file(f *File) {
	if c.set("project.name") {
		if err := state.CheckName(f.Project.Name); err != nil {
			c.bad("project.name", "%s", err)
		}
		if c.at["project.name"].operator {
			c.bad("project.name", "is what [projects.NAME] goes by: it cannot be set in there")
		}
	}
	c.machine(&f.Machine)
	if !c.few("box.ports", len(f.Box.Ports)) || !c.few("box.mounts", len(f.Box.Mounts)) || !c.few("box.env", len(f.Box.Env)) ||
		!c.few("proxy.passthrough", len(f.Proxy.Passthrough)) || !c.few("proxy.recommend", len(f.Proxy.Recommend)) || !c.few("inject", len(f.Inject)) {
		return
	}
	c.box(&f.Box, f.Machine.Backend)
	c.proxy(&f.Proxy)
	c.inject(f)
}

// maxEntries bounds every list and table of the two files.
const maxEntries = 500

func (c *checker) few(key string, n int) bool {
	if n > maxEntries {
		c.bad(key, "%d entries, at most %d", n, maxEntries)
	}
	return n <= maxEntries
}

var digestRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`) })

func (c *checker) machine(m *Machine) {
	if m.Backend == "" {
		m.Backend = DefaultBackend(c.goos)
	}
	lima := m.Backend == Lima
	if lima {
		m.Firewall = m.Firewall || !c.set("machine.firewall")
		m.Gateway = m.Gateway || !c.set("machine.gateway")
	}
	for _, s := range []struct {
		key string
		on  bool
	}{{"machine.firewall", m.Firewall}, {"machine.gateway", m.Gateway}, {"machine.host_firewall", m.HostFirewall}} {
		if s.on && !lima {
			c.bad(s.key, `works with backend = "lima" only; this project's backend is %s`, m.Backend)
		}
	}
	const unbuilt = "is not built yet: that ring stays unavailable"
	if lima && m.Gateway && c.set("machine.gateway") {
		c.warn(c.at["machine.gateway"], "machine.gateway", unbuilt)
	}
	if lima && m.HostFirewall {
		c.warn(c.at["machine.host_firewall"], "machine.host_firewall", unbuilt)
	}
	if m.HostFirewall && lima {
		if !m.Firewall {
			c.bad("machine.host_firewall", "needs firewall = true")
		}
		if c.goos != "linux" {
			c.bad("machine.host_firewall", "works on a Linux host only")
		}
	}
	for _, key := range []string{"cpus", "memory", "disk", "image", "digest", "kernel", "initrd"} {
		if c.set("machine."+key) && m.Backend == Namespace {
			c.warn(c.at["machine."+key], "machine."+key, "has no effect with backend = %q: there is no machine", m.Backend)
		}
	}
	if m.CPUs < 1 || m.CPUs > 1024 {
		c.bad("machine.cpus", "want 1 to 1024, got %d", m.CPUs)
	}
	for key, s := range map[string]Size{"machine.memory": m.Memory, "machine.disk": m.Disk} {
		if s < 256<<20 || s%(1<<20) != 0 {
			c.bad(key, "want at least 256MiB, in whole MiB, got %s", s)
		}
	}
	named := m.Image == "debian" || m.Image == "fedora" // their digests are ours to know
	switch {
	case named && m.Backend == Podman:
		c.bad("machine.image", "%s is for lima", m.Image)
	case named:
		for _, key := range []string{"machine.digest", "machine.kernel", "machine.initrd"} {
			if c.set(key) {
				c.bad(key, "image = %q has its own", m.Image)
			}
		}
	case c.set("machine.image") && !c.set("machine.digest"):
		c.bad("machine.image", `wants digest = "sha256:…" or "sha512:…" too, or is debian or fedora`)
	case c.set("machine.digest") && !digestRE().MatchString(m.Digest):
		c.bad("machine.digest", `want "sha256:" and 64 hexadecimal digits, or "sha512:" and 128, got %s`, quote(m.Digest))
	case m.Backend == Lima && c.set("machine.image"):
		for key, s := range map[string]string{"machine.image": m.Image, "machine.kernel": m.Kernel, "machine.initrd": m.Initrd} {
			if c.set(key) && !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "https://") {
				c.bad(key, "want a full path or an https URL, got %s", quote(s))
			}
		}
	}
	for _, key := range []string{"machine.digest", "machine.kernel", "machine.initrd"} {
		if c.set(key) && !c.set("machine.image") {
			c.bad(key, "wants image too")
		}
	}
}

func (c *checker) box(b *Box, backend string) {
	c.ports(b.Ports)
	for _, name := range slices.Sorted(maps.Keys(b.Env)) {
		if err := box.CheckVariable(name, b.Env[name]); err != nil {
			c.bad(join("box.env", name), "%s", err)
		}
	}
	for i := range b.Mounts {
		c.mount(&b.Mounts[i], fmt.Sprintf("box.mounts[%d]", i))
	}
	for i, p := range b.Writable {
		if !filepath.IsLocal(p) || filepath.Clean(p) == "." {
			c.bad(fmt.Sprintf("box.writable[%d]", i), "want a path inside the repo, got %s", quote(p))
		}
	}
	if c.set("box.uid") && (b.UID <= 0 || b.UID == 65535) {
		c.bad("box.uid", "want the uid of an unprivileged user, got %d", b.UID)
	}
	if c.set("box.image") && c.set("box.rootfs") {
		c.bad("box.rootfs", "image and rootfs together: choose one")
	}
	for _, key := range []string{"box.image", "box.rootfs"} {
		if c.set(key) && backend == Namespace {
			c.warn(c.at[key], key, "has no effect with backend = %q: the box is no container", backend)
		}
	}
	if b.Engine && backend != Lima {
		c.bad("box.engine", `works with backend = "lima" only; this project's backend is %s`, backend)
	}
	if c.set("box.proxy_env") && backend != Namespace {
		c.warn(c.at["box.proxy_env"], "box.proxy_env", "has no effect with backend = %q: the variables are always set", backend)
	}
}

func (c *checker) ports(ports []Port) {
	seen := map[netip.AddrPort]int{}
	for i, p := range ports {
		key := fmt.Sprintf("box.ports[%d]", i)
		if !p.Addr.IsLoopback() && !c.at[key].operator {
			c.bad(key, "%s is not loopback: only the operator's config.toml may publish there", p.Addr)
		}
		if ofOurs(p.Box) {
			c.bad(key, "port %d of a box is foldyard's own: published, it would lend the box's grants and credentials to everybody who reaches %s", p.Box, p.Bind())
		}
		if j, ok := seen[p.Bind()]; ok {
			c.bad(key, "%s is published already, by ports[%d]", p.Bind(), j)
		}
		seen[p.Bind()] = i
	}
}

// ofOurs reports whether foldyard itself listens on a port of each box: the proxy, redirected TCP, redirected DNS.
func ofOurs(port uint16) bool { return port == 3128 || port == 3129 || port == 3153 }

// mount checks one mount and completes it. In foldyard.toml it lies inside the
// repo and is writable unless it says :ro, as the repo is; in config.toml it
// is a host path and read-only unless it says :rw.
func (c *checker) mount(m *Mount, key string) {
	if !c.at[key].operator {
		switch {
		case !filepath.IsLocal(m.Source) || strings.HasPrefix(m.Source, "~"):
			c.bad(key, "want a path inside the repo, got %s: only the operator's config.toml may name other paths", quote(m.Source))
		case m.Target != "":
			c.bad(key, "a mount inside the repo stays at its own path: drop %s", quote(m.Target))
		}
		m.Write = m.mode != "ro"
		return
	}
	m.Source = absolute(c.dir, m.Source)
	switch {
	case strings.HasPrefix(m.Source, filepath.Join(c.dir, "~")):
		c.bad(key, "~ is not expanded: write the absolute path")
	case m.Source == string(filepath.Separator):
		c.bad(key, "the whole file system of the host is no mount")
		return
	case m.Target != "" && (!filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target):
		c.bad(key, "want an absolute and clean path in the box, got %s", quote(m.Target))
	case m.Target == string(filepath.Separator):
		c.bad(key, "a mount over the box's root is none")
	}
	source := resolve(m.Source)
	for _, own := range c.dirs {
		if own = resolve(own); source == own || within(source, own) || within(own, source) {
			c.bad(key, "foldyard's own directory %s is never mounted into a box", quotePath(own))
		}
	}
}

// Bundles are the names that passthrough knows.
var bundleNames = []string{"@apt", "@containers", "@go", "@jvm", "@npm"}

func (c *checker) proxy(p *Proxy) {
	var tunnels []policy.Rule
	for i, s := range p.Passthrough {
		key := fmt.Sprintf("proxy.passthrough[%d]", i)
		if strings.HasPrefix(s, "@") {
			if !slices.Contains(bundleNames, s) {
				c.bad(key, "unknown bundle %s; known are %s", quote(s), strings.Join(bundleNames, ", "))
			}
			continue
		}
		r, err := policy.ParseRule(s)
		switch {
		case err != nil:
			c.bad(key, "%s", err)
		case r.NeedsIntercept():
			c.bad(key, "%s has a path or a method, which only decryption can judge: passthrough takes hosts", quote(s))
		default:
			tunnels = append(tunnels, r)
		}
	}
	for i, rec := range p.Recommend {
		key := fmt.Sprintf("proxy.recommend[%d]", i)
		r, err := policy.ParseRule(rec.Host)
		if err != nil {
			c.bad(key, "%s", err)
			continue
		}
		for _, t := range tunnels {
			if r.NeedsIntercept() && r.Overlaps(t) {
				c.bad(key, "%s has a path or a method, and passthrough %s forbids to decrypt it", quote(rec.Host), t)
			}
		}
	}
}

// operator checks config.toml outside [projects.X] and makes its paths
// absolute.
func (c *checker) operator(op *Operator, dir string) {
	up := &op.Upstream
	if up.Proxy != "" {
		if err := checkURL(up.Proxy, "http", "https", "socks5", "socks5h"); err != nil {
			c.bad("upstream.proxy", "%s", err)
		}
	}
	for i, p := range up.CA {
		if p == "" {
			c.bad(fmt.Sprintf("upstream.ca[%d]", i), "the path is empty")
		}
		up.CA[i] = absolute(dir, p)
	}
	if up.Resolver != "" {
		if a, err := netip.ParseAddr(up.Resolver); err == nil {
			up.Resolver = netip.AddrPortFrom(a, 53).String()
		} else if ap, err := netip.ParseAddrPort(up.Resolver); err != nil || ap.Port() == 0 {
			c.bad("upstream.resolver", "want ADDRESS or ADDRESS:PORT, got %s", quote(up.Resolver))
		}
	}
	for i := range up.ClientCerts {
		cert, key := &up.ClientCerts[i], fmt.Sprintf("upstream.client_cert[%d]", i)
		if len(cert.Hosts) == 0 || cert.Cert == "" || cert.Key == "" {
			c.bad(key, "wants hosts, cert and key")
			continue
		}
		for j, h := range cert.Hosts {
			if r, err := policy.ParseRule(h); err != nil {
				c.bad(fmt.Sprintf("%s.hosts[%d]", key, j), "%s", err)
			} else if r.NeedsIntercept() {
				c.bad(fmt.Sprintf("%s.hosts[%d]", key, j), "want a host, got %s", quote(h))
			}
		}
		cert.Cert, cert.Key = absolute(dir, cert.Cert), absolute(dir, cert.Key)
	}
	if op.Log.MaxSize == 0 {
		op.Log.MaxSize = defaultMaxSize
	}
	if op.Log.MaxSize < 64<<10 {
		c.bad("log.max_size", "want at least 64KiB, got %s", op.Log.MaxSize)
	}
	if !c.set("log.keep") {
		op.Log.Keep = defaultKeep
	}
	if op.Log.Keep < 0 || op.Log.Keep > 100_000 {
		c.bad("log.keep", "want 0 to 100000, got %d", op.Log.Keep)
	}
	if op.Log.OTLP != "" {
		if err := checkURL(op.Log.OTLP, "http", "https"); err != nil {
			c.bad("log.otlp", "%s", err)
		}
	}
	if op.Metrics.Listen != "" {
		if ap, err := netip.ParseAddrPort(op.Metrics.Listen); err != nil || !ap.Addr().IsLoopback() {
			c.bad("metrics.listen", "want a loopback ADDRESS:PORT, got %s", quote(op.Metrics.Listen))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(op.Secrets)) {
		op.Secrets[name] = c.secret(name, op.Secrets[name], dir)
	}
}

func (c *checker) secret(name string, s Source, dir string) Source {
	key := join("secrets", name)
	if err := state.CheckName(name); err != nil {
		c.bad(key, "%s", err)
	}
	if s.From == "" {
		s.From = "store"
	}
	for _, f := range []struct {
		from string
		set  bool
	}{{"env", s.Env != ""}, {"file", s.File != ""}, {"command", len(s.Command) > 0}} {
		switch {
		case f.from == s.From && !f.set:
			c.bad(key, "from = %q wants %s too", s.From, f.from)
		case f.from != s.From && f.set:
			c.bad(join(key, f.from), "has no effect with from = %q", s.From)
		}
	}
	if s.File != "" {
		s.File = absolute(dir, s.File)
	}
	return s
}

func checkURL(s string, schemes ...string) error {
	u, err := url.Parse(s)
	if err != nil {
		return errors.New("not a URL") // the error would repeat a password in it
	}
	if !slices.Contains(schemes, u.Scheme) || u.Hostname() == "" {
		return fmt.Errorf("want a URL with %s and a host", strings.Join(schemes, ", "))
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return errors.New("ports are 1 to 65535")
		}
	}
	return nil
}
