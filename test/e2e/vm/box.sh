#!/bin/bash
# box.sh FILE: a root file system for the box, as a tar: busybox, and this computer's curl with its libraries.
set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,usr/bin,etc/ssl/certs,tmp,home,proc,sys,dev,run,var}
cp /bin/busybox "$root/bin/busybox"
for name in sh cat echo env id ls true false sleep pwd stty wc head tail grep sed mkdir rm touch nc ps tty ip test; do ln -s busybox "$root/bin/$name"; done
cp /usr/bin/curl "$root/usr/bin/curl"
{ ldd /usr/bin/curl | grep -o '/[^ ]*'; } | sort -u | while read -r lib; do
  mkdir -p "$root/$(dirname "$lib")"
  cp -L "$lib" "$root/$lib"
done
printf 'root:x:0:0:root:/:/bin/sh\n' > "$root/etc/passwd"
printf 'root:x:0:\n' > "$root/etc/group"
chmod 755 "$root"
chmod 1777 "$root/tmp"
tar -C "$root" --owner=0 --group=0 -cf "$1" .
chmod a+r "$1"
