// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Time buckets of a block of keys (rows) and queries (columns), as runs of queries in one bucket.
///
/// Idea: times mostly ascend, so runs are long and end near those of the previous key. The previous key's runs are the
/// first guess; a few comparisons correct it. Where times do not ascend, each query is looked at.
///
/// Example: a key at time 100, queries at 90, 100, 130 and 160, bounds 20 and 50. The differences 10, 0, 30 and 60 give
/// the runs [0, 2) in bucket 0, [2, 3) in bucket 1 and [3, 4) in bucket 2.
///
/// Invariant: guesses never change the result.
/// Complexity: per key, the number of runs plus the distance of their ends from the guesses; all queries if times do
/// not ascend.
class TimeRuns {
 public:
  explicit TimeRuns(HstuBias const& bias);

  /// Finds the runs of a block.
  void find(Sequence const& sequence, TokenRange queries, TokenRange keys);

  /// Calls visit(begin, end, bucket) for the runs of a row of the block found last.
  template <class Visit>
  void for_each(std::int64_t row, Visit visit) const {
    std::int32_t const* const end = ends_.data() + row * kBlockSize;
    std::int32_t const* const bucket = buckets_.data() + row * kBlockSize;
    std::int64_t begin = 0;
    for (std::int64_t run = 0; begin < num_queries_; begin = end[run++]) visit(begin, end[run], bucket[run]);
  }

 private:
  /// |query time - key time| as float32, rounded once; exact subtraction in 64 bits for any times.
  struct Distance {
    std::int64_t key_time;
    float operator()(std::int64_t query_time) const;
  };

  /// Finds the runs of one key.
  void find_row(std::int64_t key_time, std::int64_t row);
  /// Does a distance lie in a bucket?
  [[nodiscard]] bool is_in(std::int64_t bucket, float distance) const;
  /// Bucket of a distance; tries `near_by` and the next one before a binary search.
  [[nodiscard]] std::int64_t bucket_of(float distance, std::int64_t near_by) const;
  /// End of the run that begins at query `begin`; `near_by` is a guess.
  [[nodiscard]] std::int64_t end_of_run(std::int64_t begin, std::int64_t bucket, std::int64_t key_time,
                                        std::int64_t near_by) const;

  HstuBias bias_;
  AlignedBuffer<std::int32_t> ends_, buckets_;  ///< (kBlockSize, kBlockSize): end and bucket of the runs of each row.
  std::int64_t const* query_times_ = nullptr;   ///< Times of the block's queries.
  std::int64_t num_queries_ = 0;
  bool do_queries_ascend_ = false;
};

}  // namespace headway::kernels::hstu
