package supervisor

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"

	"foldyard/internal/egress/dest"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/proof/battery"
	"foldyard/internal/wall/namespace"
)

// Verify runs the battery in a box and stores what it showed. With root's powers it runs in a twin of the box, built the
// same, so that the box goes on.
func (s *Supervisor) Verify(ctx context.Context, q control.VerifyRequest) (json.RawMessage, error) {
	if !s.verifying.TryLock() {
		return nil, &control.Error{Code: control.CodeConflict, Detail: "a verify runs already"}
	}
	defer s.verifying.Unlock()
	b, err := s.find(q.Box)
	if err != nil {
		return nil, err
	}
	if b.inVM() {
		return s.verifyVM(ctx, b, q)
	}
	o, err := s.batteryOptions(ctx, b, q)
	if err != nil {
		return nil, err
	}
	in := b
	if q.AsRoot {
		o.AsRoot, o.Twin = true, true
		if in, err = s.make(ctx, s.cfg.Load(), control.BoxRequest{Home: b.rec.Home, Oneshot: !b.rec.Home}, twinName); err != nil {
			return nil, err
		}
		defer s.mustEnd(context.WithoutCancel(ctx), in)
	}
	in.probing.Store(true)
	defer in.probing.Store(false)
	program, err := s.whole()
	if err != nil {
		return nil, err
	}
	o.Run = func(ctx context.Context, plan []byte, asRoot bool) ([]byte, error) {
		return in.client.Probe(ctx, program, plan, asRoot)
	}
	o.Facts = func(ctx context.Context) (battery.Facts, error) {
		f, err := in.client.Facts(ctx)
		if err != nil {
			return battery.Facts{}, err
		}
		return shownFacts(f), nil
	}
	report, err := battery.Verify(ctx, o, s.evidence())
	if err != nil {
		return nil, err
	}
	s.audit("verify", string(report.Verdict))
	return json.Marshal(report)
}

func shownFacts(f *namespace.Facts) battery.Facts {
	return battery.Facts{Digest: f.Digest, Agent: f.Pid, Keeper: f.Keeper, Devices: f.Devices, Strangers: f.Strangers, AnswersAll: f.Rules == "ports"}
}

// batteryOptions says what is to be tried in a box, and what the host has that it must not reach.
func (s *Supervisor) batteryOptions(ctx context.Context, b *sandbox, q control.VerifyRequest) (battery.Options, error) {
	cfg := s.cfg.Load()
	addrs, err := s.probeAddrs(q)
	if err != nil {
		return battery.Options{}, err
	}
	env, err := s.environment(b, nil, nil)
	if err != nil {
		return battery.Options{}, err
	}
	granted := s.redirected(s.effective.Snapshot().GrantedPrefixes(b.id, s.now()))
	l := s.opt.Host.Layout
	launcher, _ := os.Executable() // "" is a probe less
	files := battery.Files{
		State: append(slices.Clone(l.Dirs()), l.OperatorConfig()), ControlSocket: s.opt.Project.ControlSocket(),
		CAKey: l.CADir() + "/ca-key.pem", Secrets: []string{s.opt.Project.Secrets()},
		OperatorHome: s.opt.Getenv("HOME"), Launcher: launcher,
	}
	opened := []string{b.user.Home}
	for _, m := range cfg.Box.Mounts {
		files.Mounted = append(files.Mounted, m.Source)
		if m.Write && m.Target != "" {
			opened = append(opened, m.Target)
		}
	}
	return battery.Options{
		Box: b.id, BootID: bootID(), Digest: s.digest(ctx, b),
		Control: &s.control, Now: s.now,
		ControlName: dest.ControlName, DNS4: dest.OwnV4(), DNS6: dest.OwnV6(),
		Synthetic: []netip.Prefix{dest.SyntheticV4(), dest.SyntheticV6()},
		Proxy:     netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), namespace.PortProxy), CA: s.authority.PEM(),
		Addrs: addrs, Granted: granted,
		Answered: s.creds.in.LocalAddrs(), Resolvers: hostResolvers(cfg),
		Getenv: s.opt.Getenv, Environ: os.Environ(), BoxEnv: env, Files: files,
		Enforcing: s.snapshotEnforces(), Nested: cfg.Box.Nested, ReadOnly: b.rec.RO, Repo: s.opt.Dir, Writable: cfg.Box.Writable,
		BoxHome: b.user.Home, Opened: opened, Version: s.opt.Version, Kernel: kernelRelease(),
	}, nil
}

// probeAddrs are the outside addresses that are to be tried.
func (s *Supervisor) probeAddrs(q control.VerifyRequest) ([]netip.Addr, error) {
	addrs, err := battery.ParseAddrs(cmp.Or(q.Addrs, s.opt.Getenv("FY_PROBE_ADDRS")))
	if err != nil {
		return nil, bad("%v", err)
	}
	return addrs, nil
}

// hostResolvers are the name servers that this computer asks.
func hostResolvers(cfg *config.Effective) []netip.Addr {
	var out []netip.Addr
	if ap, err := netip.ParseAddrPort(cfg.Upstream.Resolver); err == nil {
		out = append(out, ap.Addr())
	}
	f, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return out
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan() && len(out) < 8; {
		fields := strings.Fields(sc.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil && a.Zone() == "" && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func kernelRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
