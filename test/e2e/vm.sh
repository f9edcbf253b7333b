#!/bin/bash
# usage: vm.sh FY
# Boots a real virtual machine with limactl, under QEMU's emulation, inside a
# network namespace that has no way out, and tries fy's lima backend on it:
# box, grants, battery, crashes, reset, upgrade, and the same machine without
# its firewall. Local origins stand for the internet. What was seen is written
# to docs/evidence. Ends 77 when this computer cannot build what it needs, or is
# so slow that no time is left before a step has failed.
#   FY_VM_CACHE      where limactl, the guest image and its parts are kept (default: .cache/vm)
#   FY_VM_EVIDENCE   where to write what was seen (default: docs/evidence)
#   FY_VM_STEPS      speed.sh: measures instead, beside limactl and podman alone
#   FY_VM_BUDGET     seconds that all of it may take (default: no bound)
#   FY_VM_KEEP=1     leaves the files of a run, not its processes
set -euo pipefail

fy=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
cache=$(realpath -m "${FY_VM_CACHE:-$repo/.cache/vm}")
evidence=$(realpath -m "${FY_VM_EVIDENCE:-$repo/docs/evidence}")
user=fyvm
export PATH="$PATH:/usr/local/go/bin"

lima=
skip() {
  [ -z "$lima" ] || kill "$lima" 2> /dev/null || true
  echo "vm e2e: skipped: $1"
  exit 77
}
stage() { echo "vm e2e: $1 (after $SECONDS s)"; }
left() { echo $((${FY_VM_BUDGET:-86400} - SECONDS > 1 ? ${FY_VM_BUDGET:-86400} - SECONDS : 1)); }
bounded() { # bounded WHY CMD…: WHY it is skipped when CMD fails, if that is not for want of time
  local why=$1 code=0
  shift
  timeout -k 10 "$(left)" "$@" || code=$?
  case $code in
  0) ;;
  124) skip "no time is left" ;;
  *) skip "$why" ;;
  esac
}
[ "$(uname)" = Linux ] || skip "QEMU's emulation is tried on Linux"
[ "$(uname -m)" = x86_64 ] || skip "the guest image is built for x86_64"
[ "$(id -u)" = 0 ] || skip "the guest image and the namespace need root"

mkdir -p "$cache"
[ "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)" -gt $((4 << 20)) ] || skip "less than 4 GiB of memory is available"
for dir in "$cache" /tmp; do
  [ "$(df -Pk "$dir" | awk 'END { print $4 }')" -gt $((8 << 20)) ] || skip "less than 8 GiB of $dir is free"
done

missing=()
for want in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils mmdebstrap:mmdebstrap mke2fs:e2fsprogs ip:iproute2 setpriv:util-linux python3:python3 busybox:busybox-static curl:curl ssh:openssh-client openssl:openssl pgrep:procps; do
  command -v "${want%%:*}" > /dev/null || missing+=("${want##*:}")
done
if [ "${#missing[@]}" -gt 0 ]; then
  command -v apt-get > /dev/null || skip "no ${missing[*]}"
  stage "installs ${missing[*]}"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } > /dev/null || skip "no ${missing[*]}"
fi
id "$user" > /dev/null 2>&1 || useradd -m "$user"

exec 9> "$cache/lock"
flock 9 # two runs build one after the other
stage "limactl, and the guest's packages and image"
[ "$(left)" -gt 600 ] || skip "no time is left"
timeout -k 10 "$(left)" bash "$here/vm/lima.sh" "$cache/lima" > "$cache/lima.log" 2>&1 &
lima=$!
bounded "the guest cannot be built: its packages cannot be had" bash "$here/vm/rootfs.sh" "$cache"
stage "the guest's packages are there"
bounded "the guest's image cannot be made" bash "$here/vm/image.sh" "$cache" lab
stage "the guest's image is there"
wait "$lima" || {
  [ "$?" = 124 ] && skip "no time is left"
  tail -n 3 "$cache/lima.log"
  skip "limactl cannot be built: its Go modules cannot be had"
}
lima=
stage "limactl is there"
built=$SECONDS
exec 9>&-

# An fy whose boot script differs, as one of another version does.
stage "another fy"
work=$(mktemp -d /tmp/fyvm.XXXX) # short: ssh's sockets lie below it
sed 's/^step report$/step upgraded\n\nstep report/' "$repo/internal/wall/ruleset/boot.sh" > "$work/boot.sh"
echo "{\"Replace\": {\"$repo/internal/wall/ruleset/boot.sh\": \"$work/boot.sh\"}}" > "$work/overlay.json"
tags=$(go version -m "$fy" | sed -n 's/.*-tags=//p')
(cd "$repo" && CGO_ENABLED=0 go build -trimpath -tags "$tags" -overlay "$work/overlay.json" -ldflags '-s -w' -o "$work/fy2" ./cmd/fy)

lab=fyvmlab$$ net=fyvmnet$$
finish() {
  status=$?
  [ "$status" = 0 ] || [ ! -s "$work/u/now" ] || echo "vm e2e: it ended with $status; the last step was: $(cat "$work/u/now")"
  for pid in $(ip netns pids "$lab" 2> /dev/null) $(ip netns pids "$net" 2> /dev/null); do kill -9 "$pid" 2> /dev/null || true; done
  ip netns del "$lab" 2> /dev/null || true
  ip netns del "$net" 2> /dev/null || true
  [ -n "${FY_VM_KEEP:-}" ] || rm -rf "$work"
  exit $status
}
trap finish EXIT
trap 'exit 143' TERM

# The lab has one link to a namespace where every address of the world is the origin's.
network() {
  ip netns add "$lab" && ip netns add "$net" &&
    ip -n "$lab" link add up0 type veth peer name down0 netns "$net" &&
    ip -n "$lab" link set lo up && ip -n "$net" link set lo up &&
    ip -n "$lab" addr add 198.51.100.1/30 dev up0 &&
    ip -n "$lab" addr add 2001:db8:ffff::1/64 dev up0 nodad &&
    ip -n "$lab" link set up0 up &&
    ip -n "$net" addr add 198.51.100.2/30 dev down0 &&
    ip -n "$net" addr add 2001:db8:ffff::2/64 dev down0 nodad &&
    ip -n "$net" link set down0 up &&
    ip -n "$lab" route add default via 198.51.100.2 &&
    ip -n "$lab" -6 route add default via 2001:db8:ffff::2 &&
    ip -n "$net" addr add 93.184.216.34/32 dev lo &&
    ip -n "$net" route add local default dev lo table local &&
    ip -n "$net" -6 route add local default dev lo table 100 &&
    ip -n "$net" -6 rule add pref 40000 lookup 100
}
network || skip "the lab's network cannot be made"

# Users of the lab may send echo requests: without the firewall, the machine's reach the world.
nsenter --net="/run/netns/$lab" sh -c 'echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range' || true

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=origin -addext subjectAltName=DNS:allowed.test,DNS:other.test \
  -keyout "$work/origin.key" -out "$work/origin.pem" 2> /dev/null
nsenter --net="/run/netns/$net" python3 "$here/vm/origin.py" "$work/origin.pem" "$work/origin.key" "$work/seen" > "$work/origin.log" 2>&1 &
nsenter --net="/run/netns/$lab" python3 "$here/vm/origin.py" loop "$work/seen" > "$work/loop.log" 2>&1 &

# What the user needs, where the user can read it, wherever the clone and the cache lie.
install -m 755 "$fy" "$work/fy"
mkdir "$work/img"
cp -r "$here/vm" "$work/vm"
cp "$repo/examples/lima-firewall/battery.sh" "$work/vm/"
for f in lima guest.qcow2 guest.sha256 vmlinuz initrd.img; do cp -rLl "$cache/$f" "$work/img/" 2> /dev/null || cp -rLf "$cache/$f" "$work/img/"; done
chmod -R a+rX "$work"
install -d -o "$user" -g "$user" "$work/u"
bash "$here/vm/box.sh" "$work/u/box.tar"
cp "$work/origin.pem" "$work/u/origin.pem"
chown -R "$user:" "$work/u"

stage "the steps"
ok=0
nsenter --net="/run/netns/$lab" setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps=-all env -i HOME="/home/$user" USER="$user" \
  PATH="$work/img/lima/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" FY="$work/fy" FY2="$work/fy2" DIR="$work/u" SEEN="$work/seen" IMAGE="$work/img" HERE="$work/vm" \
  FY_VM_BUDGET="$(left)" QEMU_SYSTEM_X86_64="qemu-system-x86_64 -machine q35,vmport=off -accel tcg,thread=multi,tb-size=512 -cpu qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+aes" \
  nice -n "${FY_VM_NICE:-0}" bash "$work/vm/${FY_VM_STEPS:-steps.sh}" || ok=$?
stage "the steps ended with $ok"
[ -s "$work/u/versions" ] && [ "$ok" != 77 ] || exit "$ok"

# What was seen, as evidence.
mkdir -p "$evidence"
seen=vm-e2e-linux-amd64.md
case ${FY_VM_STEPS:-} in speed*) seen=vm-speed-linux-amd64.md ;; esac
{
  echo "# The lima backend on a real machine"
  echo
  echo "Written by test/e2e/vm.sh, ${FY_VM_STEPS:-steps.sh}: $(grep '^vm e2e:' "$work/u/report" || echo 'it did not come to its end')."
  echo
  echo "- built before, in $built s: limactl, the guest's packages and image"
  echo "- date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "- commit: $(git -c safe.directory='*' -C "$repo" rev-parse HEAD 2> /dev/null || echo unknown)$(git -c safe.directory='*' -C "$repo" diff --quiet HEAD -- '*.go' '*.sh' 2> /dev/null || echo ', with changes')"
  echo "- host: Linux $(uname -r), $(nproc) CPUs, no KVM: emulated by $(qemu-system-x86_64 --version | head -n 1)"
  sed 's/^/- /' "$work/u/versions"
  echo "- load of the host at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
  echo
  echo '```'
  cat "$work/u/report"
  echo '```'
  for f in verify verify-2 verify-off; do
    [ -s "$work/u/$f.json" ] || continue
    python3 "$here/vm/rows.py" "$work/u/$f.json"
  done
} > "$evidence/$seen"
if [ "$ok" = 0 ] && [ -s "$work/u/verify-off.json" ] && [ "$evidence" = "$repo/docs/evidence" ]; then
  (cd "$repo" && go test ./internal/proof -count=1 -run TestRecordEvidence -record "$work/u/verify.json" > /dev/null &&
    go test ./internal/proof -count=1 -run TestClaimsDocument -update > /dev/null)
fi
exit "$ok"
