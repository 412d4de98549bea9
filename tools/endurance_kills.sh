#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Kills and stops ranks at random points, many times, and looks for leftover processes, files and shared memory.
# Usage: tools/endurance_kills.sh BUILD_DIR KILLS STOPS ENGINE...
#   KILLS   number of kills per engine, a multiple of 5
#   STOPS   number of stops shorter than the timeout, and as many longer ones, per engine; a multiple of 2
#   ENGINE  shm, tcp or verbs. verbs needs an RDMA device: use the guest of tools/rdma_guest, after network.sh
# HEADWAY_TEST_SEED in the environment is the seed of the first round. Prints one line per engine, and failures in full.
set -uo pipefail
# With a private /dev/shm, every file in it at the end belongs to these ranks. If the host allows no private mount, only
# files whose name starts with "headway" count: libcomm would name its files so.
shm_files=headway*
if [ "${1:-}" = --own-shm ]; then
  shm_files=*
  shift
else
  own_shm=(unshare --mount)
  [ "$(id -u)" = 0 ] || own_shm=(unshare --user --map-root-user --mount)
  if "${own_shm[@]}" mount -t tmpfs tmpfs /dev/shm 2>/dev/null; then
    exec "${own_shm[@]}" bash -c 'mount -t tmpfs tmpfs /dev/shm && exec "$@"' _ bash "$0" --own-shm "$@"
  fi
fi
usage="usage: tools/endurance_kills.sh BUILD_DIR KILLS STOPS ENGINE..."
tests=$(realpath "${1:?$usage}")/tests/libcomm kills=${2:?$usage} stops=${3:?$usage}
shift 3
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }
readonly shm_files tests kills stops kills_per_run=5 stops_per_run=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
export TMPDIR=$work/tmp
failed=0

# repeat COUNT TEST ENGINE: runs a test COUNT times; prints the number of failures and the slowest report in ms.
repeat() {
  local log=$work/$2_$3
  if [ "$3" = verbs ]; then export HEADWAY_TEST_RDMA=1; else unset HEADWAY_TEST_RDMA; fi
  "$tests/libcomm_group_test" --gtest_filter="Group/$2/$3" --gtest_repeat="$1" >"$log" 2>&1
  grep -B 20 '^\[  FAILED  \].*ms)$' "$log" >&2
  awk -v wanted="$1" '/^\[       OK \]/ { ++passed } /^slowest report:/ && $3 > slowest { slowest = $3 }
    END { printf "%d %d", wanted - passed, slowest }' "$log"
}

# left_behind: lists leftover processes, files and named shared memory of ranks.
left_behind() {
  pgrep -f "^$tests/libcomm_group_rank_process "
  find "$TMPDIR" -mindepth 1
  find /dev/shm -newer "$work/began" -type f -name "$shm_files"
}

for engine in "$@"; do
  touch "$work/began"
  began=$SECONDS
  kill_runs=$((kills / kills_per_run)) stop_runs=$((stops / stops_per_run))
  read -r kill_failures kill_ms <<<"$(repeat $kill_runs 'RandomKillTest.*' "$engine")"
  read -r short_failures _ <<<"$(repeat $stop_runs 'StopTest.AStopShorterThanTheTimeout*' "$engine")"
  read -r long_failures stop_ms <<<"$(repeat $stop_runs 'StopTest.AStopLongerThanTheTimeout*' "$engine")"
  left=$(left_behind | wc -l)
  echo "$engine: $kills kills, $kill_failures of $kill_runs runs failed, slowest report $kill_ms ms;" \
    "$stops short stops, $short_failures of $stop_runs runs failed; $stops long stops (timeout 1000 ms)," \
    "$long_failures of $stop_runs runs failed, slowest report $stop_ms ms; $left things left behind;" \
    "$((SECONDS - began)) s"
  [ $((kill_failures + short_failures + long_failures + left)) = 0 ] || failed=1
done
exit $failed
