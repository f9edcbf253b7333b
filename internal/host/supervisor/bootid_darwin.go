package supervisor

import "golang.org/x/sys/unix"

// bootID names this boot of the host, "" where that cannot be told.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id[:min(len(id), 36)]
}
