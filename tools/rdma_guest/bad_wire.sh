#!/usr/bin/env bash
# In the guest: two ranks exchange over a wire that loses, delays, reorders and repeats packets, or is cut.
# Usage: tools/rdma_guest/bad_wire.sh BUILD_DIR, after network.sh pair; tells its results as GoogleTest does
set -uo pipefail
[ -n "${IN_RDMA_GUEST:-}" ] || { echo "bad_wire.sh is for the guest: it changes the network" >&2; exit 2; }
rank_program=${1:?usage: tools/rdma_guest/bad_wire.sh BUILD_DIR}/tests/libcomm/libcomm_exchange_process
. "$(dirname "$0")/results.sh"
work=$(mktemp -d)

# start_ranks BYTES EXCHANGES: a number or "then_idle"; of so much at most a peer, two steps ahead; rank 0 on one end of
# the wire, rank 1 on the other.
start_ranks() {
  local rank
  rm -rf "$work/store"
  for rank in 0 1; do
    "$rank_program" $rank 2 "$work/store" verbs:rxe$rank - "$1" 2 "$2" >"$work/$rank" 2>&1 &
  done
}

# exchange BYTES EXCHANGES: whether both ranks came to their end.
exchange() {
  start_ranks "$@"
  wait
  grep -q '^done ' "$work/0" && grep -q '^done ' "$work/1"
}

set_wire() {
  local device
  for device in wire0 wire1; do
    tc qdisc del dev $device root 2>/dev/null
    # shellcheck disable=SC2086
    [ -z "$1" ] || tc qdisc add dev $device root netem $1 || return 1
  done
}

# exchanges_are_right NAME NETEM: all bytes arrive, whatever the wire does, and nobody sees an error.
exchanges_are_right() {
  local status=0
  begin_test "BadWire.$1"
  if set_wire "$2"; then
    exchange 60000 40 || status=1
    grep -h '^done ' "$work/0" "$work/1" | paste -sd' '
  else
    status=1
  fi
  set_wire ""
  end_test $status "$work/0" "$work/1"
}

# A rank that leaves waits until its last message is there: in each tenth run or so, the wire loses that one.
last_messages_arrive() {
  local run status=0
  begin_test BadWire.LastMessages
  set_wire "loss 10%" || status=1
  for ((run = 0; run < 15 && status == 0; ++run)); do
    exchange 100 1 || status=1
  done
  set_wire ""
  end_test $status "$work/0" "$work/1"
}

# a_cut_is_named NAME EXCHANGES LIMIT_MS: by both ranks.
a_cut_is_named() {
  local status=0 cut_at rank waited limit_ms=$3
  begin_test "BadWire.$1"
  set_wire ""
  start_ranks 60000 "$2"
  while ! { grep -q '^ready' "$work/0" && grep -q '^ready' "$work/1"; } && [ $(($(milliseconds) - test_began)) -lt 60000 ]; do
    sleep 0.1
  done
  set_wire "loss 100%"
  cut_at=$(milliseconds)
  wait
  waited=$(($(milliseconds) - cut_at))
  for rank in 0 1; do
    grep -q "^failed: .*rank $((1 - rank)) is lost" "$work/$rank" || status=1
  done
  echo "both ranks had failed $waited ms after the cut: $(grep -h '^failed: ' "$work/0")"
  [ $waited -le $limit_ms ] || status=1
  set_wire ""
  end_test $status "$work/0" "$work/1"
}

exchanges_are_right AGoodWire ""
exchanges_are_right Loss0_1 "loss 0.1%"
exchanges_are_right Loss1 "loss 1%"
exchanges_are_right Loss5 "loss 5%"
# With a rate, packets keep their order. Without, such jitter reorders nearly all of them, a reliable connection asks for
# each again, and its retries run out.
exchanges_are_right DelayAndJitter "delay 2ms 1ms rate 1gbit"
exchanges_are_right Reorder "delay 1ms reorder 75% 50%"
exchanges_are_right Duplicates "duplicate 5%"
last_messages_arrive
# Within the transport's retries and a second, and a margin for the emulation.
a_cut_is_named ACutIsNamedByBothRanks 0 3000
# Nothing is under way: a keep-alive put of the next second finds out, and the look of the second after that.
a_cut_is_named ACutIsNamedByRanksThatDoNothing then_idle 5000
[ "$num_failed" = 0 ]
