#!/bin/bash
# steps.sh: what is tried on a real machine. Run by ../vm.sh as an ordinary user in the lab, with FY, DIR, SEEN and IMAGE set.
set -uo pipefail
export FOLDYARD_HOME=$DIR/h FY_PROBE_ADDRS=1.1.1.1,2606:4700:4700::1111
mkdir -p "$DIR/app/src" "$FOLDYARD_HOME"
chmod 700 "$FOLDYARD_HOME"
cd "$DIR/app" || exit 1
failed=0 began=$SECONDS
want() { # want NAME PATTERN STATUS CMD…: its output matches, and so does its status
  local name=$1 pattern=$2 status=$3 out code start=$SECONDS
  shift 3
  out=$(timeout 1500 "$@" 2>&1 < /dev/null)
  code=$?
  if [ "$code" = "$status" ] && grep -qE -- "$pattern" <<< "$out"; then
    printf 'ok    %4ds  %s\n' $((SECONDS - start)) "$name"
  else
    printf 'FAIL  %4ds  %s: status %s, want %s and /%s/\n%s\n' $((SECONDS - start)) "$name" "$code" "$status" "$pattern" "$(tail -n 30 <<< "$out" | sed 's/^/        /')"
    failed=$((failed + 1))
  fi
}
config() {
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
cp "$DIR/box.tar" box.tar
echo hello > src/file
cat > "$FOLDYARD_HOME/config.toml" << T
[upstream]
ca = ["$DIR/origin.pem"]
resolver = "93.184.216.34:53"
T
chmod 600 "$FOLDYARD_HOME/config.toml"
config true

want "up makes a machine and a box" "box [0-9a-f]+ runs" 0 "$FY" up
want "up again is quick and changes nothing" "runs already" 0 "$FY" up
want "machine status" "running" 0 "$FY" machine status
want "a command in the box, at the repo's own path" "^$DIR/app\$" 0 "$FY" exec -- pwd
want "the repo is there" "hello" 0 "$FY" exec -- cat src/file
want "the box writes it" "" 0 "$FY" exec -- sh -c 'echo written > src/made'
want "and it is the operator's" "^$(id -u) written" 0 sh -c 'echo "$(stat -c %u src/made) $(cat src/made)"'
want "exit status" "" 7 "$FY" exec -- sh -c 'exit 7'
want "no such command" "no such file" 127 "$FY" exec -- no-such-command
want "the user is the operator's" "uid=$(id -u)" 0 "$FY" exec -- id
want "nothing of the operator's environment" "^IN_DEVBOX=1" 0 "$FY" exec -- env
want "refused by name, and says how to permit it" "fy allow allowed.test" 0 "$FY" exec -- curl -s http://allowed.test/
want "granted live" "" 0 "$FY" allow allowed.test
want "reached by http" "^origin speaks" 0 "$FY" exec -- curl -s http://allowed.test/
want "reached by https, decrypted on the way" "^origin speaks" 0 "$FY" exec -- curl -s https://allowed.test/
want "the token stays here" "^0\$" 0 sh -c "grep -c leaked $SEEN || true"
want "revoked live" "" 0 "$FY" revoke allowed.test
want "refused again" "not granted" 0 "$FY" exec -- curl -s http://allowed.test/
: > "$SEEN"
want "the battery" '"verdict": *"pass"' 0 "$FY" verify --json
want "nothing of it reached the world" "^0\$" 0 sh -c "grep -cE 'tcp|udp' $SEEN || true"
want "the label" "locked against the VM's user and containers, not VM root" 0 "$FY" status
"$FY" verify --json > "$DIR/verify.json" 2> /dev/null
want "a one-shot box" "once" 0 "$FY" run -- echo once
case " ${FY_VM_STEPS:-all} " in
*" short "*) ;;
*)
  want "the supervisor ends and is started again" "" 0 "$FY" supervisor restart
  want "it takes the box back" "^$DIR/app\$" 0 "$FY" exec -- pwd
  pkill -9 -u "$(id -u)" qemu-system || true
  want "QEMU killed: the next up mends it" "box [0-9a-f]+ runs" 0 "$FY" up
  want "and it works" "hello" 0 "$FY" exec -- cat src/file
  want "down" "ended" 0 "$FY" down
  want "nothing runs" "stopped" 0 "$FY" machine status
  # The negative control: without its firewall the same battery must fail.
  config false
  want "up without the firewall" "box [0-9a-f]+ runs" 0 "$FY" up
  want "the battery fails" '"verdict": *"fail"' 1 "$FY" verify --json
  want "no label" "cooperative" 0 "$FY" status
  ;;
esac
case " ${FY_VM_STEPS:-all} " in
*" keep "*) ;;
*)
  want "removed" "removed" 0 "$FY" machine rm
  "$FY" supervisor stop > /dev/null 2>&1
  ;;
esac
echo "vm e2e: $failed failed, $((SECONDS - began)) s"
cp "$DIR/verify.json" "$DIR/../verify.json" 2> /dev/null
[ "$failed" = 0 ]
