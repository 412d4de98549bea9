#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest: tests exchanges over transport verbs between ranks that are processes.
# Usage: tools/rdma_guest/exchange.sh BUILD_DIR, after network.sh pair. Prints results in the format of GoogleTest.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tools/rdma_guest/results.sh
rank_program=${1:?usage: tools/rdma_guest/exchange.sh BUILD_DIR}/tests/libcomm/libcomm_exchange_process
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# exchanges_are_right NUM_DEVICES RANKS BYTES LAG EXCHANGES: with 2 devices, neighbouring ranks use different devices,
# so that their messages cross the link.
exchanges_are_right() {
  local rank status=0 files=()
  local -r num_devices=$1 ranks=$2 bytes=$3 lag=$4 exchanges=$5
  begin_test "Exchange.${ranks}Ranks_${bytes}Bytes_Lag${lag}_${num_devices}Devices"
  rm -rf "${work:?}"/*
  for ((rank = 0; rank < ranks; ++rank)); do
    "$rank_program" $rank "$ranks" "$work/store" "verbs:rxe$((rank % num_devices))" - "$bytes" "$lag" "$exchanges" \
      >"$work/$rank" 2>&1 &
    files+=("$work/$rank")
  done
  wait
  for rank in "${files[@]}"; do grep -q '^done ' "$rank" || status=1; done
  end_test $status "${files[@]}"
}

for ranks in 2 4; do
  exchanges_are_right 2 $ranks 1000 0 200
  exchanges_are_right 2 $ranks 60000 2 30
  exchanges_are_right 1 $ranks 1000 2 200
  # Only on one device: Soft-RoCE cannot handle megabytes in flight between two devices, see README.md.
  exchanges_are_right 1 $ranks 300000 2 10
done
[ "$num_failed" = 0 ]
