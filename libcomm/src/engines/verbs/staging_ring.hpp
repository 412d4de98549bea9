#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace headway::comm::verbs {

/// Ring of registered memory for bytes that the device has not read yet. Pieces are taken and freed in FIFO order.
class StagingRing {
 public:
  StagingRing() = default;
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {}

  /// Takes a 64-byte aligned piece that does not wrap around; empty if there is no room now. `size` is at most the
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
  /// End of the newest piece, as give_back() expects it.
  [[nodiscard]] std::uint64_t position() const { return taken_; }
  /// Frees everything up to `position`.
  void give_back(std::uint64_t position) { given_back_ = position; }

 private:
  std::span<std::byte> memory_;
  std::size_t at_ = 0;                        ///< Start of the next piece, unless it would wrap around.
  std::uint64_t taken_ = 0, given_back_ = 0;  ///< Total bytes, including skipped ends.
};

}  // namespace headway::comm::verbs
