#!/bin/bash
# steps.sh: what is tried on a real machine; see lib.sh. What it saw goes to DIR/report. Five boots: each of them is a step by itself.
. "$HERE/lib.sh"

part "a machine, and a box in it"
want "up makes a machine and a box" "box [0-9a-f]+ runs" 0 "$FY" up
versions
want "up again is quick and changes nothing" "runs already" 0 "$FY" up
want "machine status" "running" 0 "$FY" machine status
want "a command in the box" "" 0 sh -c '"$FY" exec -- sh -c "pwd; id; env; cat src/file; echo written > src/made" > "$DIR/in-box"'
want "it runs at the repo's own path" "^$DIR/app\$" 0 cat "$DIR/in-box"
want "the repo is there, and the box writes it" "^hello" 0 cat "$DIR/in-box"
want "what it wrote is the operator's" "^$(id -u) written" 0 sh -c 'echo "$(stat -c %u src/made) $(cat src/made)"'
want "the user is the operator's" "uid=$(id -u)" 0 cat "$DIR/in-box"
want "nothing of the operator's environment" "^IN_DEVBOX=1" 0 sh -c 'cat "$DIR/in-box"; ! grep -E "^(FY|DIR|HERE|SEEN|IMAGE)=" "$DIR/in-box"'
want "exit status" "" 7 "$FY" exec -- sh -c 'exit 7'
want "no such command" "no such file" 127 "$FY" exec -- no-such-command

part "grants, live"
want "refused by name, and says how to permit it" "fy allow allowed.test" 0 "$FY" exec -- curl -s http://allowed.test/
want "granted" "" 0 "$FY" allow allowed.test
want "reached by http, and by https, decrypted on the way" "^origin speaks, origin speaks" 0 "$FY" exec -- sh -c 'echo $(curl -s http://allowed.test/), $(curl -s https://allowed.test/)'
want "the token stays here" "^0\$" 0 seen leaked
want "revoked" "" 0 "$FY" revoke allowed.test
want "refused again" "not granted" 0 "$FY" exec -- curl -s http://allowed.test/

part "the battery"
want "root in the machine is not held by this ring: the world, and the host's loopback" "^reached 1.1.1.1/443 reached 192.168.5.2/4999" 0 rooted
want "both were seen to arrive" "^[2-9]" 0 seen '::ffff:1.1.1.1|^loop'
: > "$SEEN"
want "fy verify passes" "^verdict pass" 0 battery "$DIR/verify.json"
want "from the VM's user: IPv6 neighbours, ARP, routes, rules, units" "^reached: control;" 0 place user held
want "from a container that podman runs in a container" "^reached: control;" 0 place nested held
want "nothing of it reached the world, or the host's loopback" "^0\$" 0 seen 'tcp|udp|loop'
want "the label" "locked against the VM's user and containers, not VM root" 0 "$FY" status
want "the battery of examples/lima-firewall reaches nothing" "^0 reached" 0 example
want "a one-shot box" "once" 0 "$FY" run -- echo once

part "what the box may write changes no wall"
want "the box asks for a machine without a firewall" "" 0 "$FY" exec -- sh -c 'sed "s/firewall = true/firewall = false/" foldyard.toml > new; cat new > foldyard.toml; rm new; mkdir -p .lima; echo "#!/bin/sh" > .lima/boot.sh'
want "it is not adopted" "differs from what was adopted" 0 "$FY" up

part "the supervisor is killed"
was=$(pid)
want "kill -9" "" 0 kill -9 "$was"
want "a command in the box starts another, which takes the box back" "^$DIR/app\$" 0 "$FY" exec -- pwd
want "it is another" "" 0 test "$(pid)" != "$was"
want "grants hold again" "not granted" 0 "$FY" exec -- curl -s http://allowed.test/

part "the machine is reset"
boot=$(guest cat /proc/sys/kernel/random/boot_id)
want "reset" "ok" 0 python3 "$HERE/qmp.py" "$FOLDYARD_HOME/lima/fy-vm/qmp.sock" system_reset
want "it boots, and reports" "^boot" 0 waits "$boot"
want "up makes a box in it" "box [0-9a-f]+ runs" 0 "$FY" up
want "the box works" "hello" 0 "$FY" exec -- cat src/file
want "from the VM's user: still held" "^reached: control;" 0 place user held

part "limactl is killed, and QEMU runs on"
want "kill -9" "" 0 kill -9 "$(cat "$FOLDYARD_HOME/lima/fy-vm/ha.pid")"
want "machine status answers" "^machine +(running|broken)" 0 "$FY" machine status
want "up mends it" "box [0-9a-f]+ runs" 0 "$FY" up
want "the box works, and is refused as before" "hello.*not granted" 0 "$FY" exec -- sh -c 'echo $(cat src/file) $(curl -s http://allowed.test/)'
want "the firewall's unit was active before the network" "^before\$" 0 guest \
  'set -- $(systemctl show -p ActiveEnterTimestampMonotonic --value foldyard-firewall.service systemd-networkd.service | grep .); if [ "$1" -gt 0 ] && [ "$1" -lt "$2" ]; then echo before; else echo "after: $*"; fi'
want "the firewall is on, whatever the repo says" "^firewall on" 0 guest cat /run/foldyard/report
want "from the VM's user: still held" "^reached: control;" 0 place user held

part "another fy with another boot script, and another band of ports"
want "down" "ended" 0 "$FY" down
want "nothing runs" "stopped" 0 "$FY" machine status
want "the supervisor ends" "" 0 "$FY" supervisor stop
sed -i 's/21000/21600/' "$FOLDYARD_HOME/ports.json"
export FY=$FY2
config true
want "up says so, and makes it" "box [0-9a-f]+ runs" 0 "$FY" up
want "the other script ran" "^== upgraded" 0 guest cat /run/foldyard/boot.log
want "the way out is on the other band" "@192.168.5.2:21600" 0 "$FY" exec -- sh -c 'echo $http_proxy'
rooted > /dev/null
: > "$SEEN"
want "fy verify passes" "^verdict pass" 0 battery "$DIR/verify-2.json"
want "nothing of it reached the world, or the host's loopback" "^0\$" 0 seen 'tcp|udp|loop'

part "QEMU is killed, and the negative control: the same machine without its firewall"
want "kill -9" "" 0 kill -9 "$(cat "$FOLDYARD_HOME/lima/fy-vm/qemu.pid")"
want "a command says that no box runs" "fy up|box ended|no box" 125 "$FY" exec -- true
config false
want "up mends it, and makes it without the firewall" "box [0-9a-f]+ runs\$" 0 "$FY" up
: > "$SEEN"
want "fy verify fails" "^verdict fail" 1 battery "$DIR/verify-off.json"
want "its rows over IPv6 and ICMP are refused by the firewall, not by the lab" "all reached" 0 open "$DIR/verify-off.json" \
  user-tcp6-443 user-tcp6-22 user-gateway-loopback6 user-link-local-icmp6 user-icmp4 box-tcp4-443 box-gateway-loopback host-net-tcp6-443
want "the probes of this test reach what they must not" "world-443" 0 place user open
want "from a container in a container too" "world-443" 0 place nested open
want "the battery of examples/lima-firewall reaches the world" "^[1-9][0-9]* reached" 0 example
want "it was seen to arrive" "^[1-9]" 0 seen '::ffff:1.1.1.1|^loop'
want "no label" "cooperative" 0 "$FY" status

part "the end"
want "removed" "removed" 0 "$FY" machine rm
want "the supervisor ends" "" 0 "$FY" supervisor stop
want "no QEMU, limactl or supervisor is left" "^left: none" 0 left
say ""
say "vm e2e: $passed passed, $failed failed, $((SECONDS - began)) s"
[ "$failed" = 0 ]
