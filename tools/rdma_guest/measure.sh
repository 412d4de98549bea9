#!/usr/bin/env bash
# In the guest, or on a machine with an RDMA device: all-to-alls by engine verbs and by Open MPI over UCX, in turns, and what
# perftest measures of the device. Times in the guest mean something only beside each other.
# Usage: tools/rdma_guest/measure.sh BUILD_DIR [DEVICE [GID_INDEX]]   (default: rxe0 and 2, the fd00:: address)
# Prints the points of both programs as JSON lines, then a line of ib_write_lat and one of ib_write_bw.
set -uo pipefail
programs=${1:?usage: tools/rdma_guest/measure.sh BUILD_DIR [DEVICE [GID_INDEX]]}/benchmarks/all_to_all
device=${2:-rxe0} gid=${3:-2}
readonly sizes=8,64,512,4096,32768,262144,1048576
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -z "${IN_RDMA_GUEST:-}" ] || tools/rdma_guest/network.sh one || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export UCX_NET_DEVICES=$device:1 UCX_TLS=rc,self UCX_IB_GID_INDEX=$gid

# headway RANKS CALLS [--registered], openmpi RANKS CALLS; UCX keeps registered what it has seen.
headway() {
  timeout 100 "$programs/bench_all_to_all_headway" --ranks "$1" --engine verbs --sizes $sizes --repetitions "$2" "${@:3}"
}
openmpi() {
  rm -rf "$work/store" && mkdir "$work/store"
  timeout 100 mpirun --oversubscribe -n "$1" --bind-to none --mca pml ucx --mca mpi_yield_when_idle 1 \
    "$programs/bench_all_to_all_mpi" --store "$work/store" --sizes $sizes --repetitions "$2"
}
# perftest PROGRAM BYTES: its server and its client on one device.
perftest() {
  "$1" -d "$device" -x "$gid" -s "$2" -n 2000 >/dev/null 2>&1 &
  sleep 1
  "$1" -d "$device" -x "$gid" -s "$2" -n 2000 localhost 2>&1 | grep -E "^ *$2 " | sed "s/^/$1: /"
  wait
}

for _ in 1 2 3; do headway 2 200; headway 2 200 --registered; openmpi 2 200; done
for _ in 1 2; do headway 4 60; headway 4 60 --registered; openmpi 4 60; done
perftest ib_write_lat 8
perftest ib_write_bw 65536
