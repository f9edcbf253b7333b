#!/bin/bash
# What an ordinary user of a VM can reach. GATEWAY is the host as the VM sees it; WAY, if set, the port that may be reached there.
gateway=${GATEWAY:-192.168.5.2}
way=${WAY:-}
try() { # try NAME HOST PORT
  if timeout 5 bash -c "exec 3<>/dev/tcp/$2/$3" 2> /dev/null; then printf '%-9s %s\n' reached "$1"; else printf '%-9s %s\n' refused "$1"; fi
}
[ -z "$way" ] || try "the way out, $gateway:$way" "$gateway" "$way"
try "the world, TCP 443" 1.1.1.1 443
try "the world, TCP 80" 1.1.1.1 80
try "the world, DNS over TLS" 1.1.1.1 853
try "the world, IPv6" 2606:4700:4700::1111 443
for port in 22 80 111 443 631 3000 5432 8080; do try "the host's port $port" "$gateway" "$port"; done
try "a cloud's metadata" 169.254.169.254 80
if timeout 5 ping -c 1 -W 2 1.1.1.1 > /dev/null 2>&1; then echo "reached   the world, ping"; else echo "refused   the world, ping"; fi
if sudo -n true 2> /dev/null; then echo "reached   root, by sudo"; else echo "refused   root, by sudo"; fi
if [ -S /run/lima-guestagent.sock ]; then
  echo "note      /run/lima-guestagent.sock is there: root's agent connects to what it is asked to, unless its service has no IP sockets"
fi
