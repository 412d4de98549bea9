#pragma once

#include "cpu/key_index.hpp"
#include "headway/embedding/key.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Rows of the least score go first: by count and step as the policy has it, then by hash.
using EvictionScore = std::pair<std::uint64_t, std::uint64_t>;

inline constexpr EvictionScore kLeastScore{0, 0};
/// More than the score of any row.
inline constexpr EvictionScore kMostScore{std::numeric_limits<std::uint64_t>::max(),
                                          std::numeric_limits<std::uint64_t>::max()};

/// Scores up to which the queues of all stripes are complete.
struct EvictionHorizon {
  EvictionScore known = kLeastScore;  ///< Each row below it is queued.
  EvictionScore next = kLeastScore;   ///< So is each row below it that the scan has passed, or that came since.
};

/// A row that may go. Its score may have grown since, or the row be gone.
struct EvictionCandidate {
  EvictionScore score;
  Key key;
};

/// The rows of one stripe that go first, without a scan of all rows when they are wanted.
///
/// A lookup only adds to the score of a row: it gets a later step or a higher count. So a queue need not hear of
/// lookups. It keeps an entry with the score that the row had when it was queued, and an entry that comes out is
/// compared with the row: one whose score has grown goes back with the new score (a lazy heap).
///
/// Only rows below a horizon are queued, about a quarter of all. While `first` is used up, a scan passes over all rows
/// in small parts and puts those of the next quarter into `next`, which then takes the place of `first`. New rows are
/// added as they come, if they are below the horizon, as rows of few lookups are.
///
/// Invariant: each row with a score below horizon.known has an entry in `first` or `waiting` that is not above its
/// score; so do, in `next` too, rows below horizon.next that the scan passed or that came later. So what is taken in
/// order is exactly what a sort of all rows would give, and depends neither on the horizon nor on the scan.
///
/// Example: rows a, b, c of steps 1, 2, 3 are queued; a is looked up in step 9. The least entry is (1, a): the row has
/// 9 now, so it goes back as (9, a), and b goes first.
///
/// Cost: O(log n) for a row that goes, and a scan of about five rows. 32 bytes for each entry.
class EvictionQueue {
 public:
  using Heap = std::vector<EvictionCandidate>;
  using Cursor = KeyIndex<WideBucket>::Cursor;

  /// Puts a row where its score belongs; one that is not below the horizon is left to a later scan.
  void add(EvictionCandidate const& candidate, EvictionHorizon const& horizon);
  /// Puts aside a row that is in use.
  void wait(EvictionCandidate const& candidate) { waiting_.push_back(candidate); }
  /// Adds the rows that waited and for which `may_go(score)`.
  template <class MayGo>
  void release(EvictionHorizon const& horizon, MayGo may_go) {
    std::erase_if(waiting_, [&](EvictionCandidate const& each) {
      if (!may_go(each.score)) return false;
      add(each, horizon);
      return true;
    });
  }
  /// An entry of the least score. There must be one.
  [[nodiscard]] EvictionCandidate const& least() const { return first_.front(); }
  EvictionCandidate take_least();
  /// Goes on with the rows of the next horizon; the scan begins again.
  void advance();

  [[nodiscard]] bool is_empty() const { return first_.empty(); }
  [[nodiscard]] std::size_t size() const { return first_.size(); }
  [[nodiscard]] std::size_t num_entries() const { return first_.size() + next_.size() + waiting_.size(); }
  [[nodiscard]] std::size_t num_bytes() const {
    return (first_.capacity() + next_.capacity() + waiting_.capacity()) * sizeof(EvictionCandidate);
  }
  [[nodiscard]] Cursor& cursor() { return cursor_; }
  [[nodiscard]] Cursor const& cursor() const { return cursor_; }

 private:
  Heap first_, next_;  ///< The least is in front.
  std::vector<EvictionCandidate> waiting_;
  Cursor cursor_;
};

}  // namespace headway::embedding
