package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Available says whether this computer can make boxes, and what to do where it cannot. It makes and ends one set of namespaces; it
// changes nothing.
func Available(ctx context.Context) []Finding {
	return []Finding{kernelRelease(), userNamespaces(ctx), procMountable(), netfilter(), idMaps()}
}

func ok(name, detail string) Finding { return Finding{Name: name, State: "ok", Detail: detail} }

func kernelRelease() Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Finding{"kernel", "warn", err.Error(), "run on Linux 5.12 or later"}
	}
	rel := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(rel, "%d.%d", &major, &minor); err == nil && (major < 5 || major == 5 && minor < 12) {
		return Finding{"kernel", "fail", "Linux " + rel + ": mounts by descriptor need 5.12", "run a newer kernel, or use backend = \"lima\""}
	}
	return ok("kernel", "Linux "+rel)
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// userNamespaces tries the real thing, then looks for who forbids it.
func userNamespaces(context.Context) Finding {
	const name = "user namespaces"
	l := &list{}
	said, tell, err := os.Pipe()
	if err != nil {
		return Finding{name, "warn", err.Error(), ""}
	}
	defer said.Close()
	uid := os.Geteuid()
	l.add("make the network namespace", unix.SYS_UNSHARE, unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWCGROUP)
	l.tell("it is done", tell.Fd())
	pid, err := l.start(unix.CLONE_NEWUSER, tell.Fd())
	tell.Close()
	if err == nil {
		b := make([]byte, 8)
		var n int
		n, err = said.Read(b)
		unix.Kill(pid, unix.SIGKILL)
		var ws unix.WaitStatus
		unix.Wait4(pid, &ws, 0, nil)
		if err == nil && n == 1 {
			return ok(name, fmt.Sprintf("uid %d may make them", uid))
		}
		if n == 8 {
			err = l.failure(b)
		}
	}
	detail, fix := fmt.Sprint(err), ""
	switch {
	case read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		fix = "sudo sysctl -w kernel.unprivileged_userns_clone=1   (and in /etc/sysctl.d/ to keep it)"
	case read("/proc/sys/user/max_user_namespaces") == "0":
		fix = "sudo sysctl -w user.max_user_namespaces=15000   (and in /etc/sysctl.d/ to keep it)"
	case read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		fix = appArmorFix()
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EUSERS):
		fix = "too many namespaces are in use: see /proc/sys/user/max_*_namespaces"
	case errors.Is(err, unix.EPERM) && inContainer():
		fix = "this is a container whose seccomp or capability settings forbid it: start it with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS):
		fix = "the kernel was built without CONFIG_USER_NS: use another, or backend = \"lima\""
	default:
		fix = "see user_namespaces(7); foldyard never elevates itself and falls back to nothing weaker"
	}
	return Finding{name, "fail", detail, fix}
}

// appArmorFix is Ubuntu's rule since 23.10: a profile for fy's own path lifts it for fy alone.
func appArmorFix() string {
	self, err := os.Executable()
	if err != nil {
		self = "/usr/local/bin/fy"
	}
	return "AppArmor restricts unprivileged user namespaces. For fy alone:\n" +
		"  printf 'abi <abi/4.0>,\\nprofile fy \"" + self + "\" flags=(unconfined) { userns, }\\n' | sudo tee /etc/apparmor.d/fy\n" +
		"  sudo apparmor_parser -r /etc/apparmor.d/fy"
}

func inContainer() bool {
	for _, p := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(p); err == nil {
			return true
		}
	}
	return os.Getenv("container") != ""
}

// procMountable looks for mounts over parts of /proc: the kernel then forbids a new /proc in a user namespace (mount_too_revealing).
func procMountable() Finding {
	const name = "/proc"
	var masked []string
	for _, line := range strings.Split(read("/proc/self/mountinfo"), "\n") {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], "/proc/") && f[4] != "/proc/sys/fs/binfmt_misc" && !strings.HasPrefix(f[4], "/proc/fs/nfsd") {
			masked = append(masked, f[4])
		}
	}
	if len(masked) > 0 {
		return Finding{name, "fail", "parts of it are masked here (" + strings.Join(masked, ", ") + "), so a box cannot have its own",
			"in a container: start it with --security-opt systempaths=unconfined (Docker) or --security-opt unmask=ALL (Podman)"}
	}
	return ok(name, "a box can mount its own")
}

func netfilter() Finding {
	const name = "nf_tables"
	l := &list{}
	said, tell, err := os.Pipe()
	if err != nil {
		return Finding{name, "warn", err.Error(), ""}
	}
	defer said.Close()
	// A netlink socket of nfnetlink in a namespace of our own: the module is loaded by it where it exists.
	l.add("open nfnetlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	l.tell("it is done", tell.Fd())
	pid, err := l.start(unix.CLONE_NEWUSER|unix.CLONE_NEWNET, tell.Fd())
	tell.Close()
	if err != nil {
		return Finding{name, "warn", "could not be tried: " + err.Error(), "see user namespaces"}
	}
	b := make([]byte, 8)
	n, err := said.Read(b)
	unix.Kill(pid, unix.SIGKILL)
	var ws unix.WaitStatus
	unix.Wait4(pid, &ws, 0, nil)
	if err != nil || n != 1 {
		return Finding{name, "warn", "the kernel has none: connections are caught on a fixed list of ports instead, and other refusals are slower to explain",
			"sudo modprobe nf_tables   (or a kernel with CONFIG_NF_TABLES)"}
	}
	return ok(name, "connections by name are redirected, everything else is refused at once")
}

func idMaps() Finding {
	const name = "root"
	if os.Geteuid() != 0 {
		return ok(name, "not needed, and not used")
	}
	return Finding{name, "warn", "fy runs as root: a box then runs as an ordinary user (SUDO_UID, or 65534) over id-mapped mounts", "run fy as the user who owns the project"}
}
