//go:build fybox

package main

import _ "embed" // for boxProgram

// boxProgram is cmd/fy-box, built just before: make build.
//
//go:embed fy-box
var boxProgram []byte
