// SPDX-License-Identifier: Apache-2.0

// Eviction queue: a lazy heap of the rows of one stripe that go first, without a scan of all rows when they are wanted.
// A stripe is one of the 64 parts of a table's key index. A step is a number that the caller of Table::begin_step()
// chooses, usually that of the training step.
//
// Idea: a lookup only raises the score of a row (a later step, a higher count), so lookups need not touch the queue. An
// entry keeps the score that its row had when it was queued. An entry that comes out is compared with the row: if the
// score has grown, it goes back with the new score.
// Only rows whose score is below a limit, the horizon, are queued: about a quarter of all. While `first` is used up, a
// scan passes over all rows in small parts and puts those of the next quarter into `next`, which then takes the place
// of `first`. A new row whose score is below the horizon is added when it comes.
//
// Example: LRU, scores are steps. Rows a, b, c of steps 1, 2, 3 are queued; a is looked up in step 9.
//   The least entry is (1, a): the row has 9 now, so the entry goes back as (9, a), and b is evicted first.
//
// Invariants: a row with a score below horizon.known has an entry in `first` or `waiting` whose score is not above the
//   row's. A row below horizon.next that the scan passed, or that came later, has such an entry in one of the three
//   lists. So rows come out exactly as a sort of all rows would give them. The order depends neither on horizon nor on
//   scan.
// Complexity: O(log n) for a row that is evicted, and a scan of about five rows. 32 bytes for each entry.
// The choice of the least rows over all stripes is in cpu_table_eviction.cpp.

#pragma once

#include "cpu/index/key_index.hpp"
#include "headway/embedding/key.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Rows of the least score are evicted first. First: eviction_score(), which packs the lookup count and the step of the
/// last lookup (LRU: step first, LFU: count first). Second: low half of the key's hash, which breaks ties.
using EvictionScore = std::pair<std::uint64_t, std::uint64_t>;

inline constexpr EvictionScore kLeastScore{0, 0};
/// Above the score of any row.
inline constexpr EvictionScore kMostScore{std::numeric_limits<std::uint64_t>::max(),
                                          std::numeric_limits<std::uint64_t>::max()};

/// Scores below which the queues of all stripes are complete.
struct EvictionHorizon {
  EvictionScore known = kLeastScore;  ///< Every row below it is queued.
  EvictionScore next = kLeastScore;   ///< Every row below it that the scan passed, or that came later, is queued.
};

/// Queue entry of a row. The row's score may have grown since, or the row may be gone.
struct EvictionCandidate {
  EvictionScore score;
  Key key;
};

/// Eviction queue of one stripe, for one thread at a time.
class EvictionQueue {
 public:
  using Heap = std::vector<EvictionCandidate>;
  using Cursor = KeyIndex<WideBucket>::Cursor;

  /// Adds a row to `first` or `next` by its score. A row that is not below the horizon is left to a later scan.
  void add(EvictionCandidate const& candidate, EvictionHorizon const& horizon);
  /// Sets aside a row that is in use: a backward pass may still hold its id, so it must not be evicted yet.
  void wait(EvictionCandidate const& candidate) { waiting_.push_back(candidate); }
  /// Adds the waiting rows for which `may_go(score)` is true.
  template <class MayGo>
  void release(EvictionHorizon const& horizon, MayGo may_go) {
    std::erase_if(waiting_, [&](EvictionCandidate const& each) {
      if (!may_go(each.score)) return false;
      add(each, horizon);
      return true;
    });
  }
  /// An entry of the least score. The queue must not be empty.
  [[nodiscard]] EvictionCandidate const& least() const { return first_.front(); }
  /// Removes and returns least().
  EvictionCandidate take_least();
  /// Makes `next` the first queue, and restarts the scan. `first` must be empty.
  void advance();

  [[nodiscard]] bool is_empty() const { return first_.empty(); }
  /// Entries of the first queue.
  [[nodiscard]] std::size_t size() const { return first_.size(); }
  /// Entries of both queues and of waiting rows.
  [[nodiscard]] std::size_t num_entries() const { return first_.size() + next_.size() + waiting_.size(); }
  [[nodiscard]] std::size_t num_bytes() const {
    return (first_.capacity() + next_.capacity() + waiting_.capacity()) * sizeof(EvictionCandidate);
  }
  /// Position of the scan in the stripe's index.
  [[nodiscard]] Cursor& cursor() { return cursor_; }
  [[nodiscard]] Cursor const& cursor() const { return cursor_; }

 private:
  Heap first_, next_;                       ///< Heaps, the least entry in front.
  std::vector<EvictionCandidate> waiting_;  ///< Rows that were in use when their entry came out, and new rows.
  Cursor cursor_;
};

}  // namespace headway::embedding
