package state

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

func portsLayout(t *testing.T) Layout {
	t.Helper()
	dir := t.TempDir() + "/h"
	return Layout{ConfigDir: dir, StateDir: dir, CacheDir: dir + "/cache", RuntimeDir: dir, FromHome: true}
}

func TestBandsAreStickyAndNobodysTwice(t *testing.T) {
	l := portsLayout(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]uint16{}
	for i := range 24 {
		wg.Go(func() {
			name := fmt.Sprintf("p%d", i%12)
			base, err := l.Band(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if was := got[name]; was != 0 && was != base {
				t.Errorf("%s has %d, and had %d", name, base, was)
			}
			got[name] = base
		})
	}
	wg.Wait()
	owner := map[uint16]string{}
	for name, base := range got {
		if owner[base] != "" {
			t.Errorf("%s and %s share %d", owner[base], name, base)
		}
		owner[base] = name
	}
	if err := l.FreeBand(t.Context(), "p3"); err != nil {
		t.Fatal(err)
	}
	if base, err := l.Band(t.Context(), "another"); err != nil || base != got["p3"] {
		t.Errorf("the freed band went to nobody: %d, %v", base, err)
	}
}

func TestBandsEnd(t *testing.T) {
	l := portsLayout(t)
	for i := range (LastBand-FirstBand)/BandSize + 1 {
		if _, err := l.Band(t.Context(), fmt.Sprintf("p%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Band(t.Context(), "one-more"); !errors.Is(err, ErrNoBand) {
		t.Errorf("one more: %v, want ErrNoBand", err)
	}
	if _, err := l.Band(t.Context(), "p0"); err != nil {
		t.Errorf("control: %v", err)
	}
}

// No port of a band is one that Linux, or macOS, takes by itself. A project keeps the band that an earlier fy gave it.
func TestBandsAreNotForConnectionsThatGoOut(t *testing.T) {
	if last := LastBand + BandSize - 1; last >= 32768 {
		t.Errorf("the last band ends at %d", last)
	}
	l := portsLayout(t)
	if err := EnsureDir(l.StateDir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.PortsFile(), []byte(`{"version":1,"bands":{"old":41000}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if base, err := l.Band(t.Context(), "old"); err != nil || base != 41000 {
		t.Errorf("the old project has %d, %v", base, err)
	}
	if base, err := l.Band(t.Context(), "new"); err != nil || base != FirstBand {
		t.Errorf("the new project has %d, %v", base, err)
	}
}

func TestDamagedPortsAreRefusedAndKept(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "x", "another version": `{"version":2,"bands":{}}`, "no bands": `{"version":1}`,
		"a shared band":       `{"version":1,"bands":{"a":21000,"b":21000}}`,
		"a port of no band":   `{"version":1,"bands":{"a":21001}}`,
		"a port of the world": `{"version":1,"bands":{"a":22}}`,
		"a name that is path": `{"version":1,"bands":{"../a":21000}}`,
	} {
		l := portsLayout(t)
		if err := EnsureDir(l.StateDir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.PortsFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var damaged *DamagedError
		if _, err := l.Band(t.Context(), "a"); !errors.As(err, &damaged) {
			t.Errorf("%s: %v, want a *DamagedError", name, err)
		}
		if b, err := os.ReadFile(l.PortsFile()); err != nil || string(b) != text {
			t.Errorf("%s: it was overwritten with %q", name, b)
		}
	}
}
