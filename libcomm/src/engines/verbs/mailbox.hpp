#pragma once

#include "engines/verbs/limits.hpp"
#include "headway/comm/endpoint.hpp"

#include <array>
#include <cstdint>

namespace headway::comm::verbs {

/// Memory that a rank exposed to a peer, as that peer's writes name it.
struct Window {
  std::uint64_t address;
  std::uint64_t size;
  SegmentId segment;
  std::uint32_t key;
};

/// What a peer writes here besides messages, without a notification.
struct Mailbox {
  alignas(64) std::uint64_t num_taken;  ///< Of the notifications sent to it.
  /// Segment s at s modulo kWindows. A window is written before the notification that tells of it, on one queue pair.
  alignas(64) std::array<Window, kWindows> windows;
};

}  // namespace headway::comm::verbs
