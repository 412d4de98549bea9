// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::benchmarks {

/// Message channel between two ranks, as one of them sees it. A message is written into the memory of the other rank
/// and announced there by a 32-bit number, which the other rank finds by polling.
class MessageChannel {
 public:
  static constexpr std::size_t kSlots = 16;  ///< Message n lands in slot n % kSlots of its receiver.

  virtual ~MessageChannel() = default;
  /// Source of send(). Its address does not change. It may be overwritten after flush() has returned.
  [[nodiscard]] virtual std::span<std::byte> source() = 0;
  /// Sends the first `size_bytes` of source(). Waits while too many messages are in flight. @throws std::runtime_error
  virtual void send(std::size_t size_bytes) = 0;
  /// Returns when source() is no longer read.
  virtual void flush() = 0;
  /// Returns when `count` messages in total have arrived. @throws std::runtime_error
  virtual void wait_for(std::uint64_t count) = 0;
  /// Receive slot of message `seq` on this rank.
  [[nodiscard]] virtual std::span<std::byte> slot(std::uint64_t seq) = 0;
};

}  // namespace headway::benchmarks
