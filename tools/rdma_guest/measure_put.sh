#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest, or on a machine with an RDMA device: measures puts of transport verbs and of plain libibverbs in one
# program, and the device by perftest between its runs. Times in the guest are only meaningful relative to each other.
# Usage: tools/rdma_guest/measure_put.sh BUILD_DIR [DEVICE [GID_INDEX]]   (default: rxe0 and 2, the fd00:: address)
# Prints JSON lines. Environment: REPEATS is the number of runs (3), ROUNDS the turns of each system in a run (40).
set -uo pipefail
program=${1:?usage: tools/rdma_guest/measure_put.sh BUILD_DIR [DEVICE [GID_INDEX]]}/benchmarks/put/bench_put
device=${2:-rxe0} gid=${3:-2}
repeats=${REPEATS:-3} rounds=${ROUNDS:-40}
[ -z "${IN_RDMA_GUEST:-}" ] || tools/rdma_guest/network.sh one || exit 1

# bench MODE SIZES CALLS [ROUNDS]: runs the put benchmark.
bench() {
  timeout 150 "$program" --device "$device:1:$gid" --bind --rounds "${4:-$rounds}" --mode "$1" --sizes "$2" --calls "$3"
}
# perftest PROGRAM BYTES: runs both ends on one device; prints the result line of the client.
perftest() {
  timeout 60 "$1" -d "$device" -x "$gid" -s "$2" -n 2000 >/dev/null 2>&1 &
  local line=
  for _ in 1 2 3 4 5; do
    sleep 1  # The server needs some time until it listens.
    line=$(timeout 60 "$1" -d "$device" -x "$gid" -s "$2" -n 2000 localhost 2>/dev/null | grep -E "^ *$2 ") && break
  done
  echo "$line"
  wait
}
# point NAME SYSTEM BYTES SECONDS: prints a JSON line with seconds per message. Empty SECONDS: perftest gave no result.
point() {
  if [ -z "$4" ]; then
    echo "no figure of $2: is Debian's package perftest installed?" >&2
    return
  fi
  awk -v name="$1" -v system_name="$2" -v bytes="$3" -v seconds="$4" -v device="$device:1:$gid" 'BEGIN {
    printf "{\"name\": \"%s\", \"params\": {\"ranks\": 2, \"size_bytes\": %d, \"device\": \"%s\"}, \"system\": \"%s\", ", \
      name, bytes, device, system_name
    printf "\"median_s\": %.9g, \"samples\": 1, \"rate\": %.9g, \"unit\": \"GB/s\"}\n", seconds, bytes / seconds / 1e9 }'
}
# Column 5 is the median one-way latency in us.
write_lat() { point put_ping_pong ib_write_lat "$1" "$(perftest ib_write_lat "$1" | awk 'NF { print $5 / 1e6 }')"; }
# Column 4 is the mean bandwidth in MiB/s.
write_bw() { point put_stream ib_write_bw "$1" "$(perftest ib_write_bw "$1" | awk -v b="$1" 'NF { print b / ($4 * 1048576) }')"; }

for _ in $(seq "$repeats"); do
  bench ping_pong 8 30 $((4 * rounds))
  bench ping_pong 64,512,4096,32768 50
  write_lat 8
  bench stream 8,64,512,4096 250
  bench stream 32768,65536 100
  write_bw 65536
done
