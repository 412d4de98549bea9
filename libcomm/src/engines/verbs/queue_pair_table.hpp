#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm::verbs {

/// Which peer the completions of a queue pair are of. Devices number queue pairs in a row or nearly so: a look-up is
/// one load.
class QueuePairTable {
 public:
  explicit QueuePairTable(std::size_t capacity) : entries_(std::bit_ceil(std::max<std::size_t>(2 * capacity, 2))) {}

  /// At most `capacity` times.
  void add(std::uint32_t number, int peer) {
    std::size_t at = number;
    while (entry(at).peer != kFree) ++at;
    entry(at) = {.number = number, .peer = peer};
  }
  /// -1: a number that was never added, or whose peer is lost.
  [[nodiscard]] int find(std::uint32_t number) const {
    for (std::size_t at = number;; ++at) {
      Entry const& each = entries_[at & (entries_.size() - 1)];
      if (each.peer == kFree) return -1;
      if (each.number == number) return each.peer;
    }
  }
  void remove(std::uint32_t number) {
    for (Entry& each : entries_) {
      if (each.peer != kFree && each.number == number) each.peer = kRemoved;
    }
  }

 private:
  static constexpr int kRemoved = -1, kFree = -2;
  struct Entry {
    std::uint32_t number = 0;
    int peer = kFree;
  };
  [[nodiscard]] Entry& entry(std::size_t at) { return entries_[at & (entries_.size() - 1)]; }

  std::vector<Entry> entries_;  ///< A power of two, at least half of them free.
};

}  // namespace headway::comm::verbs
