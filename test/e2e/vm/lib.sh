#!/bin/bash
# lib.sh: a project with a machine, and how its steps are told. Sourced by steps.sh and speed.sh, which ../vm.sh runs as an ordinary
# user in the lab, with FY, FY2, DIR, SEEN, IMAGE and HERE set. FY2 is an fy whose boot script differs.
set -uo pipefail
export FOLDYARD_HOME=$DIR/h FY_PROBE_ADDRS=1.1.1.1,2606:4700:4700::1111
mkdir -p "$DIR/app/src" "$FOLDYARD_HOME"
chmod 700 "$FOLDYARD_HOME"
cd "$DIR/app" || exit 1
failed=0 passed=0 began=$SECONDS
budget=${FY_VM_BUDGET:-86400} # seconds for the steps
: > "$DIR/report"
say() { echo "$*" | tee -a "$DIR/report"; }
want() { # want NAME PATTERN STATUS CMD…: its output matches, and so does its status
  local name=$1 pattern=$2 status=$3 out code start=$SECONDS left=$((budget - SECONDS + began))
  shift 3
  if [ "$left" -le 0 ]; then slow; fi
  echo "$name" > "$DIR/now"
  out=$(timeout -k 10 "$((left < 900 ? left : 900))" bash -c '"$@"' - "$@" 2>&1 < /dev/null) # a function too
  code=$?
  if [ "$code" = 124 ] && [ "$left" -lt 900 ]; then slow; fi
  if [ "$code" = "$status" ] && grep -qE -- "$pattern" <<< "$out"; then
    say "$(printf 'ok    %4ds  %s' $((SECONDS - start)) "$name")"
    passed=$((passed + 1))
  else
    say "$(printf 'FAIL  %4ds  %s' $((SECONDS - start)) "$name")"
    printf '        status %s, want %s and /%s/\n%s\n' "$code" "$status" "$pattern" "$(tail -n 30 <<< "$out" | sed 's/^/        /')"
    failed=$((failed + 1))
  fi
}
slow() { # no time is left: that is no fault, where no step has failed
  say ""
  say "vm e2e: $passed passed, $failed failed, and no time is left after $((SECONDS - began)) s, at: $(cat "$DIR/now")"
  [ "$failed" = 0 ] || exit 1
  exit 77
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
# fresh CMD…: likewise, over a connection of its own: a machine that was reset does not know of older ones.
fresh() { timeout 60 ssh -F "$FOLDYARD_HOME/lima/fy-vm/ssh.config" -o ControlMaster=no -o ControlPath=none -o ConnectTimeout=30 -o LogLevel=ERROR -T lima-fy-vm -- "$@"; }
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
versions() {
  {
    limactl --version
    guest 'echo "guest: Linux $(uname -r), $(. /etc/os-release; echo "$PRETTY_NAME"), $(podman --version), $(/usr/sbin/nft --version | cut -d" " -f1,2), $(systemctl --version | head -n 1 | cut -d" " -f1,2)"'
  } > "$DIR/versions"
}
example() { # the battery that anyone can run, told in one line
  guest bash -s < "$HERE/battery.sh" > "$DIR/example.txt" || return 1
  echo "$(grep -c ^reached "$DIR/example.txt") reached, $(grep -c ^refused "$DIR/example.txt") refused"
  grep ^reached "$DIR/example.txt" || true
}
left() { # what still runs of ours, once it had its time to end
  local end=$((SECONDS + 60)) now
  while now=$(ps -u "$(id -u)" -o stat=,comm= | awk '$1 !~ /^Z/ && $2 ~ /^(qemu-system|limactl|fy2?$)/ { print $2 }'); [ -n "$now" ] && [ "$SECONDS" -lt "$end" ]; do sleep 1; done
  echo "left: ${now:-none}"
}
rooted() { # what the machine's root tries once a boot, when it has: steps that count what arrives come after it
  timeout 300 ssh -F "$FOLDYARD_HOME/lima/fy-vm/ssh.config" -o LogLevel=ERROR -T lima-fy-vm -- 'until [ "$(wc -l < /run/lab-root)" = 2 ]; do sleep 1; done; echo $(cat /run/lab-root)'
}
waits() { # waits BOOT: until the machine has booted again, and its boot script has reported
  local end=$((SECONDS + 600)) now
  while [ "$SECONDS" -lt "$end" ]; do
    now=$(fresh 'cat /proc/sys/kernel/random/boot_id /run/foldyard/report' 2> /dev/null) && [ "${now%%$'\n'*}" != "$1" ] && echo "$now" && return 0
    sleep 3
  done
  return 1
}
open() { # open FILE ROW…: the rows failed there, for what they try was reached
  python3 -c '
import json, sys
results = {row["id"]: row["result"] for row in json.load(open(sys.argv[1]))["rows"]}
bad = [r for r in sys.argv[2:] if results.get(r) != "FAIL"]
print("not reached: " + " ".join(bad) if bad else "all reached")
sys.exit(bool(bad))' "$@"
}
export -f open fresh guest place seen battery example left rooted waits
export DIR FY FOLDYARD_HOME HERE SEEN

cp "$DIR/box.tar" box.tar
echo hello > src/file
cat > "$FOLDYARD_HOME/config.toml" << T
[upstream]
ca = ["$DIR/origin.pem"]
resolver = "93.184.216.34:53"
T
chmod 600 "$FOLDYARD_HOME/config.toml"
config true
