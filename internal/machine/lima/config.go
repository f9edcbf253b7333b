package lima

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"

	"foldyard/internal/machine"
	"foldyard/internal/wall/ruleset"
)

// gateway is the host as Lima's user-mode network shows it to a guest.
func gateway() netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 5, 2}) }

// marker begins each instance's configuration that foldyard made.
const marker = "# foldyard machine: made by fy, rewritten by fy up\n"

// named begins an instance's images where they are a distribution's. A disk that was made from an older one stays.
const named = "# the image of "

// cmdline boots a kernel that is given beside the image: the image's root has the label rootfs.
const cmdline = "root=LABEL=rootfs ro console=ttyS0 net.ifnames=0 mitigations=off quiet audit=0"

var digestRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`) })

// platform is what the rendering must know of the host.
type platform struct{ goos, goarch string }

func (p platform) arch() string {
	if p.goarch == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

// guestOf is the firewall of a machine.
func guestOf(s machine.Spec) ruleset.Guest {
	return ruleset.Guest{Gateway: gateway(), Services: ruleset.Ports{First: s.Band, Last: s.Band + uint16(s.Services) - 1}, DNS: s.DNS}
}

// render returns an instance's configuration, byte for byte, and the digest of the boot script in it.
func (p platform) render(s machine.Spec) (config, digest string, err error) {
	if err := s.Check(); err != nil {
		return "", "", err
	}
	location, sum, name, err := p.image(s)
	if err != nil {
		return "", "", err
	}
	boot := ruleset.Boot{User: machine.User, UID: s.UID, CA: s.CA, Firewall: s.Firewall, Guest: guestOf(s)}
	script, digest, err := boot.Script()
	if err != nil {
		return "", "", err
	}
	vm, mount := "qemu", "9p"
	if p.goos == "darwin" {
		vm, mount = "vz", "virtiofs"
	}
	var b strings.Builder
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	b.WriteString(marker)
	w("minimumLimaVersion: 2.1.0")
	w("vmType: %s", vm)
	w("arch: %s", p.arch())
	w("images:")
	if name != "" {
		w("%s%s", named, name)
	}
	w("- location: %s", quote(location))
	w("  arch: %s", p.arch())
	w("  digest: %s", quote(sum))
	if s.Kernel != "" {
		w("  kernel: { location: %s, cmdline: %s }", quote(s.Kernel), quote(cmdline))
		if s.Initrd != "" {
			w("  initrd: { location: %s }", quote(s.Initrd))
		}
		w("firmware: { legacyBIOS: true }")
	}
	w("cpus: %d", s.CPUs)
	w("memory: %dMiB", s.Memory>>20)
	w("disk: %dMiB", s.Disk>>20)
	w("user: { name: %s, uid: %d, home: /home/%s, comment: foldyard }", machine.User, s.UID, machine.User)
	w("mountType: %s", mount)
	w("mountInotify: false")
	w("mounts:")
	w("- { location: %s, mountPoint: %s, writable: true }", quote(s.Repo), quote(s.Repo))
	if s.Share != "" {
		w("- { location: %s, mountPoint: %s, writable: false }", quote(s.Share), quote(machine.SharePath))
	}
	w("ssh: { localPort: %d, loadDotSSHPubKeys: false, forwardAgent: false, forwardX11: false, forwardX11Trusted: false }", s.SSH)
	w("portForwards:")
	w("- { guestIP: 0.0.0.0, guestIPMustBeZero: false, proto: any, ignore: true }")
	w("containerd: { system: false, user: false }")
	w("hostResolver: { enabled: false }")
	w("dns: [ %s ]", gateway())
	w("propagateProxyEnv: false")
	w("upgradePackages: false")
	w("video: { display: none }")
	w("provision:")
	w("- mode: system")
	w("  script: |")
	for line := range strings.Lines(script) {
		if line == "\n" {
			b.WriteString("\n")
			continue
		}
		b.WriteString("    " + line)
	}
	return b.String(), digest, nil
}

// quote writes a string as YAML takes it whatever it holds: JSON's quotes are YAML's.
func quote(s string) string {
	b, _ := json.Marshal(s) // a string always can be
	return string(b)
}
