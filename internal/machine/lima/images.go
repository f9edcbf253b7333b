package lima

import (
	"cmp"
	"fmt"

	"foldyard/internal/machine"
)

// defaultImage is the image of a machine for which none is named.
const defaultImage = "debian"

// distribution is what a distribution publishes for clouds, as it was at a date, by architecture. The digests were not taken from the
// servers themselves: each stands in the public texts that are named, and limactl holds what it fetches against them.
func distribution(name, arch string) (location, digest string, ok bool) {
	type key struct{ name, arch string }
	type image struct{ location, digest string }
	const (
		// Debian 13, generic: the kernel of genericcloud has no 9p. Build 20260831-2587; its SHA512SUMS as three public texts quote it for
		// amd64 and two for arm64, read 2026-11-30.
		debian = "https://cloud.debian.org/images/cloud/trixie/20260831-2587/debian-13-generic-"
		// Fedora 44 Cloud, release 1.7; as in Lima's own template fedora-44.yaml (lima-vm/lima, 1f8f521), read 2026-11-30.
		fedora = "https://download.fedoraproject.org/pub/fedora/linux/releases/44/Cloud/"
	)
	found, ok := map[key]image{
		{"debian", "x86_64"}: {
			debian + "amd64-20260831-2587.qcow2",
			"sha512:5a069019420fb9441ad4f8004c661fadb747edd5662ca54a17c8f923dee7d717e21dbdaa4ba72d6fce7f920e0217f0a9af382298a7d46ed4bc9dc33ac19181b6",
		},
		{"debian", "aarch64"}: {
			debian + "arm64-20260831-2587.qcow2",
			"sha512:27287048285224e662722b54c77849c9bd1a2fd60ccea5f2e75c644fbd638fad7e32a97e8e3d628c8bbfdb9cf757951c8300f3c21758647c8906359d9c892b42",
		},
		{"fedora", "x86_64"}: {
			fedora + "x86_64/images/Fedora-Cloud-Base-Generic-44-1.7.x86_64.qcow2",
			"sha256:28680fe5b371a5a82ebf43a31926e086a168e59949d03969c5093e7071f90b7f",
		},
		{"fedora", "aarch64"}: {
			fedora + "aarch64/images/Fedora-Cloud-Base-Generic-44-1.7.aarch64.qcow2",
			"sha256:55c60a3b80d3616a08705afd0459e75fe9f03c54aba7a46e4002a41a72fa0d5b",
		},
	}[key{name, arch}]
	return found.location, found.digest, ok
}

// image is where a machine's image is, and its digest. name is the distribution's, "" for an image of the operator's own, which is
// refused without a digest.
func (p platform) image(s machine.Spec) (location, digest, name string, err error) {
	name = cmp.Or(s.Image, defaultImage)
	if location, digest, ok := distribution(name, p.arch()); ok {
		if s.Digest != "" || s.Kernel != "" || s.Initrd != "" {
			return "", "", "", &machine.Error{
				Detail: fmt.Sprintf("the VM's image %s has a digest and a kernel of its own", name),
				Fix:    "leave digest, kernel and initrd out of [machine], or name another image",
			}
		}
		return location, digest, name, nil
	}
	if !digestRE().MatchString(s.Digest) {
		return "", "", "", &machine.Error{Detail: fmt.Sprintf("digest %q of the VM's image", s.Digest), Fix: `[machine] digest wants sha256: and 64 hexadecimal digits, or sha512: and 128`}
	}
	return s.Image, s.Digest, "", nil
}
