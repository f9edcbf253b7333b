#!/bin/bash
# steps.sh: what is tried on a real machine. Run by ../vm.sh as an ordinary user in the lab, with FY, FY2, DIR, SEEN, IMAGE and
# HERE set. FY2 is an fy whose boot script differs. It writes what it saw to DIR/report.
set -uo pipefail
export FOLDYARD_HOME=$DIR/h FY_PROBE_ADDRS=1.1.1.1,2606:4700:4700::1111
mkdir -p "$DIR/app/src" "$FOLDYARD_HOME"
chmod 700 "$FOLDYARD_HOME"
cd "$DIR/app" || exit 1
failed=0 passed=0 began=$SECONDS
: > "$DIR/report"
say() { echo "$*" | tee -a "$DIR/report"; }
want() { # want NAME PATTERN STATUS CMD…: its output matches, and so does its status
  local name=$1 pattern=$2 status=$3 out code start=$SECONDS
  shift 3
  out=$(timeout 900 "$@" 2>&1 < /dev/null)
  code=$?
  if [ "$code" = "$status" ] && grep -qE -- "$pattern" <<< "$out"; then
    say "$(printf 'ok    %4ds  %s' $((SECONDS - start)) "$name")"
    passed=$((passed + 1))
  else
    say "$(printf 'FAIL  %4ds  %s' $((SECONDS - start)) "$name")"
    printf '        status %s, want %s and /%s/\n%s\n' "$code" "$status" "$pattern" "$(tail -n 30 <<< "$out" | sed 's/^/        /')"
    failed=$((failed + 1))
  fi
}
part() {
  say ""
  say "== $1 (after $((SECONDS - began)) s)"
}
config() { # config FIREWALL: adopts a configuration
  cat > foldyard.toml << T
[project]
name = "vm"
[machine]
backend = "lima"
firewall = $1
cpus = 2
memory = "2GiB"
disk = "6GiB"
image = "$IMAGE/guest.qcow2"
digest = "sha256:$(cut -d' ' -f1 "$IMAGE/guest.sha256")"
kernel = "$IMAGE/vmlinuz"
initrd = "$IMAGE/initrd.img"
[box]
rootfs = "box.tar"
T
  "$FY" config adopt > /dev/null
}
# guest CMD…: in the machine, as its user, outside the box.
guest() { ssh -F "$FOLDYARD_HOME/lima/fy-vm/ssh.config" -o ConnectTimeout=30 -o LogLevel=ERROR -T lima-fy-vm -- "$@"; }
# place PLACE WANT: fy's probe verb from a place that fy verify does not start from.
place() {
  local way
  way=$("$FY" exec -- sh -c 'echo $http_proxy' < /dev/null) || return 1
  python3 "$HERE/probes.py" plan "$way" | guest 'cat > plan.json' || return 1
  guest bash -s "$1" < "$HERE/places.sh" | python3 "$HERE/probes.py" judge "$2"
}
seen() { grep -cE "$1" "$SEEN" || true; } # how often the world, or the host's loopback, was reached
pid() { python3 -c 'import json,sys; print(json.load(sys.stdin)["supervisor"]["pid"])' < <("$FY" status --json); }
battery() { # battery FILE: fy verify, kept
  "$FY" verify --json > "$1" 2> /dev/null
  local code=$?
  python3 -c '
import collections, json, sys
r = json.load(open(sys.argv[1]))
print("verdict", r["verdict"], dict(collections.Counter(row["result"] for row in r["rows"])))
for row in r["rows"]:
    if row["result"] in ("FAIL", "UNPROVEN"): print(row["result"], row["id"], row.get("detail", "")[:200])' "$1"
  return $code
}
waits() { # waits BOOT: until the machine has booted again, and its boot script has reported
  local end=$((SECONDS + 600)) now
  while [ "$SECONDS" -lt "$end" ]; do
    now=$(guest 'cat /proc/sys/kernel/random/boot_id /run/foldyard/report' 2> /dev/null) && [ "${now%%$'\n'*}" != "$1" ] && echo "$now" && return 0
    sleep 3
  done
  return 1
}
export -f guest place seen battery waits
export FY FOLDYARD_HOME HERE SEEN
run() { bash -c '"$@"' - "$@"; } # want cannot run a function under its timeout otherwise

cp "$DIR/box.tar" box.tar
echo hello > src/file
cat > "$FOLDYARD_HOME/config.toml" << T
[upstream]
ca = ["$DIR/origin.pem"]
resolver = "93.184.216.34:53"
T
chmod 600 "$FOLDYARD_HOME/config.toml"
config true

part "a machine, and a box in it"
want "up makes a machine and a box" "box [0-9a-f]+ runs" 0 "$FY" up
guest 'echo "guest: Linux $(uname -r), $(. /etc/os-release; echo "$PRETTY_NAME"), podman $(podman --version | cut -d" " -f3), $(/usr/sbin/nft --version | cut -d" " -f1,2), $(systemctl --version | head -n 1 | cut -d" " -f1,2)"' > "$DIR/versions"
want "up again is quick and changes nothing" "runs already" 0 "$FY" up
want "machine status" "running" 0 "$FY" machine status
want "a command in the box, at the repo's own path" "^$DIR/app\$" 0 "$FY" exec -- pwd
want "the repo is there, and the box writes it" "^hello" 0 "$FY" exec -- sh -c 'cat src/file; echo written > src/made'
want "what it wrote is the operator's" "^$(id -u) written" 0 sh -c 'echo "$(stat -c %u src/made) $(cat src/made)"'
want "exit status" "" 7 "$FY" exec -- sh -c 'exit 7'
want "no such command" "no such file" 127 "$FY" exec -- no-such-command
want "the user is the operator's" "uid=$(id -u)" 0 "$FY" exec -- id
want "nothing of the operator's environment" "^IN_DEVBOX=1" 0 "$FY" exec -- env

part "grants, live"
want "refused by name, and says how to permit it" "fy allow allowed.test" 0 "$FY" exec -- curl -s http://allowed.test/
want "granted" "" 0 "$FY" allow allowed.test
want "reached by http" "^origin speaks" 0 "$FY" exec -- curl -s http://allowed.test/
want "reached by https, decrypted on the way" "^origin speaks" 0 "$FY" exec -- curl -s https://allowed.test/
want "the token stays here" "^0\$" 0 run seen leaked
want "revoked" "" 0 "$FY" revoke allowed.test
want "refused again" "not granted" 0 "$FY" exec -- curl -s http://allowed.test/

part "the battery"
want "root in the machine is not held by this ring: the world" "reached 1.1.1.1/443" 0 run guest cat /run/lab-root
want "root in the machine is not held by this ring: the host's loopback" "reached 192.168.5.2/4999" 0 run guest cat /run/lab-root
want "both were seen to arrive" "^[2-9]" 0 run seen '::ffff:1.1.1.1|^loop'
: > "$SEEN"
want "fy verify passes" "^verdict pass" 0 run battery "$DIR/verify.json"
want "from the VM's user: IPv6 neighbours, ARP, routes, rules, units" "^reached: control;" 0 run place user held
want "from a nested container" "^reached: control;" 0 run place nested held
want "from a build step" "^reached: control;" 0 run place build held
want "nothing of it reached the world, or the host's loopback" "^0\$" 0 run seen 'tcp|udp|loop'
want "the label" "locked against the VM's user and containers, not VM root" 0 "$FY" status
want "the firewall's unit was active before the network" "^before\$" 0 run guest \
  'set -- $(systemctl show -p ActiveEnterTimestampMonotonic --value foldyard-firewall.service systemd-networkd.service | grep .); if [ "$1" -gt 0 ] && [ "$1" -lt "$2" ]; then echo before; else echo "after: $*"; fi'
want "a one-shot box" "once" 0 "$FY" run -- echo once

part "what the box may write changes no wall"
want "the box asks for a machine without a firewall" "" 0 "$FY" exec -- sh -c 'sed "s/firewall = true/firewall = false/" foldyard.toml > new; cat new > foldyard.toml; rm new; mkdir -p .lima; echo "#!/bin/sh" > .lima/boot.sh'
want "it is not adopted" "differs from what was adopted" 0 "$FY" up

part "the supervisor is killed"
was=$(pid)
want "kill -9" "" 0 kill -9 "$was"
want "a command in the box starts another, which takes the box back" "^$DIR/app\$" 0 "$FY" exec -- pwd
want "it is another" "^[0-9]+\$" 0 run test "$(pid)" != "$was"
want "grants hold again" "not granted" 0 "$FY" exec -- curl -s http://allowed.test/

part "limactl is killed, and QEMU runs on"
want "kill -9" "" 0 kill -9 "$(cat "$FOLDYARD_HOME/lima/fy-vm/ha.pid")"
want "up mends it, or finds nothing to mend" "box [0-9a-f]+ runs" 0 "$FY" up
want "the box works" "hello" 0 "$FY" exec -- cat src/file
want "refused as before" "not granted" 0 "$FY" exec -- curl -s http://allowed.test/

part "QEMU is killed"
want "kill -9" "" 0 kill -9 "$(cat "$FOLDYARD_HOME/lima/fy-vm/qemu.pid")"
want "a command says that no box runs" "fy up|box ended|no box" 125 "$FY" exec -- true
want "up mends it" "box [0-9a-f]+ runs" 0 "$FY" up
want "the box works" "hello" 0 "$FY" exec -- cat src/file
want "the firewall is on, whatever the repo says" "^firewall on" 0 run guest cat /run/foldyard/report
want "from the VM's user: still held" "^reached: control;" 0 run place user held

part "the machine is reset"
boot=$(guest cat /proc/sys/kernel/random/boot_id)
want "reset" "ok" 0 python3 "$HERE/qmp.py" "$FOLDYARD_HOME/lima/fy-vm/qmp.sock" system_reset
want "it boots, and reports" "^boot" 0 run waits "$boot"
want "up makes a box in it" "box [0-9a-f]+ runs" 0 "$FY" up
want "the box works" "hello" 0 "$FY" exec -- cat src/file
want "from the VM's user: still held" "^reached: control;" 0 run place user held

part "another fy with another boot script, and another band of ports"
want "down" "ended" 0 "$FY" down
want "nothing runs" "stopped" 0 "$FY" machine status
want "the supervisor ends" "" 0 "$FY" supervisor stop
sed -i 's/41000/41600/' "$FOLDYARD_HOME/ports.json"
export FY=$FY2
config true
want "up says so, and makes it" "box [0-9a-f]+ runs" 0 "$FY" up
want "the other script ran" "^== upgraded" 0 run guest cat /run/foldyard/boot.log
want "the way out is on the other band" "@192.168.5.2:41600" 0 "$FY" exec -- sh -c 'echo $http_proxy'
: > "$SEEN"
want "fy verify passes" "^verdict pass" 0 run battery "$DIR/verify-2.json"
want "nothing of it reached the world, or the host's loopback" "^0\$" 0 run seen 'tcp|udp|loop'

part "the negative control: the same machine without its firewall"
config false
want "down" "ended" 0 "$FY" down
want "up without the firewall" "box [0-9a-f]+ runs" 0 "$FY" up
: > "$SEEN"
want "fy verify fails" "^verdict fail" 1 run battery "$DIR/verify-off.json"
want "the probes of this test reach what they must not" "world-443" 0 run place user open
want "from a nested container too" "world-443" 0 run place nested open
want "from a build step too" "world-443" 0 run place build open
want "it was seen to arrive" "^[1-9]" 0 run seen '::ffff:1.1.1.1|^loop'
want "no label" "cooperative" 0 "$FY" status

part "the end"
want "removed" "removed" 0 "$FY" machine rm
want "the supervisor ends" "" 0 "$FY" supervisor stop
want "no QEMU, limactl or supervisor is left" "^0\$" 0 sh -c 'pgrep -c -u "$(id -u)" "^(qemu-system.*|limactl|fy)\$" || true'
say ""
say "vm e2e: $passed passed, $failed failed, $((SECONDS - began)) s"
[ "$failed" = 0 ]
