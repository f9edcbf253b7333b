//go:build !fybox

package main

// boxProgram is nil: keepers and agents are started from fy itself. make build embeds a smaller program, which starts faster.
var boxProgram []byte
