#!/bin/sh
# usage: run.sh FY
# Checks fy from outside: real boxes on a small internet of their own, where
# every address of the world is the test's and whatever gets out is seen. The
# checks lie beside the repository, in ../shared/accept; without them, or
# without root, this says so and counts it.
#   FY_E2E_GROUPS   groups of checks, default: core
#   FY_E2E_USERS    who runs fy, default: an ordinary user, then root
set -eu

fy=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "$0")" && pwd)
accept=${FY_ACCEPT:-$here/../../../shared/accept/accept.py}

skip() { echo "e2e: skipped 1 suite: $1"; exit 0; }
[ "$(uname)" = Linux ] || skip "the namespace backend is for Linux"
[ -f "$accept" ] || skip "no $accept"
[ "$(id -u)" = 0 ] || skip "the internet of the checks needs root"
for tool in ip nft curl python3 setpriv; do
  command -v "$tool" >/dev/null || skip "no $tool"
done

# An ordinary user must be able to run it, wherever the clone lies.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
install -m 755 "$fy" "$dir/fy"
# The lab has addresses of its own: what the probes try is caught there.
unset FY_PROBE_ADDRS

failed=0
for user in ${FY_E2E_USERS:-fyaccept root}; do
  for group in ${FY_E2E_GROUPS:-core}; do
    echo "e2e: $group, fy run by $user"
    if ! FY=$dir/fy FY_USER=$user python3 "$accept" "$group" >"$dir/out" 2>&1; then
      # Checks with a clock of their own may fail on a busy computer: each one that failed is tried once more, and that is said.
      cat "$dir/out"
      for name in $(sed -n 's/^FAIL [a-z]*\.\([a-z0-9_]*\).*/\1/p' "$dir/out" | sort -u); do
        echo "e2e: $name failed, once more"
        FY=$dir/fy FY_USER=$user python3 "$accept" "$group" -k "$name" || failed=1
      done
      grep -q '^[0-9]* passed, [0-9]* failed' "$dir/out" || failed=1
    else
      cat "$dir/out"
    fi
  done
done
exit $failed
