#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest: tests exchanges of two ranks over a link that loses, delays, reorders and duplicates packets, or is cut.
# Usage: tools/rdma_guest/bad_wire.sh BUILD_DIR, after network.sh pair. Prints results in the format of GoogleTest.
set -uo pipefail
[ -n "${IN_RDMA_GUEST:-}" ] || { echo "bad_wire.sh is for the guest: it changes the network" >&2; exit 2; }
rank_program=${1:?usage: tools/rdma_guest/bad_wire.sh BUILD_DIR}/tests/libcomm/libcomm_exchange_process
. "$(dirname "$0")/results.sh"
work=$(mktemp -d)

# start_ranks BYTES EXCHANGES: starts ranks 0 and 1 on the two ends of the link, with a bound of two steps. BYTES is the
# largest block to a peer. EXCHANGES is a number or "then_idle".
start_ranks() {
  local rank
  rm -rf "$work/store"
  for rank in 0 1; do
    "$rank_program" $rank 2 "$work/store" verbs:rxe$rank - "$1" 2 "$2" >"$work/$rank" 2>&1 &
  done
}

# exchange BYTES EXCHANGES: succeeds if both ranks finish.
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

# exchanges_are_right NAME NETEM: tests that all bytes arrive without an error over a link with these netem options.
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

# Tests that a leaving rank waits until its last message has arrived. The link loses that message in about 1 of 10 runs.
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

# a_cut_is_named NAME EXCHANGES LIMIT_MS: cuts the link; tests that both ranks report the lost peer within LIMIT_MS.
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
# The rate limit keeps packets in order. Without it, this jitter would reorder nearly all of them, and the reliable
# connection would request each again until its retries run out.
exchanges_are_right DelayAndJitter "delay 2ms 1ms rate 1gbit"
exchanges_are_right Reorder "delay 1ms reorder 75% 50%"
exchanges_are_right Duplicates "duplicate 5%"
last_messages_arrive
# The limit covers the retries of the RDMA transport, one second, and a margin for the emulation.
a_cut_is_named ACutIsNamedByBothRanks 0 3000
# No message is in flight: the keep-alive put of the next second fails, and the check one second later reports it.
a_cut_is_named ACutIsNamedByRanksThatDoNothing then_idle 5000
[ "$num_failed" = 0 ]
