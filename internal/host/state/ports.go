package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// Bands of ports. A project that needs ports on the host owns one band for
// ever: what is configured with its numbers (a VM's firewall, the host's) stays
// true.
const (
	BandSize  = 200
	FirstBand = 21000    // where the first begins
	LastBand  = 28800    // and the last: below those that Linux and macOS take for connections that go out
	lastKept  = 48800    // the last that an earlier fy gave: it stays its project's
	maxPorts  = 64 << 10 // bytes of ports.json
)

// Offsets in a band. The first half is what a VM may reach; the other half is
// the host's own.
const (
	PortProxy    = 0   // the long-lived box's way out
	PortDNS      = 1   // names, UDP and TCP
	PortEngine   = 2   // the way out of the VM's container engine
	PortMinters  = 3   // to 9
	PortOneshots = 10  // to 99: boxes of fy run
	PortServices = 100 // how many of them a VM may reach
	PortSSH      = 190 // the VM's ssh, on loopback
)

// ErrNoBand is returned when every band has an owner.
var ErrNoBand = errors.New("every band of ports belongs to a project: fy uninstall, or remove projects that are gone")

type portsFile struct {
	Version int               `json:"version"`
	Bands   map[string]uint16 `json:"bands"` // first port, by project
}

// Band returns the first port of the project's band, and gives it one when it
// has none. It is the same at every call. A damaged ports.json is refused by
// name and left as it is.
func (l Layout) Band(ctx context.Context, project string) (uint16, error) {
	if err := CheckName(project); err != nil {
		return 0, err
	}
	if err := EnsureDir(l.StateDir); err != nil {
		return 0, err
	}
	lock, err := AcquireLock(ctx, l.PortsFile()+".lock")
	if err != nil {
		return 0, err
	}
	defer lock.Unlock()
	f, err := l.readPorts()
	if err != nil {
		return 0, err
	}
	if base, ok := f.Bands[project]; ok {
		return base, nil
	}
	taken := slices.Collect(maps.Values(f.Bands))
	for base := FirstBand; base <= LastBand; base += BandSize {
		if slices.Contains(taken, uint16(base)) {
			continue
		}
		f.Bands[project] = uint16(base)
		data, err := json.MarshalIndent(f, "", "  ")
		if err != nil {
			return 0, err
		}
		return uint16(base), WriteAtomic(l.PortsFile(), append(data, '\n'), 0o600)
	}
	return 0, ErrNoBand
}

// FreeBand gives the project's band up.
func (l Layout) FreeBand(ctx context.Context, project string) error {
	lock, err := AcquireLock(ctx, l.PortsFile()+".lock")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	f, err := l.readPorts()
	if err != nil || f.Bands[project] == 0 {
		return err
	}
	delete(f.Bands, project)
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return WriteAtomic(l.PortsFile(), append(data, '\n'), 0o600)
}

func (l Layout) readPorts() (portsFile, error) {
	f := portsFile{Version: 1, Bands: map[string]uint16{}}
	data, err := ReadFile(l.PortsFile(), maxPorts)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	damaged := func(why string) (portsFile, error) {
		return portsFile{}, &DamagedError{Path: l.PortsFile(), Err: errors.New(why)}
	}
	f = portsFile{}
	if err := json.Unmarshal(data, &f); err != nil {
		return damaged(err.Error())
	}
	if f.Version != 1 || f.Bands == nil {
		return damaged(fmt.Sprintf("version %d", f.Version))
	}
	owner := map[uint16]string{}
	for _, name := range slices.Sorted(maps.Keys(f.Bands)) {
		base := f.Bands[name]
		switch {
		case CheckName(name) != nil:
			return damaged("a name that is no project's")
		case base < FirstBand || base > lastKept || (base-FirstBand)%BandSize != 0:
			return damaged(fmt.Sprintf("%s has port %d, which begins no band", name, base))
		case owner[base] != "":
			return damaged(fmt.Sprintf("%s and %s share a band", owner[base], name))
		}
		owner[base] = name
	}
	return f, nil
}
