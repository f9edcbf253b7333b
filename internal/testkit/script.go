package testkit

import (
	"os"
	"syscall"
	"testing"
)

// WriteExecutable writes a program that a test will start. No process is forked
// meanwhile: a child that holds the file open for writing until it execs would
// make a start fail with "text file busy".
func WriteExecutable(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(text), 0o755) //nolint:gosec // it is to be executed
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
