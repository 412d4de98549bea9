#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace headway::comm::verbs {

/// Registered memory in which what is sent waits until the device has read it: pieces are taken in order and given back
/// in order.
class StagingRing {
 public:
  StagingRing() = default;
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {}

  /// A piece that does not wrap round, 64-byte aligned; none where there is no room now. `size` is at most the
  /// capacity.
  std::optional<std::span<std::byte>> take(std::size_t size) {
    std::size_t const rounded = (size + 63) / 64 * 64;
    bool const wraps = at_ + rounded > memory_.size();
    std::size_t const skipped = wraps ? memory_.size() - at_ : 0;
    if (taken_ + skipped + rounded - given_back_ > memory_.size()) return std::nullopt;
    std::size_t const begin = wraps ? 0 : at_;
    taken_ += skipped + rounded;
    at_ = begin + rounded;
    return memory_.subspan(begin, size);
  }
  /// Where the newest piece ends: what give_back() takes.
  [[nodiscard]] std::uint64_t position() const { return taken_; }
  /// Everything up to a position is free.
  void give_back(std::uint64_t position) { given_back_ = position; }

 private:
  std::span<std::byte> memory_;
  std::size_t at_ = 0;  ///< Where the next piece begins, unless it would wrap round.
  std::uint64_t taken_ = 0, given_back_ = 0;
};

}  // namespace headway::comm::verbs
