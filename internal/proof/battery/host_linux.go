package battery

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"foldyard/internal/proof/probe"
)

// boxView is what the host's /proc says of a box's processes.
type boxView struct {
	trouble    string   // why it cannot be told
	pidNS      string   // link of the box's pid namespace
	netNS      string   //
	sharesPID  bool     // with the host
	sharesNet  bool     // with the host
	strangers  []string // processes of the box in a network that is not the box's
	processes  int
	mapsRoot   bool // the host's uid 0 is mapped
	mapTrouble string
}

func hostFile(id, path string) probe.HostFile {
	h := probe.HostFile{ID: id, Path: path}
	if info, err := os.Stat(path); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			h.Dev, h.Ino = st.Dev, st.Ino
		}
	}
	return h
}

func nsLink(pid int, kind string) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
}

// look reads what the host sees of the box whose first process is agent.
func look(agent int) boxView {
	if agent <= 0 {
		return boxView{trouble: "the box's first process is not known"}
	}
	var v boxView
	var errs [4]error
	var ownPID, ownNet string
	v.pidNS, errs[0] = nsLink(agent, "pid")
	v.netNS, errs[1] = nsLink(agent, "net")
	ownPID, errs[2] = nsLink(os.Getpid(), "pid")
	ownNet, errs[3] = nsLink(os.Getpid(), "net")
	if err := errors.Join(errs[:]...); err != nil {
		return boxView{trouble: "the box's namespaces cannot be read: " + err.Error()}
	}
	v.sharesPID, v.sharesNet = v.pidNS == ownPID, v.netNS == ownNet
	v.mapsRoot, v.mapTrouble = mapsRoot(agent)

	entries, err := os.ReadDir("/proc")
	if err != nil {
		v.trouble = "the host's processes cannot be listed: " + err.Error()
		return v
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ns, err := nsLink(pid, "pid"); err != nil || ns != v.pidNS {
			continue
		}
		v.processes++
		switch ns, err := nsLink(pid, "net"); {
		case errors.Is(err, fs.ErrNotExist): // it has ended
		case err != nil:
			v.strangers = append(v.strangers, fmt.Sprintf("%d (not readable)", pid))
		case ns != v.netNS:
			v.strangers = append(v.strangers, strconv.Itoa(pid))
		}
	}
	return v
}

// mapsRoot reports whether a process's user namespace holds our uid 0.
func mapsRoot(pid int) (bool, string) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return false, err.Error()
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	n := 0
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return false, fmt.Sprintf("uid map has a line %q", lines.Text())
		}
		n++
		if fields[1] == "0" && fields[2] != "0" {
			return true, ""
		}
	}
	if n == 0 {
		return false, "the uid map is empty"
	}
	return false, ""
}

// holds reports whether a process is the box's; gone, that it is no more.
func (v boxView) holds(pid int) (ours, gone bool) {
	ns, err := nsLink(pid, "pid")
	if err != nil {
		return false, errors.Is(err, fs.ErrNotExist)
	}
	return v.pidNS != "" && ns == v.pidNS, false
}

// hostProcesses returns processes of the host that no box may see: this one,
// those above it, and the keeper.
func hostProcesses(keeper int) []probe.HostProcess {
	var out []probe.HostProcess
	for _, pid := range slices.Compact([]int{os.Getpid(), os.Getppid(), keeper, 1}) {
		if pid <= 0 {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		start, err := probe.ParseStart(string(stat))
		if err != nil {
			continue
		}
		out = append(out, probe.HostProcess{PID: pid, Start: start})
	}
	return out
}
