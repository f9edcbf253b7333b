package lima

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"foldyard/internal/machine/machinetest"
)

// realCA is a certificate whose key nobody has.
const realCA = `-----BEGIN CERTIFICATE-----
MIIBizCCATGgAwIBAgIBATAKBggqhkjOPQQDAjAsMSowKAYDVQQDEyFmb2xkeWFy
ZCB0ZXN0IENBLCBrZXkgdGhyb3duIGF3YXkwIBcNMjMxMTE0MjIxMzIwWhgPMjA5
NjEwMDIwNzA2NDBaMCwxKjAoBgNVBAMTIWZvbGR5YXJkIHRlc3QgQ0EsIGtleSB0
aHJvd24gYXdheTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBVLDX+Fy5qbtgfB
o4c6VEBwEwnLz0BF71sIOrwJn7ddf//d0o6EAUfatSHSUKgh6FU6lwZmxyuFO6lb
qJjx3EOjQjBAMA4GA1UdDwEB/wQEAwICBDAPBgNVHRMBAf8EBTADAQH/MB0GA1Ud
DgQWBBQt7o+U3+/r6pBqtfoJYrWVQFzzJTAKBggqhkjOPQQDAgNIADBFAiAZ0c2r
fWzCG3a1DO0IEvQ+AeIE3QhG6DbfPNvuvvOALAIhAKcRH3T09SvpHax2OQXWcFq0
LjHCZJi5wu/ble5ZMCXk
-----END CERTIFICATE-----
`

func TestRealMachine(t *testing.T) {
	d, spec := newReal(t)
	if err := d.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	changed := spec
	changed.Band, changed.DNS, changed.SSH = 41200, 41201, 41390
	machinetest.Run(t, machinetest.Suite{
		Machine: d, Spec: spec, Changed: changed, Start: 15 * time.Minute,
		Crash: func(t *testing.T) { kill(t, d) },
	})
}

// kill ends QEMU and limactl's host agent at once.
func kill(t *testing.T, d *Driver) {
	t.Helper()
	l, err := d.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{l.DriverPID, l.HostAgentPID} {
		if pid > 1 {
			if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "kill", "-9", strconv.Itoa(pid)).CombinedOutput(); err != nil {
				t.Logf("kill %d: %s", pid, strings.TrimSpace(string(out)))
			}
		}
	}
}
