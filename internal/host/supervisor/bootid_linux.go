package supervisor

import "os"

// bootID names this boot of the host, "" where that cannot be told.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(b[:min(len(b), 36)])
}
