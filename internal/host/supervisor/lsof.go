package supervisor

import (
	"strconv"
	"strings"
)

// lsofName is the first process of what lsof -Fpc prints: a line "p" with its id, and one "c" with its name.
func lsofName(out string) string {
	pid, name := "", ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "p") && pid == "":
			pid = line[1:]
		case strings.HasPrefix(line, "c") && name == "":
			name = line[1:]
		}
	}
	if _, err := strconv.ParseUint(pid, 10, 32); err != nil {
		return ""
	}
	return strconv.QuoteToASCII(name) + ", process " + pid
}
