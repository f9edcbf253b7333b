package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// walls says how much stands between a box and the world, the more the higher.
var walls = map[string]int{Podman: 0, Namespace: 1, Lima: 1}

// widenings says what e permits, or asks for, that before did not; a line
// each, escaped.
func widenings(before, e *Effective) []string {
	var out []string
	say := func(format string, args ...any) {
		out = append(out, strings.ReplaceAll(Escape(fmt.Appendf(nil, format, args...)), `\u2192`, "→"))
	}
	fresh := func(old, now []string, prefix string) {
		for _, s := range now {
			if !slices.Contains(old, s) {
				say("%s %s", prefix, s)
			}
		}
	}
	if e.Proxy.Enforce != before.Proxy.Enforce && e.Proxy.Enforce != EnforceOn {
		say("enforce: a new project starts with the allowlist %s, so that everything goes out", e.Proxy.Enforce)
	}
	fresh(texts(before.Proxy.Recommend), texts(e.Proxy.Recommend), "asks for host:")
	for _, s := range e.Proxy.Passthrough {
		switch {
		case slices.Contains(before.Proxy.Passthrough, s):
		case strings.HasPrefix(s, "@"):
			say("not decrypted: %s, which is %s", s, orNothing(expand([]string{s}, e.bundles)))
		default:
			say("not decrypted: %s", s)
		}
	}
	fresh(texts(before.Box.Ports), texts(e.Box.Ports), "published port (on the host:in the box):")
	fresh(texts(before.Box.Mounts), texts(e.Box.Mounts), "mount:")
	fresh(credentials(before), credentials(e), "credential:")
	for _, s := range []struct {
		text     string
		old, now bool
	}{
		{"root: the box runs as uid 0 of its own user namespace", before.Box.Root, e.Box.Root},
		{"nested: the box may create user namespaces, which shows it more of the kernel", before.Box.Nested, e.Box.Nested},
		{"engine: the box gets the VM's engine socket, which is as good as the VM's user", before.Box.Engine, e.Box.Engine},
		{"firewall off: the VM has no firewall of its own", before.Machine.Firewall || before.Machine.Backend != Lima, e.Machine.Firewall || e.Machine.Backend != Lima},
		{"gateway off: the VM has a network card that is not foldyard's", before.Machine.Gateway || before.Machine.Backend != Lima, e.Machine.Gateway || e.Machine.Backend != Lima},
		{"host firewall off", before.Machine.HostFirewall, e.Machine.HostFirewall},
	} {
		if off := strings.Contains(s.text, " off"); s.now != s.old && s.now != off {
			say("%s", s.text)
		}
	}
	if walls[e.Machine.Backend] < walls[before.Machine.Backend] {
		say("backend %s: cooperative, nothing keeps the box from going around the proxy", e.Machine.Backend)
	}
	fresh(images(before), images(e), "runs image:")
	return out
}

func texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

// credentials says which credential goes where, a line for each pair.
func credentials(e *Effective) []string {
	var out []string
	for _, r := range e.Inject {
		place := "header " + r.Header
		switch {
		case r.Query != "":
			place = "query " + r.Query
		case r.Header == "":
			place = "as usual there"
		}
		for _, h := range r.Hosts {
			out = append(out, fmt.Sprintf("%s → %s%s (%s, %s)", r.Name, h, r.Path, r.Kind, place))
		}
		if r.TokenURL != "" {
			out = append(out, fmt.Sprintf("%s → %s (its refresh token)", r.Name, r.TokenURL))
		}
		if r.Issuing {
			out = append(out, r.Name+" may call endpoints that answer with a credential")
		}
	}
	return out
}

func images(e *Effective) []string {
	var out []string
	for _, s := range []string{e.Machine.Image, e.Machine.Kernel, e.Machine.Initrd, e.Box.Image, e.Box.Rootfs} {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing on this computer"
	}
	return strings.Join(list, ", ")
}

// expand replaces each @name by its hosts.
func expand(passthrough []string, bundles map[string][]string) []string {
	out := []string{}
	for _, s := range passthrough {
		if strings.HasPrefix(s, "@") {
			out = append(out, bundles[s]...)
		} else {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// bundles expands the @names in list from the clients' own configuration on
// this computer and from bundles.toml. A name that expands to nothing is in the result all the same.
func (h Host) bundles(list []string) map[string][]string {
	all := map[string]func() []string{"@apt": h.aptHosts, "@containers": h.containerHosts, "@go": h.goHosts, "@jvm": h.jvmHosts, "@npm": h.npmHosts}
	out := map[string][]string{}
	for _, s := range list {
		if read, ok := all[s]; ok && out[s] == nil {
			hosts := read()
			slices.Sort(hosts)
			out[s] = slices.Compact(append([]string{}, hosts...))
		}
	}
	return maps.Clone(out)
}
