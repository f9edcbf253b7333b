//go:build !fyguest

package main

// guestProgram is nil: a virtual machine gets fy itself, where that is a program for Linux. make build embeds a smaller one.
var guestProgram []byte
