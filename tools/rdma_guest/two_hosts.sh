#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest: tests exchanges of four ranks on two simulated hosts with automatic choice of transports. Ranks 2 and 3 are
# in their own network namespace. So ranks of different hosts share neither sockets nor memory files, only the RDMA
# device.
# Usage: tools/rdma_guest/two_hosts.sh BUILD_DIR, after network.sh. Prints its result in the format of GoogleTest.
set -uo pipefail
[ -n "${IN_RDMA_GUEST:-}" ] || { echo "two_hosts.sh is for the guest: it changes the network" >&2; exit 2; }
rank_program=${1:?usage: tools/rdma_guest/two_hosts.sh BUILD_DIR}/tests/libcomm/libcomm_exchange_process
. "$(dirname "$0")/results.sh"

join_hosts() {
  ip netns add other &&
    ip link add link0 type veth peer name link1 netns other &&
    ip address add 10.78.0.1/24 dev link0 && ip link set link0 up &&
    ip -n other address add 10.78.0.2/24 dev link1 && ip -n other link set link1 up && ip -n other link set lo up
}

run_ranks() {
  local rank host store=$work/store
  for rank in 0 1 2 3; do
    host=()
    [ $rank -lt 2 ] || host=(nsenter --net=/run/netns/other)
    "${host[@]}" "$rank_program" $rank 4 "$store" auto - 60000 2 30 >"$work/$rank" 2>&1 &
  done
  wait
}

check_ranks() {
  local rank expected status=0
  for rank in 0 1 2 3; do
    expected="transports: shm verbs verbs"
    [ $rank -lt 2 ] || expected="transports: verbs verbs shm"
    if ! grep -qx "$expected" "$work/$rank" || ! grep -q '^done ' "$work/$rank"; then
      echo "rank $rank should say '$expected', then 'done':"
      cat "$work/$rank"
      status=1
    fi
  done
  return $status
}

work=$(mktemp -d)
begin_test TwoHosts.SharedMemoryInsideAHostAndVerbsBetween
join_hosts && run_ranks && check_ranks
end_test $?
[ "$num_failed" = 0 ]
