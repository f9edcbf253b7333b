#!/bin/bash
# usage: podman.sh
# Makes a box with this computer's rootless Podman, in place of a virtual
# machine's: what its mounts hold, its commands, its ports, and a step of a
# build. In namespaces of its own, without a way out. It takes half a minute.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
user=fyvm

skip() { echo "podman e2e: skipped: $1"; exit 0; }
[ "$(uname)" = Linux ] || skip "it needs Linux"
[ "$(id -u)" = 0 ] || skip "it needs root, for a cgroup and a home of its own"
for want in podman newuidmap slirp4netns busybox unshare setpriv curl; do command -v $want > /dev/null || skip "no $want"; done
[ -e /dev/fuse ] || skip "no /dev/fuse"
id "$user" > /dev/null 2>&1 || useradd -m "$user"
grep -q "^$user:" /etc/subuid || skip "$user has no subordinate ids"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
bash "$here/vm/box.sh" "$work/box.tar"
(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -o "$work/fy-guest" ./cmd/fy-guest && go test -trimpath -c -o "$work/container.test" ./internal/box/container &&
  go test -trimpath -c -o "$work/supervisor.test" ./internal/host/supervisor)
chmod -R a+rX "$work"

unshare --net --mount bash -s "$work" "$user" << 'INNER'
set -euo pipefail
work=$1 user=$2 uid=$(id -u "$2")
ip link set lo up
mount --make-rprivate /
mount --make-shared /
mount -t tmpfs none /home
mkdir -p /home/fy "/home/$user/.config/containers" "/run/user/$uid"
mount -t tmpfs none "/run/user/$uid"
umount -l /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
leaf=/sys/fs/cgroup/fy-podman-$$
mkdir -p "$leaf/leaf"
chown -R "$user" "$leaf"
echo $$ > "$leaf/leaf/cgroup.procs"
# Podman leaves a process that holds its namespaces.
trap 'echo $$ > /sys/fs/cgroup/cgroup.procs; echo 1 > "$leaf/cgroup.kill"' EXIT
chmod 666 /dev/fuse
[ ! -e /dev/net/tun ] || chmod 666 /dev/net/tun
printf '[engine]\ncgroup_manager="cgroupfs"\nevents_logger="file"\n' > "/home/$user/.config/containers/containers.conf"
printf '[storage]\ndriver="vfs"\n' > "/home/$user/.config/containers/storage.conf"
chown -R "$user" "/home/$user" /home/fy "/run/user/$uid"
cd /tmp
for suite in container supervisor; do
  setpriv --reuid "$user" --regid "$user" --init-groups env HOME="/home/$user" XDG_RUNTIME_DIR="/run/user/$uid" TMPDIR=/tmp FY_PODMAN_TEST="$work" \
    timeout 300 "$work/$suite.test" -test.run RealPodman -test.v
done
INNER
echo "podman e2e: passed"
