package proof

// Residual is something that still gets out, or that a wall does not hold
// against, although all is set up. docs/residuals.md says more of each.
type Residual struct {
	ID      string
	Backend string // "" is all
	Text    string
}

// Residuals returns what `fy verify` prints for a backend.
func Residuals(backend string) []string {
	var out []string
	for _, r := range AllResiduals() {
		if r.Backend == "" || r.Backend == backend {
			out = append(out, r.Text)
		}
	}
	return out
}

// AllResiduals returns the whole list, in the order of the document.
func AllResiduals() []Residual {
	return []Residual{
		{"granted-hosts", "", "A granted host receives whatever the box sends it, and can pass it on."},
		{"passthrough", "", "Inside a passthrough tunnel only the name is judged: fronting and ECH cannot be seen."},
		{"repo", "", "The box can change the repo. What host tools execute from it is read-only or listed, other code there is yours to review before you run it."},
		{"credential-echo", "", "A granted host that echoes can hand a credential over: masking finds whole values in common forms only."},
		{"credential-use", "", "A box holds no credential of an [[inject]] rule, but what it asks of the rule's hosts is done with it."},
		{"box-login", "", "A login done inside the box is a real credential in the box, and stays in the kept home."},
		{"one-project", "", "Boxes of one project share its repo and are one trust domain."},
		{"side-channels", "", "Timing, load and the fact that a request was made can be observed by others on this computer and by granted hosts."},
		{"upstream-proxy", "", "Behind an upstream proxy names are resolved there: address classes and rebinding are that proxy's to judge."},
		{"kernel", "namespace", "The box shares the host's kernel: a kernel exploit is not held."},
		{"cpu-memory", "namespace", "Processes, files and connections are bounded, CPU time and memory only as far as the host bounds its user."},
		{"late-sockets", "namespace", "A unix socket or FIFO that a host process makes in the repo after the box started can be reached from the box."},
		{"vm-root", "lima", "The VM firewall does not hold against root in the VM, which reaches every port of the host's loopback."},
		{"vm-word", "lima", "What only the guest can tell of itself is its own word."},
		{"vm-engine", "lima", "With [box] engine = true the box holds all that the VM's user holds: it can start containers with any mount of that user's."},
		{"vm-late-paths", "lima", "Files that host tools execute are read-only in the box where they existed when it started, and those that git obeys always."},
	}
}
