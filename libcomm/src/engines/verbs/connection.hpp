#pragma once

#include "engines/verbs/device.hpp"
#include "engines/verbs/limits.hpp"

#include <sched.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace headway::comm::verbs {

/// Memory of another rank, as its device knows it.
struct RemoteMemory {
  std::uint64_t address;
  std::uint32_t key;
};

/// One end of a reliable connection.
struct QueuePairHello {
  std::uint32_t number;
  std::uint32_t packet_number;  ///< Of the first packet that this side sends.
};

/// What a rank tells a peer about the queue pairs that are for it, over the lifeline: only admitted ranks learn the
/// keys.
struct Hello {
  RemoteMemory landing;
  RemoteMemory mailbox;   ///< Mailbox that the peer writes to.
  std::uint32_t credits;  ///< Notifications that the peer may have under way.
  std::uint32_t mtu;
  std::uint64_t max_message_bytes;
  std::uint32_t lid;
  ibv_gid gid;
  cpu_set_t cores;  ///< On which that rank may run.
  std::array<QueuePairHello, static_cast<std::size_t>(kMaxRails)> queue_pairs;
};

/// What the queue pairs of an endpoint have alike.
struct QueuePairSizes {
  std::uint32_t send_requests;
  std::uint32_t inline_bytes;  ///< Wanted; what was got is written back.
};

/// A reliable connection that is not connected yet. @throws SystemError.
QueuePair make_queue_pair(ibv_pd* domain, ibv_cq* completions, ibv_srq* receives, QueuePairSizes& sizes);

/// Connects both directions of queue pair `rail`. @throws SystemError naming `peer` and the step.
void connect_queue_pair(ibv_qp* queue_pair, Address const& own, Hello const& own_hello, Hello const& peer_hello,
                        std::size_t rail, int peer);

}  // namespace headway::comm::verbs
