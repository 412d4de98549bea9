#pragma once

#include "engines/verbs/limits.hpp"
#include "headway/comm/endpoint.hpp"

#include <array>
#include <cstdint>

namespace headway::comm::verbs {

/// Address and key of memory that a rank has exposed to a peer.
struct Window {
  std::uint64_t address;
  std::uint64_t size;
  SegmentId segment;
  std::uint32_t key;
};

/// Control memory that one peer writes with plain RDMA writes, which consume no receive.
struct Mailbox {
  alignas(64) std::uint64_t num_taken;  ///< Notifications of the mailbox's owner that the peer has consumed.
  /// Segment s is at index s mod kWindows. A window is written before the notification that announces it, on the same
  /// queue pair.
  alignas(64) std::array<Window, kWindows> windows;
};

}  // namespace headway::comm::verbs
