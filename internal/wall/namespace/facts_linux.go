package namespace

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// facts reads what the host can see of the box now: nothing here is the box's word.
func (k *keeper) facts() (*Facts, error) {
	f := &Facts{Box: k.spec.ID, Pid: k.agentPid, Keeper: os.Getpid(), Rules: "nftables", Nested: k.spec.Nested, Covered: k.built.covered, Linked: k.built.unprotected}
	if k.rules == nil {
		f.Rules = "ports"
	}
	var err error
	if f.Devices, err = liveDevices(); err != nil {
		return nil, err
	}
	if f.Strangers, err = k.strangers(); err != nil {
		return nil, err
	}
	if f.Digest, err = k.digest(); err != nil {
		return nil, err
	}
	return f, nil
}

// fallbackDevices are made by loaded kernel modules in every network namespace; they are down and lead nowhere.
var fallbackDevices = []string{"sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}

// liveDevices lists the network devices of this namespace, without the fallback devices that are down.
func liveDevices() ([]string, error) {
	ls, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	var names []string
	for _, l := range ls {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_UP == 0 && slices.Contains(fallbackDevices, a.Name) {
			continue
		}
		names = append(names, a.Name)
	}
	slices.Sort(names)
	return names, nil
}

// strangers lists the processes of the box (by the box's own numbers) that are in another network namespace than ours.
func (k *keeper) strangers() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the box's processes: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list the box's processes: %w", err)
	}
	want := "net:[" + strconv.FormatUint(k.netInode, 10) + "]"
	var out []int
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if ns, err := os.Readlink("/proc/" + n + "/ns/net"); err == nil && ns != want {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out, nil
}

// digest is over the construction as it is now: kinds of namespaces, rules, mounts, filter and program, and no identifiers, so that a
// twin of the box has the same.
func (k *keeper) digest() (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "namespaces user mount net ipc uts cgroup; user mount pid; root %v nested %v\n", k.spec.Root, k.spec.Nested)
	fmt.Fprintf(h, "repo read-only %v writable %q protected %q\n", k.spec.RepoReadOnly, k.spec.Writable, Protected())
	if err := digestRules(h); err != nil {
		return "", err
	}
	if err := digestMounts(h, "/proc/1/mountinfo", &k.spec); err != nil {
		return "", err
	}
	for _, i := range filter(k.spec.Nested) {
		fmt.Fprintf(h, "%x %x %x %x\n", i.Code, i.Jt, i.Jf, i.K)
	}
	fd, err := unix.FcntlInt(k.program, unix.F_DUPFD_CLOEXEC, 3) // one of its own: a collected os.File would close the keeper's
	if err != nil {
		return "", fmt.Errorf("digest the program: %w", err)
	}
	p := os.NewFile(uintptr(fd), "program")
	defer p.Close()
	if _, err := io.Copy(h, io.NewSectionReader(p, 0, 1<<40)); err != nil {
		return "", fmt.Errorf("digest the program: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// digestRules hashes every table of the namespace, not only ours: a foreign one changes the box as well.
func digestRules(h io.Writer) error {
	c, err := nftables.New()
	if err != nil {
		fmt.Fprintln(h, "no nf_tables")
		return nil
	}
	chains, err := c.ListChains()
	if err != nil {
		fmt.Fprintln(h, "no nf_tables")
		return nil
	}
	for _, ch := range chains {
		fmt.Fprintf(h, "table %d %s chain %s %s", ch.Table.Family, ch.Table.Name, ch.Name, ch.Type)
		if ch.Hooknum != nil && ch.Priority != nil {
			fmt.Fprintf(h, " hook %d priority %d", *ch.Hooknum, *ch.Priority)
		}
		if ch.Policy != nil {
			fmt.Fprintf(h, " policy %d", *ch.Policy)
		}
		fmt.Fprintln(h)
		rs, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return fmt.Errorf("read rules of %s: %w", ch.Name, err)
		}
		for _, r := range rs {
			for _, e := range r.Exprs {
				b, err := json.Marshal(e)
				if err != nil {
					return fmt.Errorf("read rules of %s: %w", ch.Name, err)
				}
				fmt.Fprintf(h, " %T %s", e, b)
			}
			fmt.Fprintln(h)
		}
	}
	return nil
}

// digestMounts hashes a mount table without its numbers (proc_pid_mountinfo(5)). What covers an entry of the repo is left out: which
// entries there are is the box's to say, so a twin made later may cover others by the same rule.
func digestMounts(h io.Writer, file string, spec *Spec) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read the box's mounts: %w", err)
	}
	defer f.Close()
	mountEscapes := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	var rows []string
	for s.Scan() {
		fields := strings.Fields(s.Text())
		if len(fields) < 10 {
			continue
		}
		if at := mountEscapes.Replace(fields[4]); at != spec.Repo && under(at, spec.Repo) && !slices.ContainsFunc(spec.Mounts, func(b Bind) bool { return b.Target == at }) {
			continue
		}
		row := append([]string(nil), fields[3:6]...)
		for i, v := range fields {
			if v == "-" {
				row = append(row, fields[i+1:]...)
				break
			}
		}
		rows = append(rows, strings.Join(row, " "))
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read the box's mounts: %w", err)
	}
	for _, r := range rows {
		fmt.Fprintln(h, r)
	}
	return nil
}
