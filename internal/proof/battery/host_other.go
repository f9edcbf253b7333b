//go:build !linux

package battery

import "foldyard/internal/proof/probe"

type boxView struct {
	trouble    string
	sharesPID  bool
	sharesNet  bool
	strangers  []string
	processes  int
	mapsRoot   bool
	mapTrouble string
}

func hostFile(id, path string) probe.HostFile { return probe.HostFile{ID: id, Path: path} }

func look(int) boxView { return boxView{trouble: "the namespace backend needs Linux"} }

func (boxView) holds(int) (ours, gone bool) { return false, false }

func hostProcesses(int) []probe.HostProcess { return nil }
