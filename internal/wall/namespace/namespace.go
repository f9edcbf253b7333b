// Package namespace is the wall of the namespace backend: it makes a box of Linux namespaces whose network has only loopback, so that
// every socket the box opens ends in a listener of ours or is refused. It works without root, in two stages (DESIGN.md, section 6).
//
// The keeper makes the outer user namespace with the mount, network, ipc, uts and cgroup namespaces, builds the root, sets the rules
// and opens the listeners. The box is a child user and mount namespace of that, in a pid namespace of its own: its mounts are locked,
// and not even its root has power over the network namespace.
//
// This package may not decide what is allowed, dial out, or read the project's configuration: it is given a Spec and builds that.
package namespace

import (
	"errors"
	"net/netip"
	"time"
)

// ErrUnsupported is what every entry point returns where the kernel is not Linux.
var ErrUnsupported = errors.New("the namespace backend needs Linux; use backend = \"lima\" here")

// Spec says what to build. It holds no secret but the nonce, and nothing that the box may choose.
type Spec struct {
	ID      string `json:"id"`
	Nonce   string `json:"nonce"` // whoever shows it may adopt, run commands and stop the box
	Project string `json:"project"`

	Repo         string   `json:"repo"` // absolute, canonical, outside every other mount's target
	RepoReadOnly bool     `json:"repo_ro"`
	Writable     []string `json:"writable"` // entries of Protected that the operator opened, as given there

	Home   string `json:"home"`   // the kept home on the host; "" for one in memory that ends with the box
	Caches []Bind `json:"caches"` // writable
	Mounts []Bind `json:"mounts"`

	User   User `json:"user"`
	Root   bool `json:"root"`   // uid 0 of the box's own user namespace
	Nested bool `json:"nested"` // may make namespaces of its own
	// LaunchWithin ends a box in which no command is launched for so long: whoever made it may have died. 0 waits for ever.
	LaunchWithin time.Duration `json:"launch_within"`
	// Ports listens on a fixed list of ports, as where the kernel has no nf_tables.
	Ports bool              `json:"ports"`
	Files map[string][]byte `json:"-"` // path in the box → contents; read-only. They travel in memory of their own, see order
	// Sockets lists sockets and FIFOs that lie in the repo: they are covered, so that nobody outside is talked to through them.
	Sockets []string `json:"sockets"`
}

// Bind mounts a directory or file of the host at a path in the box.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Write  bool   `json:"write"`
}

// User is who the box's commands run as.
type User struct {
	Name  string `json:"name"`
	UID   int    `json:"uid"` // on the host, never 0
	GID   int    `json:"gid"` // on the host, never 0
	Home  string `json:"home"`
	Shell string `json:"shell"`
}

// Ports the keeper listens on inside the box's network namespace. They are fixed: nobody else is there before it.
const (
	PortProxy    = 3128 // CONNECT, absolute-form, SOCKS5
	PortRedirect = 3129 // where redirected TCP ends
	PortDNS      = 3153 // where redirected DNS ends
)

// Refusal is traffic that the rules refused, since the last report.
type Refusal struct {
	Proto string     `json:"proto"` // tcp, udp, icmp
	Addr  netip.Addr `json:"addr"`
	Port  uint16     `json:"port"` // 0 where there is none
	Count uint64     `json:"count"`
}

// Process is who in a box owns a socket, by the box's own word.
type Process struct {
	Pid int    `json:"pid"` // in the box's pid namespace
	Exe string `json:"exe"`
	Cmd string `json:"cmd"` // at most 512 bytes
}

// Facts is what the host sees of a box: what evidence is bound to and corroborated with.
type Facts struct {
	Box       string   `json:"box"`
	Pid       int      `json:"pid"`     // of the agent, on the host
	Keeper    int      `json:"keeper"`  // of the keeper, on the host
	Devices   []string `json:"devices"` // network devices that are up, or that could be brought up
	Digest    string   `json:"digest"`  // of the construction: kinds of namespaces, rules, mounts, filter, program; the same for a twin
	Rules     string   `json:"rules"`   // nftables | ports: how sockets reach us
	Nested    bool     `json:"nested,omitempty"`
	Strangers []int    `json:"strangers,omitempty"`
	Covered   []string `json:"covered,omitempty"` // sockets and FIFOs in the repo that were over-mounted
	Linked    []string `json:"linked,omitempty"`  // entries of Protected that a link kept from being made read-only
}

// Finding is one thing that this computer can or cannot do for the backend.
type Finding struct {
	Name   string `json:"name"`
	State  string `json:"state"` // ok, warn, fail
	Detail string `json:"detail"`
	Fix    string `json:"fix"`
}

// Protected lists what the host's own tools would execute: these are read-only in a box where they exist. Entries below .git are
// made if .git exists, so that a box cannot make them either.
func Protected() []string {
	return []string{".git/config", ".git/hooks", ".git/info", ".envrc", ".vscode", ".idea", ".husky"}
}
