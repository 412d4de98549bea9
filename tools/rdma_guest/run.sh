#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs one command in the guest, in the current folder. The guest sees the files of this host; its changes are lost.
# Usage: tools/rdma_guest/run.sh [--memory SIZE] [--limit SECONDS] [--cpu MODEL] COMMAND [ARGUMENT...]
#   --memory  memory of the guest (default: 2G)
#   --limit   seconds after which the guest is killed (default: 480)
#   --cpu     CPU model of QEMU (default: Nehalem, which is fast); torch needs AVX and therefore max
# Prints the output of the command as it comes. Exit status: that of the command; 124 after the time limit; 125 if the
# guest ended without a status (a panic; the console is printed); 77 if this host cannot run the guest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
readonly guest=$here/../../build-rdma-guest

memory=2G limit_s=480 cpu=Nehalem
while [ $# -gt 0 ]; do
  case $1 in
    --memory) memory=$2; shift 2 ;;
    --limit) limit_s=$2; shift 2 ;;
    --cpu) cpu=$2; shift 2 ;;
    -*) echo "usage: tools/rdma_guest/run.sh [--memory SIZE] [--limit SECONDS] [--cpu MODEL] COMMAND [ARGUMENT...]" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { echo "rdma guest: no command" >&2; exit 2; }

"$here/build.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  printf 'export PATH=%q HOME=/root TERM=dumb IN_RDMA_GUEST=1\n' "$PATH:/usr/sbin:/sbin"
  printf 'cd %q || exit 126\n' "$PWD"
  printf '%q ' "$@"
} >"$work/command"
: >"$work/output"

cores=$(nproc)
tail -n +1 -f --pid=$$ "$work/output" &
viewer=$!
status=0
timeout --kill-after=5 "$limit_s" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu "$cpu" \
  -smp $((cores < 4 ? cores : 4)) -m "$memory" -nodefaults -no-user-config -no-reboot -display none \
  -serial "file:$work/console" -kernel "$guest/vmlinux" -initrd "$guest/initrd.gz" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 apparmor=0 nowatchdog cryptomgr.notests no_timer_check" \
  -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=host,mount_tag=host \
  -fsdev "local,id=out,path=$work,security_model=none" -device virtio-9p-pci,fsdev=out,mount_tag=out || status=$?
sleep 0.3
kill "$viewer" 2>/dev/null || true
wait "$viewer" 2>/dev/null || true
if [ -s "$work/status" ]; then exit "$(cat "$work/status")"; fi
tail -20 "$work/console" >&2 || true
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
  echo "rdma guest: ended at its limit of $limit_s s" >&2
  exit 124
fi
echo "rdma guest: ended without a status (QEMU: $status)" >&2
exit 125
