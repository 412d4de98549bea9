#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::benchmarks {

/// One rank's end of messages between two ranks: each is written into the other's memory and announced there by a
/// 32-bit number, which the other finds by polling.
class MessageEnd {
 public:
  static constexpr std::size_t kSlots = 16;  ///< Message n lands in slot n % kSlots of its receiver.

  virtual ~MessageEnd() = default;
  /// What send() sends; stays where it is. May be changed once flush() has returned.
  [[nodiscard]] virtual std::span<std::byte> source() = 0;
  /// Sends the first `size_bytes` of source(); waits while too many are on their way. @throws std::runtime_error
  virtual void send(std::size_t size_bytes) = 0;
  /// Returns when source() is not read any more.
  virtual void flush() = 0;
  /// Returns when `count` messages in all have arrived. @throws std::runtime_error
  virtual void wait_for(std::uint64_t count) = 0;
  /// Where message `number` lands here.
  [[nodiscard]] virtual std::span<std::byte> slot(std::uint64_t number) = 0;
};

}  // namespace headway::benchmarks
