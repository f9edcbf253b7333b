package lima

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"foldyard/internal/machine"
	"foldyard/internal/testkit"
)

// lab is a computer with a limactl, an ssh and a QEMU that are scripts. Its machines run as two processes, and what is run in one runs
// here, with the guest's own files below the instance's directory. Files in dir say how it is to misbehave.
type lab struct {
	t   *testing.T
	dir string // of the knobs
	d   *Driver
}

// Knobs: a file of this name in the lab's directory.
const (
	knobCreate   = "create-fails"    // limactl create fails; the file holds its words
	knobStart    = "start-fails"     // likewise, start
	knobQEMU     = "emulator-ends"   // QEMU ends at once; the file holds its words
	knobBoot     = "boot-stops"      // the boot script stops; the file holds its log
	knobClock    = "clock-off"       // seconds that the guest is ahead
	knobDisk     = "disk-left"       // KiB that are left on the guest's disk
	knobTable    = "table-changed"   // the guest's table is another one
	knobUnit     = "unit-inactive"   // and its unit not active
	knobHang     = "start-hangs"     // limactl start does not come back
	knobNoConn   = "no-connection"   // ssh cannot connect
	knobSlowInfo = "says-broken"     // limactl says broken of what runs
	knobCrash    = "create-crashes"  // limactl dies half way through create
	knobNoList   = "list-fails"      // limactl list fails
	knobNoStop   = "stop-hangs"      // limactl stop does not come back
	knobFull     = "guest-disk-full" // the boot script finds the guest's disk full
)

func newLab(t *testing.T) *lab {
	t.Helper()
	// Short, for ssh's sockets would lie below it.
	dir, err := os.MkdirTemp("/tmp", "fylima")
	if err != nil {
		t.Fatal(err)
	}
	for tool, text := range map[string]string{"limactl": fakeLimactl, "ssh": fakeSSH, "qemu-system-x86_64": "", "qemu-img": ""} {
		text = "#!/bin/sh\nlab=" + dir + "\n" + fakeBoth + text
		testkit.WriteExecutable(t, filepath.Join(dir, tool), text)
	}
	l := &lab{t: t, dir: dir}
	l.d, err = New(t.Context(), options(dir+":/usr/bin:/bin", filepath.Join(dir, "home")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range l.pids() {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		_ = os.RemoveAll(dir)
	})
	return l
}

func (l *lab) turn(knob, text string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, knob), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) turnBack(knob string) { _ = os.Remove(filepath.Join(l.dir, knob)) }

// calls are limactl's command lines so far, without version and list.
func (l *lab) calls() string {
	b, _ := os.ReadFile(filepath.Join(l.dir, "calls"))
	return string(b)
}

// pids are the processes of the machine that live.
func (l *lab) pids() []int {
	var out []int
	all, _ := os.ReadFile(filepath.Join(l.dir, "processes"))
	for _, f := range strings.Fields(string(all)) {
		if pid, err := strconv.Atoi(f); err == nil && alive(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// alive tells a process from one that ended and that nobody waited for.
func alive(pid int) bool {
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, rest, _ := strings.Cut(string(b), ") ")
		return !strings.HasPrefix(rest, "Z")
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(out) > 0 && !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

// fake is the machine as the scripts keep it.
type fake struct{ dir string }

func (f fake) pid(name string) int {
	b, _ := os.ReadFile(filepath.Join(f.dir, name+".pid"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || !alive(pid) {
		return 0
	}
	return pid
}

func (f fake) guest(path string) string { return filepath.Join(f.dir, "guest", path) }

const fakeBoth = `
knob() { [ -e "$lab/$1" ]; }
alive() { # a process that ended and that nobody waited for does not count
	p=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
	if [ -d /proc/self ]; then
		read -r stat 2>/dev/null <"/proc/$p/stat" || return 1
		case ${stat##*) } in Z*) return 1 ;; esac
	else
		kill -0 "$p" 2>/dev/null
	fi
}
`

// fakeLimactl boots: the script's own digest goes into the report, as the script would write it.
const fakeLimactl = `
fatal() { printf '{"level":"fatal","msg":"%s"}\n' "$1" >&2; exit 1; }
case " $* " in *" --version "*) echo limactl version 2.2.0; exit 0 ;; esac
while case $1 in --*) true ;; *) false ;; esac; do shift; done
verb=$1
for name in "$@"; do :; done
if [ "$verb" = create ]; then name=${2#--name=}; config=$3; fi
dir=$LIMA_HOME/$name
[ "$verb" = list ] || echo "$*" >>"$lab/calls"
end() {
	for what in qemu ha; do
		if alive $what; then kill -9 "$p"; while alive $what; do :; done; fi
		rm -f "$dir/$what.pid"
	done
}
spawn() { # its command line names the instance's directory, as QEMU's does
	tail -f /dev/null "$dir/$1.pid" >/dev/null 2>&1 </dev/null &
	echo $! >"$dir/$1.pid"
	echo $! >>"$lab/processes"
}
case $verb in
list)
	if knob list-fails; then fatal 'no list today'; fi
	qemu=0 ha=0 status=Stopped
	if alive qemu; then qemu=$p; fi
	if alive ha; then ha=$p; fi
	case $((qemu > 0))$((ha > 0)) in
	11) status=Running; if knob says-broken; then status=Broken; fi ;;
	10 | 01) status=Broken ;;
	esac
	echo "{\"name\":\"$name\",\"status\":\"$status\",\"hostAgentPID\":$ha,\"driverPID\":$qemu,\"errors\":[]}"
	;;
create)
	mkdir -p "$dir"
	if knob create-crashes; then kill -9 $$; fi
	cp "$config" "$dir/lima.yaml"
	if knob create-fails; then fatal "$(cat "$lab/create-fails")"; fi
	;;
start)
	echo '{"level":"info","msg":"Starting"}' >&2
	if knob start-fails; then fatal "$(cat "$lab/start-fails")"; fi
	if knob emulator-ends; then
		printf '%s\n' '{"level":"debug","msg":"Creating iso file"}' '{"level":"debug","msg":"qemu[stderr]: '"$(cat "$lab/emulator-ends")"'"}' \
			'{"level":"info","msg":"QEMU has already exited"}' >"$dir/ha.stderr.log"
		fatal "exiting, status={Running:false}"
	fi
	: >"$dir/disk"
	: >"$dir/ssh.config"
	spawn qemu
	spawn ha
	if knob start-hangs; then exec sleep 600; fi
	g=$dir/guest
	rm -rf "$g/run"
	mkdir -p "$g/run/foldyard" "$g/etc/foldyard"
	if knob boot-stops; then cp "$lab/boot-stops" "$g/run/foldyard/boot.log"; exit 0; fi
	if knob guest-disk-full; then
		printf '== journal\ncat: write error: No space left on device\nstopped at: journal (exit 1)\n' >"$g/run/foldyard/boot.log"
		exit 0
	fi
	digest=$(sed -n "s/.*echo 'digest \([0-9a-f]*\)'.*/\1/p" "$dir/lima.yaml")
	firewall=$(sed -n "s/.*echo 'firewall \([a-z]*\)'.*/\1/p" "$dir/lima.yaml")
	[ -n "$digest" ] && [ -n "$firewall" ] || fatal 'no boot script in the configuration'
	walled='1000, 1000-4294967294, 524288-589823'
	if [ "$firewall" = on ]; then
		sed -n "/template.nft <<'FY_END'/,/^    FY_END/p" "$dir/lima.yaml" | sed '1d;$d' | sed "s/^    //;s/@WALLED@/$walled/" >"$g/etc/foldyard/firewall.nft"
		if knob table-changed; then sed -i 's/goto refuse/accept/' "$g/etc/foldyard/firewall.nft"; fi
	fi
	printf x >>"$lab/boots"
	printf 'foldyard boot report 1\ndigest %s\nfirewall %s\nwalled %s\nboot boot-%s\n' "$digest" "$firewall" "$walled" "$(wc -c <"$lab/boots")" >"$g/run/foldyard/report"
	;;
stop)
	if knob stop-hangs; then exec sleep 600; fi
	case $2 in --force) ;; *) alive ha || fatal 'expected status Running, got Broken' ;; esac
	end
	;;
delete) end; rm -rf "$dir" ;;
*) fatal "unknown command $verb" ;;
esac
`

// fakeSSH runs a command on this computer.
const fakeSSH = `
while [ "$1" != -- ]; do
	if [ "$1" = -F ]; then dir=$(dirname "$2"); fi
	shift
done
shift
if knob no-connection || ! alive qemu; then echo 'ssh: connect to host 127.0.0.1: Connection refused' >&2; exit 255; fi
unit=active left=10000000 ahead=0
if knob unit-inactive; then unit=failed; fi
if knob disk-left; then left=$(cat "$lab/disk-left"); fi
if knob clock-off; then ahead=$(cat "$lab/clock-off"); fi
text=$(printf '%s\n' "$*" | sed -e "s#/run/foldyard#$dir/guest/run/foldyard#g; s#/etc/foldyard#$dir/guest/etc/foldyard#g" \
	-e "s/systemctl is-active/echo $unit #/; s/date -u +%s/echo $(($(date +%s) + ahead))/; s|df -Pk /|echo /dev/vda1 0 0 $left 0 / #|")
exec /bin/sh -c "$text"
`

// up brings the machine up, or says how that failed.
func (l *lab) up(spec machine.Spec) (machine.Report, []string, error) {
	var said []string
	r, err := l.d.Up(l.t.Context(), spec, func(line string) { said = append(said, line) })
	return r, said, err
}
