#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest, or on a machine with an RDMA device: measures all-to-alls over transport verbs and over Open MPI with UCX,
# alternating, and the device by perftest. Times in the guest are only meaningful relative to each other.
# Usage: tools/rdma_guest/measure.sh BUILD_DIR [DEVICE [GID_INDEX]]   (default: rxe0 and 2, the fd00:: address)
# Prints the points of both programs as JSON lines, then a line of ib_write_lat and one of ib_write_bw.
set -uo pipefail
programs=${1:?usage: tools/rdma_guest/measure.sh BUILD_DIR [DEVICE [GID_INDEX]]}/benchmarks/all_to_all
device=${2:-rxe0} gid=${3:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -z "${IN_RDMA_GUEST:-}" ] || tools/rdma_guest/network.sh one || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export UCX_NET_DEVICES=$device:1 UCX_TLS=rc,self UCX_IB_GID_INDEX=$gid

# headway RANKS SIZES CALLS [--registered] and openmpi RANKS SIZES CALLS measure one program. UCX caches registrations.
headway() {
  timeout 100 "$programs/bench_all_to_all_headway" --ranks "$1" --transport verbs --sizes "$2" --repetitions "$3" "${@:4}"
}
openmpi() {
  rm -rf "$work/store" && mkdir "$work/store"
  timeout 100 mpirun --oversubscribe -n "$1" --bind-to none --mca pml ucx --mca mpi_yield_when_idle 1 \
    "$programs/bench_all_to_all_mpi" --store "$work/store" --sizes "$2" --repetitions "$3"
}
# in_turns RANKS SIZES CALLS: measures both programs.
in_turns() {
  headway "$@"
  headway "$@" --registered
  openmpi "$@"
}
# perftest PROGRAM BYTES: runs server and client of a perftest program on one device.
perftest() {
  "$1" -d "$device" -x "$gid" -s "$2" -n 2000 >/dev/null 2>&1 &
  sleep 1
  "$1" -d "$device" -x "$gid" -s "$2" -n 2000 localhost 2>&1 | grep -E "^ *$2 " | sed "s/^/$1: /"
  wait
}

# The first calls of a program are slow, for 0.1 to 0.2 s, because the emulator translates their code.
for _ in 1 2 3; do
  for ranks in 2 4; do
    in_turns $ranks 8,64,512,4096 $((20000 / ranks))
    in_turns $ranks 32768 $((4000 / ranks))
    in_turns $ranks 262144,1048576 $((200 / ranks))
  done
done
perftest ib_write_lat 8
perftest ib_write_bw 65536
