//go:build !linux

package agent

// Main is for Linux only: elsewhere a box is a VM's, and so is its agent.
func Main() int { return 125 }
