package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"

	"foldyard/internal/box/container"
	"foldyard/internal/egress/dest"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/machine"
	"foldyard/internal/proof/battery"
	"foldyard/internal/proof/vmprobe"
)

// verifyVM runs the machine's battery: from the box's container, beside it as the VM's user, and from containers of other kinds.
func (s *Supervisor) verifyVM(ctx context.Context, b *sandbox, q control.VerifyRequest) (json.RawMessage, error) {
	if q.AsRoot {
		return nil, &control.Error{Code: control.CodeBad, Detail: "the VM firewall does not hold against root in the VM, so there is nothing to show as root", Hint: "fy verify"}
	}
	cfg := s.cfg.Load()
	addrs, err := s.probeAddrs(q)
	if err != nil {
		return nil, err
	}
	image, err := s.vmImage(ctx, cfg)
	s.vm.step.Store(nil)
	if err != nil {
		return nil, err
	}
	bare := "http://" + netip.AddrPortFrom(s.vm.m.Gateway(), b.rec.Port).String()
	o := battery.VMOptions{
		Box: b.id, BootID: bootID(), Digest: s.digest(ctx, b), Control: &s.control, ControlName: dest.ControlName, Now: s.now,
		Addrs: addrs, Gateway: s.vm.m.Gateway(), Proxy: b.outURL, BareProxy: bare,
		Free:      []uint16{s.vm.band + state.PortServices, s.vm.band + state.PortServices + 50},
		Closed:    []uint16{s.vm.band + state.PortSSH},
		Synthetic: []netip.Prefix{dest.SyntheticV4()}, Repo: s.opt.Dir, Version: s.opt.Version, Kernel: guestKernel(ctx, s.vm.m),
		Places: s.vmPlaces(b, image),
	}
	if b.rec.Backend == config.Lima {
		l := limaOptions(s.opt.Host, s.opt.Project.Name)
		o.Dir, _ = filepath.EvalSymlinks(filepath.Join(l.Home, l.Instance)) // which is what limactl uses
	}
	b.probing.Store(true)
	defer b.probing.Store(false)
	report, err := battery.VerifyVM(ctx, o, s.evidence())
	if err != nil {
		return nil, err
	}
	s.audit("verify", string(report.Verdict))
	return json.Marshal(report)
}

// vmPlaces are where the probes start.
func (s *Supervisor) vmPlaces(b *sandbox, image string) []battery.VMPlace {
	place := func(name, title string, direct bool, argv ...string) battery.VMPlace {
		return battery.VMPlace{Name: name, Title: title, Direct: direct, Run: func(ctx context.Context, plan []byte) ([]byte, error) {
			return s.vm.m.Run(ctx, machine.Command{Argv: argv, Stdin: bytes.NewReader(plan)})
		}}
	}
	fy := s.vm.program
	with := func(flags ...string) []string {
		argv := append([]string{"podman", "run", "--rm", "--interactive", "--pull=never", "--log-driver=none", "--security-opt=label=disable", "--volume=" + fy + ":" + fy + ":ro", "--entrypoint=" + fy}, flags...)
		return append(argv, image, vmprobe.Verb)
	}
	return []battery.VMPlace{
		place("box", "from the box", false, "podman", "exec", "--interactive", container.Name(b.id), container.Program, vmprobe.Verb),
		place("user", "as the VM's user, outside the box", true, fy, vmprobe.Verb),
		place("host-net", "from a container with --network=host", false, with("--network=host")...),
		place("privileged", "from a container with --privileged --network=host", false, with("--privileged", "--network=host")...),
		place("sub-uid", "from another uid of the range, --network=host", false, with("--network=host", "--user=5000:5000")...),
		place("nested", "from a container inside a container, --network=host", false, append(with("--privileged", "--network=host"), vmprobe.Nested)...),
		place("build", "from a step of a build", false, "sh", "-c", buildStep, "sh", fy, image),
		place("keep-id", "from a container with --userns=keep-id", false, with("--userns=keep-id")...),
	}
}

// buildStep builds an image whose one step is our program, $1, in the image $2. The plan and the outcomes go by files: what a step prints
// is mixed with what the builder says.
const buildStep = `set -eu
d=$(mktemp -d)
trap 'rm -rf "$d"' EXIT
mkdir "$d/context" "$d/fy"
cat >"$d/fy/plan"
printf 'FROM %s\nRUN ["%s", "` + vmprobe.Verb + `", "/fy/plan", "/fy/out"]\n' "$2" "$1" >"$d/Containerfile"
id=$(podman build --quiet --no-cache --layers=false --security-opt label=disable --volume "$1:$1:ro" --volume "$d/fy:/fy" --file "$d/Containerfile" "$d/context")
podman rmi --force "$id" >/dev/null
cat "$d/fy/out"`

// guestKernel is the release of the machine's kernel, by its own word.
func guestKernel(ctx context.Context, m machine.Machine) string {
	out, err := m.Run(ctx, machine.Command{Argv: []string{"uname", "-r"}})
	text := strings.TrimSpace(string(out))
	if err != nil || len(text) > 64 || strings.ContainsFunc(text, func(r rune) bool { return r < '!' || r > '~' }) {
		return ""
	}
	return text
}
