#!/bin/bash
# lima.sh DIR: limactl and its guest agent from their Go module, as DIR/bin/limactl and DIR/share/lima.
set -euo pipefail
dir=$1
[ -x "$dir/bin/limactl" ] && [ -s "$dir/share/lima/lima-guestagent.Linux-x86_64" ] && exit 0
cd "$(dirname "$0")/../../../tools/lima"
mkdir -p "$dir/bin" "$dir/share/lima"
export CGO_ENABLED=0
version=$(go list -m -f '{{.Version}}' github.com/lima-vm/lima/v2)
flags="-s -w -X github.com/lima-vm/lima/v2/pkg/version.Version=${version#v}"
go build -trimpath -ldflags "$flags" -o "$dir/bin/limactl" github.com/lima-vm/lima/v2/cmd/limactl
go build -trimpath -ldflags "$flags" -o "$dir/share/lima/lima-guestagent.Linux-x86_64" github.com/lima-vm/lima/v2/cmd/lima-guestagent
cp -r "$(go list -m -f '{{.Dir}}' github.com/lima-vm/lima/v2)/templates" "$dir/share/lima/"
chmod -R u+w,a+rX "$dir"
