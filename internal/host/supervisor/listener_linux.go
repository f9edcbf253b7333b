package supervisor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listener names the process that listens on a TCP port of this computer, "" if it cannot be told.
func listener(port uint16) string {
	inode := ""
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		for sc := bufio.NewScanner(f); sc.Scan() && inode == ""; {
			col := strings.Fields(sc.Text())
			if len(col) > 9 && col[3] == "0A" && strings.HasSuffix(col[1], fmt.Sprintf(":%04X", port)) {
				inode = col[9]
			}
		}
		_ = f.Close()
	}
	if inode == "" {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is ours
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != "socket:["+inode+"]" {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return "process " + pid
		}
		return strconv.QuoteToASCII(strings.TrimSpace(string(name))) + ", process " + pid
	}
	return "another user's process"
}
