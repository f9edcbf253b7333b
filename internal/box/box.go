// Package box holds what a box finds inside: its environment, its files below
// /etc, the trust stores that make it accept our certificates, and the question
// whether this process runs in one. It renders contents from values given to
// it; it may not start a box, mount, or read the operator's files.
package box

import (
	"os"
)

// Paths inside every box.
const (
	Dir        = "/etc/foldyard"
	MarkerPath = Dir + "/box"
	CAPath     = Dir + "/ca.pem"     // our CA alone
	ExtraPath  = Dir + "/extra.pem"  // ours and the operator's own, for clients that add to roots built into them
	BundlePath = Dir + "/bundle.pem" // the system's roots, the operator's own and ours
	JavaPath   = Dir + "/trust.jks"  // the same as a Java trust store
)

// ProxyURL is where a box of the namespace backend finds the proxy by hand.
const ProxyURL = "http://127.0.0.1:3128"

// Inside reports whether this process runs in a box. Either sign is enough:
// the file, which a box cannot remove, or the variable, which is all that an
// image built by someone else may have.
func Inside() bool {
	return inside(os.Getenv, func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	})
}

func inside(getenv func(string) string, exists func(string) bool) bool {
	return getenv("IN_DEVBOX") == "1" || exists(MarkerPath)
}
