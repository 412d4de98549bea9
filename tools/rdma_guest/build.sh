#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Makes what the guest boots: build-rdma-guest/vmlinux and initrd.gz. Does nothing if they are newer than this folder.
# Usage: tools/rdma_guest/build.sh
# The kernel is Debian's generic one, downloaded and unpacked, not installed. Exits with 77 where something needed cannot
# be had, after one line that says what.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

readonly out=$PWD/build-rdma-guest
readonly packages=(qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 rdma-core ibverbs-utils ibverbs-providers
  libibverbs-dev)
# In the order in which they are loaded; what they depend on is loaded before them.
readonly modules=(virtio_pci 9p 9pnet_virtio overlay crc32_generic rdma_rxe ib_uverbs rdma_ucm veth dummy sch_netem)

say() { printf 'rdma guest: %s\n' "$*"; }
skip() {
  say "skipped: $*"
  exit 77
}

apt_get() {
  if [ "$(id -u)" = 0 ]; then apt-get -q "$@"; else sudo -n apt-get -q "$@"; fi
}

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  say "installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt_get install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    skip "${missing[*]} could not be installed (as root: apt-get install ${missing[*]})"
}

fetch_kernel() {
  local package
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
  [ -n "$package" ] || skip "apt knows no linux-image-amd64"
  say "fetching $package (70 MB)"
  rm -rf "$out/kernel" && mkdir -p "$out/kernel"
  (cd "$out/kernel" && apt-get -q download "$package" >/dev/null 2>&1) || skip "$package could not be downloaded"
  dpkg-deb -x "$out"/kernel/*.deb "$out/kernel"
  rm "$out"/kernel/*.deb
}

# The payload of a bzImage, as its header names it, is the compressed vmlinux: booting that saves unpacking in the guest.
extract_vmlinux() {
  python3 - "$1" "$2" <<'PYTHON'
import lzma, struct, sys

image = open(sys.argv[1], "rb").read()
setup_bytes = ((image[0x1F1] or 4) + 1) * 512
offset, length = struct.unpack_from("<II", image, 0x248)
payload = image[setup_bytes + offset : setup_bytes + offset + length]
if not payload.startswith(b"\xfd7zXZ\x00"):
    sys.exit("the kernel is not compressed with xz")
open(sys.argv[2], "wb").write(lzma.LZMADecompressor().decompress(payload))
PYTHON
}

make_initrd() {
  local version root=$out/initrd file
  version=$(basename "$out"/kernel/lib/modules/*)
  rm -rf "$root" && mkdir -p "$root"/{bin,modules}
  cp "$(command -v busybox)" "$root/bin/busybox"
  install -m 755 "$here/init" "$root/init"
  depmod -b "$out/kernel" "$version"
  for module in "${modules[@]}"; do
    modprobe -d "$out/kernel" -S "$version" --show-depends "$module" || skip "the kernel has no module $module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$out/modules.txt"
  while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file"
  done <"$out/modules.txt" >"$root/modules/order"
  (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$out/initrd.gz"
  rm -rf "$root"
}

is_current() {
  [ -s "$out/vmlinux" ] && [ -s "$out/initrd.gz" ] && [ -z "$(find "$here" -newer "$out/initrd.gz" -type f \
    \( -name build.sh -o -name init \))" ]
}

[ "$(uname -m)" = x86_64 ] || skip "the guest is for x86_64 hosts"
command -v apt-get >/dev/null || skip "this host has no apt-get"
is_current && exit 0
mkdir -p "$out"
install_packages
[ -s "$out/vmlinux" ] || {
  fetch_kernel
  extract_vmlinux "$out"/kernel/boot/vmlinuz-* "$out/vmlinux"
}
make_initrd
say "built $out/vmlinux and initrd.gz ($(du -h "$out/initrd.gz" | cut -f1))"
