// SPDX-License-Identifier: Apache-2.0

// Owner of a completion. A completion carries the QP number only, and a poll may return 32 of them, so the look-up
// must be cheap. Example: QP numbers 17 to 20 in a table of 8 entries lie at 1, 2, 3 and 4: one load each, no
// hashing.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm::verbs {

/// Maps a QP number to (peer, rail). Devices number queue pairs almost consecutively, so a look-up is usually one load.
/// Open addressing with linear probing.
class QueuePairTable {
 public:
  struct Owner {
    int peer = kFree;        ///< Negative if no peer owns it.
    std::uint32_t rail = 0;  ///< Index among the queue pairs to that peer.
  };

  explicit QueuePairTable(std::size_t capacity) : entries_(std::bit_ceil(std::max<std::size_t>(2 * capacity, 2))) {}

  /// Adds an entry. At most `capacity` calls.
  void add(std::uint32_t qp_num, Owner owner) {
    std::size_t at = qp_num;
    while (entry(at).owner.peer != kFree) ++at;
    entry(at) = {.qp_num = qp_num, .owner = owner};
  }
  /// Returns an owner with a negative peer if the number was never added or was removed.
  [[nodiscard]] Owner find(std::uint32_t qp_num) const {
    for (std::size_t at = qp_num;; ++at) {
      Entry const& each = entries_[at & (entries_.size() - 1)];
      if (each.owner.peer == kFree) return {};
      if (each.qp_num == qp_num) return each.owner;
    }
  }
  void remove(std::uint32_t qp_num) {
    // A removed entry keeps its place, marked, so that probing for others passes over it. No new queue pairs are made
    // later.
    for (Entry& each : entries_) {
      if (each.owner.peer != kFree && each.qp_num == qp_num) each.owner.peer = kRemoved;
    }
  }

 private:
  static constexpr int kRemoved = -1, kFree = -2;
  struct Entry {
    std::uint32_t qp_num = 0;
    Owner owner;
  };
  [[nodiscard]] Entry& entry(std::size_t at) { return entries_[at & (entries_.size() - 1)]; }

  std::vector<Entry> entries_;  ///< A power of two entries, at least half of them free.
};

}  // namespace headway::comm::verbs
