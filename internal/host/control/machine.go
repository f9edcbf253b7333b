package control

import "context"

// What a MachineRequest may ask for. The zero Op only looks.
const (
	MachineStop         = "stop"
	MachineRemove       = "remove"
	MachineShell        = "shell"
	MachineHostFirewall = "host-firewall"
)

// MachineRequest asks something of the project's virtual machine.
type MachineRequest struct {
	Op string `json:"op,omitempty"`
}

// Machine is the project's virtual machine.
type Machine struct {
	Backend   string        `json:"backend"`
	State     string        `json:"state"` // absent, stopped, starting, running, broken, foreign
	Why       string        `json:"why,omitempty"`
	Step      string        `json:"step,omitempty"`   // what a starting one is waited for
	Walled    string        `json:"walled,omitempty"` // the user ids that its firewall holds, by its own word
	Argv      []string      `json:"argv,omitempty"`   // command line of a shell in it
	Dir       string        `json:"dir,omitempty"`    // where Files were written
	Files     []MachineFile `json:"files,omitempty"`
	Install   []string      `json:"install,omitempty"`
	Uninstall []string      `json:"uninstall,omitempty"`
}

// MachineFile is a rendered file and where the operator installs it.
type MachineFile struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Text string `json:"text"`
}

// Machine asks something of the project's virtual machine.
func (c *Client) Machine(ctx context.Context, q MachineRequest) (Machine, error) {
	return call[Machine](ctx, c, "POST", "machine", q)
}
