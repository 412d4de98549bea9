#!/usr/bin/env bash
# Kills and stops ranks at random points, many times, and looks for what that leaves behind.
# Usage: tools/endurance_kills.sh BUILD_DIR KILLS STOPS ENGINE...
#   KILLS, STOPS  of each engine; STOPS of both kinds, shorter and longer than the timeout. KILLS in fives, STOPS in twos.
#   ENGINE        shm, tcp or verbs, which needs a device: in the guest of tools/rdma_guest, after network.sh
# HEADWAY_TEST_SEED in the environment is the first round's seed. Prints a line for each engine, and failures in full.
set -uo pipefail
# With a /dev/shm of its own, the file that is there at the end is one of these ranks'. Where the host grants none, other
# programs' files are told apart by name: libcomm's own would begin with "headway".
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

# repeat COUNT TEST ENGINE: prints how many failed, and the slowest report in ms.
repeat() {
  local log=$work/$2_$3
  if [ "$3" = verbs ]; then export HEADWAY_TEST_RDMA=1; else unset HEADWAY_TEST_RDMA; fi
  "$tests/libcomm_group_test" --gtest_filter="Group/$2/$3" --gtest_repeat="$1" >"$log" 2>&1
  grep -B 20 '^\[  FAILED  \].*ms)$' "$log" >&2
  awk -v wanted="$1" '/^\[       OK \]/ { ++passed } /^slowest report:/ && $3 > slowest { slowest = $3 }
    END { printf "%d %d", wanted - passed, slowest }' "$log"
}

# left_behind: processes of ranks, files of theirs, shared memory of theirs that has a name.
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
