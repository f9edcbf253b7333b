#!/bin/bash
# speed.sh: fy beside limactl and podman alone, on one machine, turn about; see lib.sh. FY_VM_STEPS=speed.sh ../vm.sh runs it.
. "$HERE/lib.sh"
export LIMA_HOME=$FOLDYARD_HOME/lima LC_ALL=C LIMA_SSH_OVER_VSOCK=false
quiet() { "$@" > "$DIR/last.log" 2>&1 < /dev/null || { echo "failed: $*" && tail -n 5 "$DIR/last.log"; }; }
ms() { # ms CMD…: milliseconds that it takes
  local start=${EPOCHREALTIME/./}
  quiet "$@" >&2
  echo $(((${EPOCHREALTIME/./} - start) / 1000))
}
tell() { say "$(printf '%-58s %s' "$1" "$2")"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : int((v[NR / 2] + v[NR / 2 + 1]) / 2) }'; }

quiet "$FY" up
versions
quiet "$FY" allow allowed.test
tell "load" "$(cut -d' ' -f1-3 /proc/loadavg)"

part "fy up on a running machine, ms"
for i in 1 2 3 4 5; do ms "$FY" up; done > "$DIR/up"
tell "five times" "$(tr '\n' ' ' < "$DIR/up"), median $(median < "$DIR/up")"
for i in 1 2 3 4 5; do ms limactl shell --workdir / fy-vm true; done > "$DIR/true"
tell "limactl shell fy-vm true" "$(tr '\n' ' ' < "$DIR/true"), median $(median < "$DIR/true")"
tell "load" "$(cut -d' ' -f1-3 /proc/loadavg)"

part "fy exec -- true beside limactl shell and podman exec, ms"
box=$(guest podman ps --quiet)
: > "$DIR/fy"
: > "$DIR/lima"
for i in 1 2 3 4 5 6 7; do
  ms "$FY" exec -- true >> "$DIR/fy"
  ms limactl shell --workdir / fy-vm podman exec "$box" true >> "$DIR/lima"
done
tell "fy exec -- true" "$(tr '\n' ' ' < "$DIR/fy"), median $(median < "$DIR/fy")"
tell "limactl shell fy-vm podman exec BOX true" "$(tr '\n' ' ' < "$DIR/lima"), median $(median < "$DIR/lima")"

part "64 MiB from the guest: through the proxy, and from a listener on the host, bytes a second"
way=$("$FY" exec -- sh -c 'echo $http_proxy')
head -c 67108864 /dev/zero > "$DIR/big"
(cd "$DIR" && exec python3 -m http.server --bind 127.0.0.1 21098 > /dev/null 2>&1) & # on the project's band, or the firewall refuses it
server=$!
: > "$DIR/proxied"
: > "$DIR/plain"
pull() { guest curl -s -o /dev/null -w '%{speed_download}' "$@"; }
until pull http://192.168.5.2:21098/origin.pem > /dev/null; do sleep 1; done
for i in 1 2 3 4 5 6 7 8 9; do
  { pull -x "$way" http://allowed.test/big && echo; } >> "$DIR/proxied"
  { pull --noproxy 192.168.5.2 http://192.168.5.2:21098/big && echo; } >> "$DIR/plain"
done
kill "$server"
tell "through the proxy" "$(tr '\n' ' ' < "$DIR/proxied"), median $(median < "$DIR/proxied")"
tell "from a plain listener" "$(tr '\n' ' ' < "$DIR/plain"), median $(median < "$DIR/plain")"
tell "of a plain listener's, in per cent, round by round" "$(paste "$DIR/proxied" "$DIR/plain" | awk '{ printf "%d\n", 100 * $1 / $2 }' | tee "$DIR/ratio" | tr '\n' ' '), median $(median < "$DIR/ratio")"

part "a start of the stopped machine, ms"
: > "$DIR/fy"
: > "$DIR/lima"
: > "$DIR/down"
: > "$DIR/stop"
for i in 1 2; do
  ms "$FY" down >> "$DIR/down"
  ms limactl --tty=false start fy-vm >> "$DIR/lima"
  ms limactl --tty=false stop fy-vm >> "$DIR/stop"
  ms "$FY" up >> "$DIR/fy"
done
tell "limactl start" "$(tr '\n' ' ' < "$DIR/lima"), median $(median < "$DIR/lima")"
tell "limactl stop; fy down, of a box too" "$(tr '\n' ' ' < "$DIR/stop"); $(tr '\n' ' ' < "$DIR/down")"
tell "fy up, with the box in it" "$(tr '\n' ' ' < "$DIR/fy"), median $(median < "$DIR/fy")"
tell "load" "$(cut -d' ' -f1-3 /proc/loadavg)"

quiet "$FY" machine rm
quiet "$FY" supervisor stop
say ""
say "vm e2e: measured, $((SECONDS - began)) s"
