#!/bin/bash
# usage: vm.sh FY
# Boots a real virtual machine with limactl, under QEMU's emulation, inside a
# network namespace that has no way out, and tries fy's lima backend on it:
# box, exec, grants, battery, restart, crash. Local origins stand for the
# internet. .ci/run calls it when FY_VM_E2E=1. It takes 15 to 40 minutes.
#   FY_VM_CACHE   where limactl, the guest image and its parts are kept (default: .cache/vm)
#   FY_VM_KEEP=1  leaves the machine and its state
set -euo pipefail

fy=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
cache=$(realpath -m "${FY_VM_CACHE:-$here/../../.cache/vm}")
user=fyvm

skip() { echo "vm e2e: skipped: $1"; exit 0; }
[ "$(uname)" = Linux ] || skip "QEMU's emulation is tried on Linux"
[ "$(id -u)" = 0 ] || skip "the guest image and the namespace need root"

missing=()
for want in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils mmdebstrap:mmdebstrap mke2fs:e2fsprogs ip:iproute2 setpriv:util-linux python3:python3 busybox:busybox-static curl:curl ssh:openssh-client openssl:openssl; do
  command -v "${want%%:*}" > /dev/null || missing+=("${want##*:}")
done
if [ "${#missing[@]}" -gt 0 ]; then
  command -v apt-get > /dev/null || skip "no ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi
id "$user" > /dev/null 2>&1 || useradd -m "$user"

mkdir -p "$cache"
bash "$here/vm/lima.sh" "$cache/lima"
bash "$here/vm/rootfs.sh" "$cache"
bash "$here/vm/image.sh" "$cache"
chmod a+rx "$cache" "$cache/lima"
setpriv --reuid "$user" --regid "$user" --init-groups test -x "$cache/lima/bin/limactl" -a -r "$here/vm/steps.sh" ||
  skip "$user cannot read $cache and $here: set FY_VM_CACHE, or clone elsewhere"
(cd "$cache" && sha256sum guest.qcow2 > guest.sha256)

# Short, for ssh's sockets lie below it, and the user's own.
work=$(mktemp -d /tmp/fyvm.XXXX)
chmod 755 "$work"
lab=fyvmlab$$ net=fyvmnet$$
finish() {
  status=$?
  for pid in $(ip netns pids "$lab" 2> /dev/null) $(ip netns pids "$net" 2> /dev/null); do kill -9 "$pid" 2> /dev/null || true; done
  ip netns del "$lab" 2> /dev/null || true
  ip netns del "$net" 2> /dev/null || true
  [ -n "${FY_VM_KEEP:-}" ] || rm -rf "$work"
  exit $status
}
trap finish EXIT

# The lab has one link to a namespace where every address of the world is the origin's.
ip netns add "$lab"
ip netns add "$net"
ip -n "$lab" link add up0 type veth peer name down0 netns "$net"
for n in "$lab" "$net"; do ip -n "$n" link set lo up; done
ip -n "$lab" addr add 198.51.100.1/30 dev up0
ip -n "$lab" addr add 2001:db8:ffff::1/64 dev up0 nodad
ip -n "$lab" link set up0 up
ip -n "$net" addr add 198.51.100.2/30 dev down0
ip -n "$net" addr add 2001:db8:ffff::2/64 dev down0 nodad
ip -n "$net" link set down0 up
ip -n "$lab" route add default via 198.51.100.2
ip -n "$lab" -6 route add default via 2001:db8:ffff::2
ip -n "$net" addr add 93.184.216.34/32 dev lo
ip -n "$net" route add local default dev lo table local
ip -n "$net" -6 route add local default dev lo table 100
ip -n "$net" -6 rule add pref 40000 lookup 100

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=origin -addext subjectAltName=DNS:allowed.test,DNS:other.test \
  -keyout "$work/origin.key" -out "$work/origin.pem" 2> /dev/null
nsenter --net="/run/netns/$net" python3 "$here/vm/origin.py" "$work/origin.pem" "$work/origin.key" "$work/seen" > "$work/origin.log" 2>&1 &
install -m 755 "$fy" "$work/fy"
bash "$here/vm/box.sh" "$work/box.tar"
install -d -o "$user" -g "$user" "$work/u"
cp "$work/origin.pem" "$work/u/origin.pem"
cp "$work/box.tar" "$work/u/box.tar"
chown -R "$user:" "$work/u"

nsenter --net="/run/netns/$lab" setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps=-all env -i HOME="/home/$user" USER="$user" \
  PATH="$cache/lima/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" FY="$work/fy" DIR="$work/u" SEEN="$work/seen" IMAGE="$cache" \
  FY_VM_STEPS="${FY_VM_STEPS:-}" \
  QEMU_SYSTEM_X86_64="qemu-system-x86_64 -machine q35,vmport=off -accel tcg,thread=multi,tb-size=512 -cpu qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+aes" \
  nice -n "${FY_VM_NICE:-5}" bash "$here/vm/steps.sh"
