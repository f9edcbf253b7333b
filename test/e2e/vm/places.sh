#!/bin/bash
# places.sh PLACE: run in the machine, as its user: the probe verb with ~/plan.json, from PLACE.
set -eu
cd
fy=$(ls -t /opt/foldyard/fy-* | head -n 1)
image=localhost/lab-nested
# A container whose programs are the machine's own, podman among them.
outer() {
  if ! podman image exists $image; then
    mkdir -p lab-base/{usr,etc,opt,proc,sys,dev,run,tmp,root,inner,var/tmp,var/lib}
    for link in bin sbin lib lib64; do ln -sfn usr/$link lab-base/$link; done
    echo root:x:0:0:root:/root:/bin/sh > lab-base/etc/passwd
    tar -C lab-base -c . | podman import --quiet - $image > /dev/null
  fi
  mkdir -p lab-inner/{proc,sys,dev,run,tmp,etc}
  cp -f "$fy" lab-inner/fy
  podman run --rm --interactive --privileged --pull=never --log-driver=none --security-opt=label=disable --volume=/usr:/usr:ro \
    --volume=/etc/containers:/etc/containers:ro --volume=/etc/alternatives:/etc/alternatives:ro --volume="$PWD/lab-inner:/inner" "$@"
}
case $1 in
user) exec "$fy" __vmprobe < plan.json ;;
nested)
  outer --network=host $image podman --storage-driver=vfs --cgroup-manager=cgroupfs --events-backend=file run --rm --interactive \
    --cgroups=disabled --network=host --security-opt=label=disable --rootfs /inner /fy __vmprobe < plan.json ;;
esac
