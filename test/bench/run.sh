#!/bin/sh
# usage: run.sh [soak] FY [flags]
# Measures FY and writes its part of docs/bench.md. By root: in a network
# namespace of its own, by an ordinary user, as fy is meant to be used.
#   BENCH_USER   who runs it when root starts it, default: fyaccept, if there is one
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
page=$root/docs/bench.md
mode=
if [ "${1:-}" = soak ]; then mode=soak; shift; fi
fy=$1
shift

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
(cd "$root" && CGO_ENABLED=0 go build -trimpath -o "$dir/bench" ./test/bench)
install -m 755 "$fy" "$dir/fy"
cat "$page" >"$dir/page" 2>/dev/null || :

if [ "$(id -u)" = 0 ] && command -v unshare >/dev/null; then
  user=${BENCH_USER:-fyaccept}
  as=
  if id "$user" >/dev/null 2>&1; then
    chown "$user" "$dir/page"
    home=$(getent passwd "$user" | cut -d: -f6)
    as="setpriv --reuid $user --regid $(id -g "$user") --clear-groups env HOME=$home TMPDIR=/tmp"
  fi
  unshare -n sh -c 'ip link set lo up; echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start; exec "$@"' sh $as "$dir/bench" $mode -out "$dir/page" "$@" "$dir/fy"
else
  "$dir/bench" $mode -out "$dir/page" "$@" "$dir/fy"
fi
cmp -s "$dir/page" "$page" || install -m 644 "$dir/page" "$page"
