#!/bin/sh
# foldyard's boot script: what happens as root in this machine, at every boot.
# It is recorded in the machine's own configuration. Its report comes last:
# where it stops before that, the machine is not used.
set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
rm -rf /run/foldyard
mkdir -m 755 /run/foldyard
exec >/run/foldyard/boot.log 2>&1
STEP=start
trap 'rc=$?; if [ "$rc" -ne 0 ]; then echo "stopped at: $STEP (exit $rc)"; fi' EXIT
step() { STEP=$1; read -r NOW _ </proc/uptime; echo "== $1, $NOW s after the kernel"; }
fail() { echo "$*"; exit 1; }
# put PATH replaces a file by its standard input, in one step, if it differs.
put() {
	mkdir -p "$(dirname "$1")"
	cat >"$1.foldyard-new"
	if cmp -s "$1.foldyard-new" "$1"; then rm -f "$1.foldyard-new"; return 0; fi
	mv -f "$1.foldyard-new" "$1"
	CHANGED=1
}

step user
[ "$(id -u 'fy')" = '1000' ] || fail "user fy has not the id 1000"
for f in /etc/subuid /etc/subgid; do
	touch "$f"
	grep -qE '^(fy|1000):' "$f" || echo 'fy:524288:65536' >>"$f"
done
WALLED='1000, 1000-4294967294'
for range in $(awk -F: '$1 == "fy" || $1 == "1000" { if ($2 + 0 > 0 && $3 + 0 > 0) printf "%d-%d\n", $2, $2 + $3 - 1 }' /etc/subuid); do
	WALLED="$WALLED, $range"
done
IN=" $(id -nG 'fy') "
for group in sudo wheel admin adm disk docker lxd libvirt kvm systemd-journal; do
	case $IN in *" $group "*) gpasswd -d 'fy' "$group" || true ;; esac
done

step packages
# Whatever the image fetches by itself it would fetch past the proxy.
for timer in apt-daily.timer apt-daily-upgrade.timer dnf-makecache.timer dnf5-makecache.timer; do
	if [ -e "/usr/lib/systemd/system/$timer" ] && [ ! -L "/etc/systemd/system/$timer" ]; then systemctl mask --now "$timer" || true; fi
done
# A distribution's own image gets here what it lacks, once, before anybody but root does anything in this machine.
missing() {
	for program in nft podman newuidmap newgidmap sudo; do
		command -v "$program" >/dev/null || printf '%s ' "$program"
	done
	command -v slirp4netns >/dev/null || command -v pasta >/dev/null || printf 'slirp4netns '
}
MISSING=$(missing)
if [ -n "$MISSING" ]; then
	if [ -e /etc/foldyard/firewall.nft ]; then fail "this VM has no $MISSING and is behind its firewall already"; fi
	echo "fetches what the image lacks: $MISSING"
	if command -v apt-get >/dev/null; then
		export DEBIAN_FRONTEND=noninteractive
		APT='-q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 -o Acquire::http::Timeout=60'
		apt-get $APT update || fail "apt-get update failed, and this image has no $MISSING"
		apt-get $APT install --no-install-recommends nftables podman uidmap slirp4netns passt fuse-overlayfs crun netavark aardvark-dns \
			catatonit dbus-user-session sudo ca-certificates || fail "apt-get install failed, and this image has no $MISSING"
		apt-get clean
	elif command -v dnf >/dev/null; then
		dnf -y install nftables podman shadow-utils passt sudo ca-certificates || fail "dnf install failed, and this image has no $MISSING"
	else
		fail "this image has no $MISSING, and neither apt-get nor dnf"
	fi
	MISSING=$(missing)
	if [ -n "$MISSING" ]; then fail "this image still has no $MISSING"; fi
fi

step firewall
CHANGED=
if [ 'on' = on ]; then
	[ -x /usr/sbin/nft ] || fail 'this image has no /usr/sbin/nft: install nftables in it'
	command -v systemctl >/dev/null || fail 'this image has no systemd'
	mkdir -p /etc/foldyard
	cat >/run/foldyard/template.nft <<'FY_END'
# foldyard's VM firewall. It is replaced whole, in one transaction.
add table inet foldyard
delete table inet foldyard
table inet foldyard {
	# The VM's user, its subordinate ids, and every id that is no system account's.
	set walled {
		type uid
		flags interval
		auto-merge
		elements = { @WALLED@ }
	}

	# Whoever asks for a name asks us: no resolver of the guest carries data out.
	chain names {
		type nat hook output priority -100; policy accept;
		oifname != "lo" meta nfproto ipv4 meta l4proto { tcp, udp } th dport 53 dnat ip to 192.168.5.2:41001
	}

	chain output {
		type filter hook output priority filter; policy accept;
		oifname "lo" accept
		ct state established accept
		ct state related meta l4proto { icmp, ipv6-icmp } accept
		ip daddr 192.168.5.2 meta l4proto { tcp, udp } th dport 41001 accept
		meta l4proto { tcp, udp } th dport { 53, 853, 5353, 5355 } goto refuse
		meta skuid @walled goto walled
		meta skuid 0-4294967295 accept
		# No owner: the kernel itself. It may reset and find its neighbours, no more.
		tcp flags & (syn | rst) == rst accept
		meta l4proto ipv6-icmp icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, mld2-listener-report } accept
		goto refuse
	}

	chain walled {
		ip daddr 192.168.5.2 tcp dport 41000-41099 accept
		goto refuse
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state established accept
		ct state related meta l4proto { icmp, ipv6-icmp } accept
		ip daddr 192.168.5.2 tcp dport 41000-41099 accept
		goto refuse
	}

	chain refuse {
		limit rate 30/minute burst 30 packets log prefix "foldyard-deny " level info
		counter
		meta l4proto tcp reject with tcp reset
		reject with icmpx admin-prohibited
	}
}
FY_END
	sed "s/@WALLED@/$WALLED/" /run/foldyard/template.nft >/run/foldyard/firewall.nft
	/usr/sbin/nft -c -f /run/foldyard/firewall.nft
	put /etc/foldyard/firewall.nft </run/foldyard/firewall.nft
put /etc/systemd/system/atd.service.d/10-foldyard.conf <<'FY_END'
[Unit]
Requires=foldyard-firewall.service
After=foldyard-firewall.service
FY_END
put /etc/systemd/system/cron.service.d/10-foldyard.conf <<'FY_END'
[Unit]
Requires=foldyard-firewall.service
After=foldyard-firewall.service
FY_END
put /etc/systemd/system/crond.service.d/10-foldyard.conf <<'FY_END'
[Unit]
Requires=foldyard-firewall.service
After=foldyard-firewall.service
FY_END
put /etc/systemd/system/foldyard-firewall.service <<'FY_END'
[Unit]
Description=foldyard VM firewall
Documentation=man:nft(8)
DefaultDependencies=no
After=local-fs.target systemd-modules-load.service
Before=network-pre.target shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f /etc/foldyard/firewall.nft
ExecReload=/usr/sbin/nft -f /etc/foldyard/firewall.nft

[Install]
WantedBy=sysinit.target
FY_END
put /etc/systemd/system/user@.service.d/10-foldyard.conf <<'FY_END'
[Unit]
Requires=foldyard-firewall.service
After=foldyard-firewall.service
FY_END
	if [ -n "$CHANGED" ]; then systemctl daemon-reload; fi
	systemctl is-enabled --quiet foldyard-firewall.service || systemctl enable --no-reload foldyard-firewall.service
	/usr/sbin/nft -f /etc/foldyard/firewall.nft
	systemctl is-active --quiet foldyard-firewall.service || systemctl start foldyard-firewall.service
	/usr/sbin/nft list chain inet foldyard walled >/dev/null
else
	if command -v systemctl >/dev/null && [ -e /etc/systemd/system/foldyard-firewall.service ]; then
		systemctl disable foldyard-firewall.service || true
		rm -f /etc/systemd/system/foldyard-firewall.service /etc/systemd/system/*.d/10-foldyard.conf /etc/foldyard/firewall.nft
		systemctl daemon-reload
	fi
	if [ -x /usr/sbin/nft ] && /usr/sbin/nft list table inet foldyard >/dev/null 2>&1; then /usr/sbin/nft delete table inet foldyard; fi
fi

step names
if [ -d /etc/systemd ]; then
	CHANGED=
	put /etc/systemd/resolved.conf.d/foldyard.conf <<'FY_END'
[Resolve]
DNSOverTLS=no
DNSSEC=no
LLMNR=no
MulticastDNS=no
FY_END
	if [ -n "$CHANGED" ] && systemctl is-active --quiet systemd-resolved; then systemctl restart systemd-resolved; fi
fi

step sudo
if command -v sudo >/dev/null; then
	# It sorts last, and the last match decides: no file that is written at boot opens more, not for a moment.
	cat >/run/foldyard/sudoers <<'FY_END'
fy ALL=(ALL:ALL) !ALL
fy ALL=(root) NOPASSWD: /sbin/shutdown -h now, /usr/sbin/shutdown -h now
FY_END
	chmod 440 /run/foldyard/sudoers
	visudo -cqf /run/foldyard/sudoers
	rm -f /etc/sudoers.d/zzzz-foldyard.new
	install -m 440 /run/foldyard/sudoers /etc/sudoers.d/zzzz-foldyard.new.
	mv -f /etc/sudoers.d/zzzz-foldyard.new. /etc/sudoers.d/zzzz-foldyard
	visudo -cq
	if runuser -u 'fy' -- sudo -n true 2>/dev/null; then fail 'sudo is still open to fy'; fi
fi

step journal
if [ -d /etc/systemd ]; then
	CHANGED=
	put /etc/systemd/journald.conf.d/foldyard.conf <<'FY_END'
[Journal]
SystemMaxUse=256M
RuntimeMaxUse=64M
FY_END
	if [ -n "$CHANGED" ]; then systemctl try-restart systemd-journald || true; fi
fi

step certificate
mkdir -p /etc/foldyard
CHANGED=
put /etc/foldyard/ca.pem <<'FY_END'
-----BEGIN CERTIFICATE-----
MIIBGOLDEN
-----END CERTIFICATE-----
FY_END
if command -v update-ca-certificates >/dev/null; then
	put /usr/local/share/ca-certificates/foldyard.crt </etc/foldyard/ca.pem
	if [ -n "$CHANGED" ]; then update-ca-certificates >/dev/null; fi
elif command -v update-ca-trust >/dev/null; then
	put /etc/pki/ca-trust/source/anchors/foldyard.pem </etc/foldyard/ca.pem
	if [ -n "$CHANGED" ]; then update-ca-trust; fi
else
	fail 'this image has neither update-ca-certificates nor update-ca-trust'
fi
put /etc/containers/containers.conf.d/90-foldyard.conf <<'FY_END'
[containers]
volumes = ["/etc/foldyard/ca.pem:/etc/foldyard/ca.pem:ro"]
env = ["NODE_EXTRA_CA_CERTS=/etc/foldyard/ca.pem"]
FY_END

step agent
# Lima's guest agent runs as root, listens where the user can speak to it, and connects to whatever it is asked to.
CHANGED=
put /etc/systemd/system/lima-guestagent.service.d/10-foldyard.conf <<'FY_END'
[Service]
RestrictAddressFamilies=AF_UNIX AF_NETLINK
IPAddressDeny=any
FY_END
if [ -n "$CHANGED" ]; then
	systemctl daemon-reload
	systemctl try-restart lima-guestagent.service
fi
if [ "$(systemctl show -p LoadState --value lima-guestagent.service)" = loaded ]; then
	case "$(systemctl show -p RestrictAddressFamilies --value lima-guestagent.service)" in
	'' | *AF_INET* | *AF_PACKET* | '~'*) fail 'the guest agent can be asked to connect as root' ;;
	esac
fi

step engines
# One that is masked since an earlier boot was never started in this one. Each call has systemd read everything anew.
OPEN=
for unit in podman.socket podman.service docker.socket docker.service; do
	if [ "$(readlink "/etc/systemd/system/$unit")" != /dev/null ]; then
		ln -sfn /dev/null "/etc/systemd/system/$unit"
		OPEN="$OPEN $unit"
	fi
done
if [ -n "$OPEN" ]; then
	systemctl daemon-reload
	systemctl stop $OPEN >/dev/null 2>&1 || true
fi
rm -f /run/podman/podman.sock /run/docker.sock
[ -e '/var/lib/systemd/linger/fy' ] || loginctl enable-linger 'fy'

step report
{
	echo 'foldyard boot report 1'
	echo 'digest 70b4a8c56ce4a482c715fb5a7afedd0260cb9be0804641fc80c72d735741e7bf'
	echo 'firewall on'
	echo "walled $WALLED"
	echo "boot $(cat /proc/sys/kernel/random/boot_id)"
} >/run/foldyard/report.new
chmod 644 /run/foldyard/report.new
mv /run/foldyard/report.new /run/foldyard/report
