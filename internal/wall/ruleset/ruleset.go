// Package ruleset renders, as pure text, what packet filters need: the guest's
// nftables table, its systemd units and the boot script that puts them in
// place, and the host's table, units and commands. Each rendering has a golden
// file. Start with Guest. It may not run nft or systemctl, read a file, or know
// what a machine is: whoever loads a text has it checked by nft itself.
package ruleset

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Ports is an inclusive range of TCP or UDP ports.
type Ports struct{ First, Last uint16 }

func (p Ports) String() string {
	if p.First == p.Last {
		return fmt.Sprint(p.First)
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// UIDs is an inclusive range of user ids.
type UIDs struct{ First, Last uint32 }

func (u UIDs) String() string {
	if u.First == u.Last {
		return fmt.Sprint(u.First)
	}
	return fmt.Sprintf("%d-%d", u.First, u.Last)
}

// walledMark stands in a rendered table where the guest fills in the user ids,
// which only it knows.
const walledMark = "@WALLED@"

// Guest is the VM firewall: the table that runs in the guest. It holds against
// every user of the guest but root and the accounts of its services.
type Guest struct {
	Gateway  netip.Addr // the host, as the guest sees it
	Services Ports      // TCP ports of the gateway that the walled may reach
	DNS      uint16     // port of the gateway that answers DNS, UDP and TCP
}

// Check says why g cannot be rendered.
func (g Guest) Check() error {
	switch {
	case !g.Gateway.Is4():
		return fmt.Errorf("gateway %s: want an IPv4 address", g.Gateway)
	case g.Services.First == 0 || g.Services.Last < g.Services.First:
		return fmt.Errorf("services %s: want a range of ports", g.Services)
	case g.DNS < g.Services.First || g.DNS > g.Services.Last:
		return fmt.Errorf("dns port %d: want one of the services %s", g.DNS, g.Services)
	}
	return nil
}

// template is the table with a mark where the user ids go. One file replaces
// the whole table in one transaction and touches no other.
func (g Guest) template() string {
	return fmt.Sprintf(`# foldyard's VM firewall. It is replaced whole, in one transaction.
add table inet foldyard
delete table inet foldyard
table inet foldyard {
	# The VM's user, its subordinate ids, and every id that is no system account's.
	set walled {
		type uid
		flags interval
		auto-merge
		elements = { %[4]s }
	}

	# Whoever asks for a name asks us: no resolver of the guest carries data out.
	chain names {
		type nat hook output priority -100; policy accept;
		oifname != "lo" meta nfproto ipv4 meta l4proto { tcp, udp } th dport 53 dnat ip to %[1]s:%[3]d
	}

	chain output {
		type filter hook output priority filter; policy accept;
		oifname "lo" accept
		ct state established accept
		ct state related meta l4proto { icmp, ipv6-icmp } accept
		ip daddr %[1]s meta l4proto { tcp, udp } th dport %[3]d accept
		meta l4proto { tcp, udp } th dport { 53, 853, 5353, 5355 } goto refuse
		meta skuid @walled goto walled
		meta skuid 0-4294967295 accept
		# No owner: the kernel itself. It may reset and find its neighbours, no more.
		tcp flags & (syn | rst) == rst accept
		meta l4proto ipv6-icmp icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, mld2-listener-report } accept
		goto refuse
	}

	chain walled {
		ip daddr %[1]s tcp dport %[2]s accept
		goto refuse
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state established accept
		ct state related meta l4proto { icmp, ipv6-icmp } accept
		ip daddr %[1]s tcp dport %[2]s accept
		goto refuse
	}

	chain refuse {
		limit rate 30/minute burst 30 packets log prefix "foldyard-deny " level info
		counter
		meta l4proto tcp reject with tcp reset
		reject with icmpx admin-prohibited
	}
}
`, g.Gateway, g.Services, g.DNS, walledMark)
}

// Table is the text that nft loads when walled are the VM user's ids.
func (g Guest) Table(walled []UIDs) (string, error) {
	if err := g.Check(); err != nil {
		return "", err
	}
	if len(walled) == 0 {
		return "", fmt.Errorf("no user ids to wall")
	}
	var ids []string
	for _, u := range walled {
		if u.Last < u.First {
			return "", fmt.Errorf("user ids %d-%d: the last is before the first", u.First, u.Last)
		}
		if u.First == 0 {
			return "", fmt.Errorf("user ids %s: root runs what the guest needs, it cannot be walled", u)
		}
		ids = append(ids, u.String())
	}
	return strings.Replace(g.template(), walledMark, strings.Join(ids, ", "), 1), nil
}

// TableAs is the text that the guest made, when it says that walled are the ids it filled in. They must hold the VM's user and
// whoever is no system account.
func (g Guest) TableAs(walled string, uid int) (string, error) {
	if err := g.Check(); err != nil {
		return "", err
	}
	own := false
	ids := strings.Split(walled, ", ")
	for _, id := range ids {
		if !idRange().MatchString(id) {
			return "", fmt.Errorf("walled user ids %.60q: not a list of ids", walled)
		}
		own = own || id == strconv.Itoa(uid)
	}
	if !own || !slices.Contains(ids, Unbound().String()) {
		return "", fmt.Errorf("walled user ids %.60q: the VM's user, %d, or %s is not among them", walled, uid, Unbound())
	}
	return strings.Replace(g.template(), walledMark, walled, 1), nil
}

var idRange = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[1-9][0-9]{0,9}(-[1-9][0-9]{0,9})?$`) })

// Unbound returns the ids from 1000 up: whoever is no system account.
func Unbound() UIDs { return UIDs{1000, 4294967294} }

// Units of the guest, by path.
const (
	guestUnit   = "/etc/systemd/system/foldyard-firewall.service"
	TablePath   = "/etc/foldyard/firewall.nft"
	UnitName    = "foldyard-firewall.service"
	orderingDir = "/etc/systemd/system/"
)

// GuestUnits are the systemd units that load the table before there is a
// network or a process of the user's. What they hold back does not start
// without the table: a user's own units, planted or not, and cron.
func GuestUnits() map[string]string {
	units := map[string]string{guestUnit: `[Unit]
Description=foldyard VM firewall
Documentation=man:nft(8)
DefaultDependencies=no
After=local-fs.target systemd-modules-load.service
Before=network-pre.target shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f ` + TablePath + `
ExecReload=/usr/sbin/nft -f ` + TablePath + `

[Install]
WantedBy=sysinit.target
`}
	for _, held := range []string{"user@.service", "cron.service", "crond.service", "atd.service"} {
		units[orderingDir+held+".d/10-foldyard.conf"] = "[Unit]\nRequires=" + UnitName + "\nAfter=" + UnitName + "\n"
	}
	return units
}

// plain are the names that may stand in units, paths and table names.
var plain = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`) })

// identifier makes a name fit for nft.
func identifier(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, s)
}

// sortedKeys returns the keys of m in order.
func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
