//go:build fyguest

package main

import _ "embed" // for guestProgram

// guestProgram is cmd/fy-guest for Linux, built just before: make build.
//
//go:embed fy-guest
var guestProgram []byte
