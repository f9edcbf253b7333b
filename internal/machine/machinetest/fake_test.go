package machinetest

import (
	"testing"
	"time"

	"foldyard/internal/machine"
)

func TestFake(t *testing.T) {
	f := &Fake{}
	spec := machine.Spec{CPUs: 1, Memory: 1 << 30, Disk: 4 << 30, Repo: "/repo", UID: 1000, Band: 41000, Services: 100, DNS: 41001, SSH: 41190}
	changed := spec
	changed.Firewall = true
	Run(t, Suite{Machine: f, Spec: spec, Changed: changed, Start: time.Minute, Crash: func(*testing.T) { f.Crash() }})
}
