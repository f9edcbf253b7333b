#!/bin/bash
# rootfs.sh DIR: a Debian 12 root with what the guest needs, from Debian packages, as DIR/rootfs.tar. Needs mmdebstrap, root.
set -euo pipefail
stamp=$(sha256sum < "$0")
mkdir -p "$1"
cd "$1"
if [ "$(cat rootfs.stamp 2> /dev/null)" = "$stamp" ] && [ -s rootfs.tar ]; then exit 0; fi
packages=systemd,systemd-sysv,systemd-resolved,udev,dbus,dbus-user-session,libpam-systemd,libnss-systemd,linux-image-amd64,initramfs-tools
packages+=,openssh-server,nftables,podman,uidmap,slirp4netns,passt,fuse-overlayfs,crun,netavark,aardvark-dns,catatonit,iproute2,iptables
packages+=,curl,ca-certificates,sudo,netcat-openbsd,procps,kmod,e2fsprogs,fdisk,sshfs,rsync,cron,python3-minimal
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
mmdebstrap --variant=minbase --mode=root \
  --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' --aptopt='APT::Install-Recommends "false"' \
  --include="$packages" bookworm new.tar "$sources"
mv new.tar rootfs.tar
echo "$stamp" > rootfs.stamp
