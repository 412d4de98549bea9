// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/verbs/device.hpp"
#include "transport/verbs/limits.hpp"

#include <sched.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace headway::comm::verbs {

/// Remote memory region: virtual address and rkey.
struct RemoteMemory {
  std::uint64_t address;
  std::uint32_t key;
};

/// One side's parameters of a reliable connection.
struct QueuePairHello {
  std::uint32_t qp_num;         ///< QP number.
  std::uint32_t packet_number;  ///< PSN of the first packet that this side sends.
};

/// First message to a peer: how to reach the queue pairs made for it. It travels over the control socket, so only
/// admitted ranks learn the keys.
struct Hello {
  RemoteMemory receive_buffer;
  RemoteMemory mailbox;   ///< The mailbox in the sender's memory that the receiver of this hello writes to.
  std::uint32_t credits;  ///< Notifications that the peer may have in flight.
  std::uint32_t mtu;      ///< Active MTU of the port, as ibv_mtu.
  std::uint64_t max_message_bytes;
  std::uint32_t lid;
  ibv_gid gid;
  cpu_set_t cores;  ///< Cores on which that rank may run.
  std::array<QueuePairHello, static_cast<std::size_t>(kMaxRails)> queue_pairs;
};

/// Sizes common to all queue pairs of an endpoint.
struct QueuePairSizes {
  std::uint32_t send_requests;
  std::uint32_t inline_bytes;  ///< In: wanted. Out: what the device granted.
};

/// Creates a reliable-connection queue pair, not yet connected. @throws SystemError.
QueuePair make_queue_pair(ibv_pd* domain, ibv_cq* completions, ibv_srq* receives, QueuePairSizes& sizes);

/// Connects a queue pair (INIT, RTR, RTS). `rail`: its index among those to the peer. @throws SystemError naming `peer`
/// and the step.
void connect_queue_pair(ibv_qp* queue_pair, Address const& own, Hello const& own_hello, Hello const& peer_hello,
                        std::size_t rail, int peer);

}  // namespace headway::comm::verbs
