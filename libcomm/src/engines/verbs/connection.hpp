#pragma once

#include "engines/verbs/device.hpp"

#include <cstdint>

namespace headway::comm::verbs {

/// What a rank tells a peer about the queue pair that is for it, over the lifeline: only admitted ranks learn the keys.
struct Hello {
  std::uint64_t landing_address;
  std::uint64_t credit_address;  ///< Where the peer writes how many notifications it has taken.
  std::uint32_t landing_key;
  std::uint32_t credit_key;
  std::uint32_t queue_pair_number;
  std::uint32_t packet_number;  ///< Of the first packet that this side sends.
  std::uint32_t mtu;
  std::uint32_t lid;
  ibv_gid gid;
};

/// What the queue pairs of an endpoint have alike.
struct QueuePairSizes {
  std::uint32_t send_requests;
  std::uint32_t inline_bytes;  ///< Wanted; what was got is written back.
};

/// A reliable connection that is not connected yet. @throws SystemError.
QueuePair make_queue_pair(ibv_pd* domain, ibv_cq* completions, ibv_srq* receives, QueuePairSizes& sizes);

/// Connects both directions. @throws SystemError naming `peer` and the step.
void connect_queue_pair(ibv_qp* queue_pair, Address const& own, Hello const& own_hello, Hello const& peer_hello,
                        int peer);

}  // namespace headway::comm::verbs
