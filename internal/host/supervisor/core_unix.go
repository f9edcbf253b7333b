//go:build unix

package supervisor

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// noCore keeps this process, which holds secrets, from being dumped. A limit of one byte, not none: programs that take cores
// over a pipe look at no other limit (core(5)).
func noCore(log *slog.Logger) {
	var lim unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &lim)
	if err == nil {
		lim.Cur = min(1, lim.Max)
		err = unix.Setrlimit(unix.RLIMIT_CORE, &lim)
	}
	if err != nil {
		log.Warn("core dumps are not off", slog.String("error", err.Error()))
	}
}
