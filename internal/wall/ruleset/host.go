package ruleset

import (
	"fmt"
	"strings"
)

// Host is the host firewall of one VM on Linux: a table that matches the VM's
// own process by its cgroup. foldyard renders it; the operator applies it.
type Host struct {
	Name     string // of the VM
	UID      int    // of the operator
	Slice    string // cgroup path below the root, such as user.slice/user-1000.slice/…
	Services Ports  // the half of the project's band that the VM may reach
	DNS      uint16 // one of them, UDP too
}

// File is a rendered file and where the operator puts it.
type File struct {
	Name string // in the project's host-firewall directory
	Path string // on the system
	Text string
	User bool // below the operator's home, no root needed
}

// Rendered is the host firewall as files and the commands that apply them.
type Rendered struct {
	Files     []File
	Install   []string
	Uninstall []string
}

// TableName is the name of the VM's table on the host.
func (h Host) TableName() string { return "foldyard_" + identifier(h.Name) }

// Table is the text that nft loads.
func (h Host) Table() (string, error) {
	if !plain().MatchString(h.Name) {
		return "", fmt.Errorf("VM name %q: want letters, digits, dot, dash", h.Name)
	}
	slice := strings.Trim(h.Slice, "/")
	if slice == "" || strings.ContainsAny(slice, "\"\\\n{};") {
		return "", fmt.Errorf("cgroup %q: want a path below the root", h.Slice)
	}
	if h.Services.First == 0 || h.DNS < h.Services.First || h.DNS > h.Services.Last {
		return "", fmt.Errorf("services %s with DNS on %d: want a range of ports that holds it", h.Services, h.DNS)
	}
	level := strings.Count(slice, "/") + 1
	t := h.TableName()
	return fmt.Sprintf(`# foldyard's host firewall for the VM %[1]s. It is replaced whole, in one transaction.
add table inet %[2]s
delete table inet %[2]s
table inet %[2]s {
	chain output {
		type filter hook output priority filter; policy accept;
		socket cgroupv2 level %[3]d "%[4]s" goto vm
	}

	# What the VM's process sends: to our own services on loopback, and answers to what the host opened.
	chain vm {
		ct state established accept
		oifname "lo" ip daddr 127.0.0.0/8 tcp dport %[5]s accept
		oifname "lo" ip daddr 127.0.0.0/8 udp dport %[6]d accept
		limit rate 30/minute burst 30 packets log prefix "foldyard-host-deny " level info
		counter
		meta l4proto tcp reject with tcp reset
		reject with icmpx admin-prohibited
	}
}
`, h.Name, t, level, slice, h.Services, h.DNS), nil
}

// Render returns everything that the operator installs and removes.
func (h Host) Render() (Rendered, error) {
	table, err := h.Table()
	if err != nil {
		return Rendered{}, err
	}
	nftPath := "/etc/foldyard/host-firewall-" + h.Name + ".nft"
	unitFile := "foldyard-host-firewall-" + h.Name + ".service"
	user := fmt.Sprintf("user@%d.service", h.UID)
	unit := `[Unit]
Description=foldyard host firewall for the VM ` + h.Name + `
After=` + user + `
BindsTo=` + user + `

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f ` + nftPath + `
ExecStop=/usr/sbin/nft delete table inet ` + h.TableName() + `

[Install]
WantedBy=` + user + `
`
	slice := `[Unit]
Description=the processes of foldyard's VM ` + h.Name + `

[Install]
WantedBy=default.target
`
	sliceFile := SliceUnit(h.Name)
	return Rendered{
		Files: []File{
			{Name: "table.nft", Path: nftPath, Text: table},
			{Name: unitFile, Path: "/etc/systemd/system/" + unitFile, Text: unit},
			{Name: sliceFile, Path: "~/.config/systemd/user/" + sliceFile, Text: slice, User: true},
		},
		Install: []string{
			"install -D -m 0644 " + sliceFile + " ~/.config/systemd/user/" + sliceFile,
			"systemctl --user daemon-reload && systemctl --user enable --now " + sliceFile,
			"sudo install -D -m 0644 table.nft " + nftPath,
			"sudo install -D -m 0644 " + unitFile + " /etc/systemd/system/" + unitFile,
			"sudo systemctl daemon-reload",
			"sudo systemctl enable --now " + unitFile,
		},
		Uninstall: []string{
			"sudo systemctl disable --now " + unitFile,
			"sudo rm -f " + nftPath + " /etc/systemd/system/" + unitFile,
			"sudo systemctl daemon-reload",
			"systemctl --user disable " + sliceFile,
			"rm -f ~/.config/systemd/user/" + sliceFile,
		},
	}, nil
}

// SliceUnit is the user unit that the VM called name runs under. A dash in a
// slice's name would make it a child of another.
func SliceUnit(name string) string { return "foldyard_" + identifier(name) + ".slice" }
