#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest: creates the network devices of the tests, and a Soft-RoCE device on each.
# Usage: tools/rdma_guest/network.sh one | pair
#   one   rxe0 on a dummy device: 10.77.0.1 and fd00:77::1; ranks loop back inside the driver
#   pair  rxe0 and rxe1 on the two ends of a veth pair: 10.77.0.1 and 10.77.0.2, fd00:77::1 and ::2; packets between
#         them cross the link, so that `tc qdisc add dev wire0 root netem ...` delays or drops them
set -euo pipefail
[ -n "${IN_RDMA_GUEST:-}" ] || { echo "network.sh is for the guest: it changes the network" >&2; exit 2; }

# add_device NAME RXE HOST_NUMBER: brings up NAME with addresses ending in HOST_NUMBER; adds the Soft-RoCE device RXE.
add_device() {
  ip link set "$1" mtu 4200 up  # Room for a path MTU of 4096.
  ip address add "10.77.0.$3/24" dev "$1"
  ip address add "fd00:77::$3/64" dev "$1" nodad
  rdma link add "$2" type rxe netdev "$1"
}

case ${1:-} in
  one)
    ip link add wire0 type dummy
    add_device wire0 rxe0 1
    ;;
  pair)
    ip link add wire0 type veth peer name wire1
    for setting in accept_local=1 rp_filter=0; do
      for device in all wire0 wire1; do sysctl -qw "net.ipv4.conf.$device.$setting"; done
    done
    ip link set wire0 up
    ip link set wire1 up
    add_device wire0 rxe0 1
    add_device wire1 rxe1 2
    ;;
  *)
    echo "usage: tools/rdma_guest/network.sh one | pair" >&2
    exit 2
    ;;
esac
