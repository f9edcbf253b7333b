package supervisor

import (
	"context"
	"os/exec"
	"strconv"
	"time"
)

// listener names the process that listens on a TCP port of this computer, "" if it cannot be told, which is so of other users'.
func listener(port uint16) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/usr/sbin/lsof", "-nP", "-iTCP:"+strconv.Itoa(int(port)), "-sTCP:LISTEN", "-Fpc").Output()
	if err != nil {
		return "" // also where it found none
	}
	return lsofName(string(out))
}
