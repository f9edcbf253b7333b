#!/bin/bash
# image.sh DIR [lab]: DIR/rootfs.tar as DIR/guest.qcow2, with DIR/vmlinuz and DIR/initrd.img to boot it with. A small service
# stands in for cloud-init: it reads what Lima hands over, and is faster under emulation. Needs qemu-img, mke2fs, root. For the lab, root in it
# tries its own way out at each boot.
set -euo pipefail
lab=${2:-}
stamp=$(cat "$(dirname "$0")/rootfs.sh" "$0" <(echo "$lab") | sha256sum | cut -d' ' -f1)
cd "$1"
if [ "$(cat guest.stamp 2> /dev/null)" = "$stamp" ] && [ -s guest.qcow2 ] && [ -s vmlinuz ] && [ -s initrd.img ]; then exit 0; fi
rm -rf root
mkdir root
trap 'rm -rf root new.raw' EXIT
tar -xpf rootfs.tar -C root --numeric-owner --xattrs
echo guest > root/etc/hostname
echo '127.0.0.1 localhost guest' > root/etc/hosts
echo 'LABEL=rootfs / ext4 defaults,noatime 0 0' > root/etc/fstab
chroot root systemctl enable systemd-networkd systemd-resolved > /dev/null 2>&1
ln -sf ../run/systemd/resolve/stub-resolv.conf root/etc/resolv.conf
printf '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' > root/etc/containers/storage.conf
printf 'overlay\nnf_tables\nnft_reject_inet\nnft_chain_nat\n9pnet_virtio\n9p\n' > root/etc/modules-load.d/guest.conf
chroot root systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_reap.service e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
  systemd-networkd-wait-online.service getty@tty1.service podman-auto-update.service podman-auto-update.timer podman-restart.service \
  systemd-binfmt.service systemd-pstore.service modprobe@efi_pstore.service modprobe@drm.service modprobe@dm_mod.service > /dev/null 2>&1 || true
printf 'UseDNS no\nGSSAPIAuthentication no\n' > root/etc/ssh/sshd_config.d/fast.conf
sed -i 's/^session.*pam_motd.*/#&/; s/^session.*pam_mail.*/#&/' root/etc/pam.d/sshd
rm -f root/etc/ssh/ssh_host_*
chroot root ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
echo 'HostKey /etc/ssh/ssh_host_ed25519_key' >> root/etc/ssh/sshd_config.d/fast.conf
cat > root/etc/systemd/network/10-eth0.network <<'N'
[Match]
Name=eth0
[Network]
DHCP=ipv4
LinkLocalAddressing=ipv6
IPv6AcceptRA=yes
[IPv6AcceptRA]
UseDNS=no
N
install -m 755 /dev/stdin root/usr/local/sbin/lima-init <<'S'
#!/bin/sh
# Stands in for cloud-init: user, ssh keys, mounts, and the hosts' names, from Lima's cidata disk.
set -eu
export LIMA_CIDATA_MNT=/mnt/lima-cidata
mkdir -p -m 700 $LIMA_CIDATA_MNT
mount -o ro,mode=0700,dmode=0700,overriderockperm,exec,uid=0 /dev/disk/by-label/cidata $LIMA_CIDATA_MNT
while read -r l; do case "$l" in LIMA_CIDATA_*) export "${l?}";; esac; done < $LIMA_CIDATA_MNT/lima.env
if ! id "$LIMA_CIDATA_USER" >/dev/null 2>&1; then
  groupadd -g "$LIMA_CIDATA_UID" "$LIMA_CIDATA_USER" || true
  useradd -u "$LIMA_CIDATA_UID" -g "$LIMA_CIDATA_USER" -m -d "$LIMA_CIDATA_HOME" -s /bin/bash "$LIMA_CIDATA_USER"
fi
# As cloud-init does: written anew at each boot.
echo "$LIMA_CIDATA_USER ALL=(ALL) NOPASSWD:ALL" > /etc/sudoers.d/90-cloud-init-users
chmod 440 /etc/sudoers.d/90-cloud-init-users
S="$LIMA_CIDATA_HOME/.ssh"
mkdir -p -m 700 "$S"
sed -n '/ssh-authorized-keys:/,/^[a-z]/s/^ *- "\(.*\)"$/\1/p' $LIMA_CIDATA_MNT/user-data > "$S/authorized_keys"
chown -R "$LIMA_CIDATA_USER:" "$S"
chmod 600 "$S/authorized_keys"
hostname "$(sed -n 's/^local-hostname: *//p' $LIMA_CIDATA_MNT/meta-data)" || true
resize2fs "$(findmnt -no SOURCE /)" || true
sed -n '/^mounts:/,/^[a-z]/s/^ *- \[\([^,]*\), \([^,]*\), \([^,]*\), "\([^"]*\)".*/\1\t\2\t\3\t\4/p' $LIMA_CIDATA_MNT/user-data |
while IFS="$(printf '\t')" read -r tag at kind options; do
  at=$(echo "$at" | sed 's/^"//; s/"$//')
  mkdir -p "$at"
  mount -t "$kind" -o "$(echo "$options" | sed 's/,*nofail//; s/,*comment=[^,]*//; s/^,//')" "$tag" "$at"
done
S
install -m 755 /dev/stdin root/usr/local/sbin/lima-boot <<'S'
#!/bin/sh
export LIMA_CIDATA_MNT=/mnt/lima-cidata
exec $LIMA_CIDATA_MNT/boot.sh
S
cat > root/etc/systemd/system/lima-init.service <<'U'
[Unit]
Before=ssh.service systemd-user-sessions.service
After=local-fs.target dev-disk-by\x2dlabel-cidata.device
Wants=dev-disk-by\x2dlabel-cidata.device
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/lima-init
StandardOutput=journal+console
StandardError=journal+console
[Install]
WantedBy=multi-user.target
U
cat > root/etc/systemd/system/lima-boot.service <<'U'
[Unit]
After=lima-init.service network-online.target systemd-user-sessions.service dbus.service
Requires=lima-init.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/lima-boot
StandardOutput=append:/var/log/cloud-init-output.log
StandardError=append:/var/log/cloud-init-output.log
[Install]
WantedBy=multi-user.target
U
# Root's own way out, tried once a boot, in the lab only: the firewall does not hold root, and the test shows that it does not.
install -m 755 /dev/stdin root/usr/local/sbin/lab-root << 'S'
#!/bin/bash
for at in 1.1.1.1/443 192.168.5.2/4999; do
  if timeout 10 bash -c "exec 3<>/dev/tcp/$at" 2> /dev/null; then echo "reached $at"; else echo "refused $at"; fi
done > /run/lab-root
S
cat > root/etc/systemd/system/lab-root.service <<'U'
[Unit]
After=lima-boot.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/lab-root
[Install]
WantedBy=multi-user.target
U
chroot root systemctl enable lima-init lima-boot ${lab:+lab-root} > /dev/null 2>&1
# Few authorities and few drivers: each of them costs an emulated boot its time.
sed -i '12,$s/^[^#!]/!&/' root/etc/ca-certificates.conf
chroot root update-ca-certificates --fresh > /dev/null 2>&1
printf 'MODULES=list\nCOMPRESS=zstd\n' > root/etc/initramfs-tools/conf.d/guest
printf 'virtio_pci\nvirtio_blk\nvirtio_scsi\ncrc32c_generic\next4\n' > root/etc/initramfs-tools/modules
chroot root update-initramfs -u > /dev/null 2>&1
cp root/boot/vmlinuz-* vmlinuz
cp root/boot/initrd.img-* initrd.img
rm -rf root/boot/* root/usr/share/doc root/usr/share/man root/usr/share/locale root/var/cache/apt/* root/var/lib/apt/lists/*
truncate -s 4G new.raw
mke2fs -q -F -t ext4 -L rootfs -d root new.raw
qemu-img convert -O qcow2 -c -o compression_type=zstd new.raw new.qcow2
chmod a+r new.qcow2 vmlinuz initrd.img
mv new.qcow2 guest.qcow2
sha256sum guest.qcow2 | tee guest.sha256
echo "$stamp" > guest.stamp
