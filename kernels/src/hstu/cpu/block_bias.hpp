// SPDX-License-Identifier: Apache-2.0

// Bias of a block of scores on the CPU. Position weights depend on key - query, so a row of the block (one key) is a
// reversed slice of the weights. Time weights depend on a bucket of the time difference; runs of queries in one
// bucket are filled at once (time_runs.hpp).
//
// Example: max_position_distance 4 has weights w[-3] to w[3]. Key 2 and queries 0 1 2 have distances 2 1 0, so the
// row is w[2] w[1] w[0]. The backward pass goes through the gradients in the same order: that of w[2] gets dS of
// query 0.

#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/time_runs.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels::hstu {

/// Bias of a block of scores, and its gradients. Blocks have a row per key.
template <class Real>
class BlockBias {
 public:
  explicit BlockBias(HstuBias const& bias)
      : bias_(bias), block_(is_there() ? kBlockSize * kBlockSize : 0), time_runs_(bias) {}

  [[nodiscard]] bool is_there() const { return bias_.has_position() || bias_.has_time(); }

  /// Bias of a block, (kBlockSize, kBlockSize); null if there is none. Valid until the next call.
  Real const* fill(Sequence const& sequence, TokenRange queries, TokenRange keys) {
    if (!is_there()) return nullptr;
    if (bias_.has_time()) time_runs_.find(sequence, queries, keys);
    for (std::int64_t row = 0; row < keys.size; ++row) {
      Real* const to = block_.data() + row * kBlockSize;
      if (bias_.has_time())
        set_time_row(row, to);
      else
        std::fill_n(to, queries.size, Real(0));
      if (bias_.has_position())
        add_position_row(distance_from_first_query(sequence, queries, keys.begin + row), queries.size, to);
    }
    return block_.data();
  }

  /// Adds dS of the block that was filled last to the gradients of bias weights. Position gradients use a table just
  /// long enough for the sequence: key j and the token of query i use element [keys - 1 + j - i].
  void add_gradients(Sequence const& sequence, TokenRange queries, TokenRange keys, Real const* gradients,
                     Real* of_position, Real* of_time) const {
    for (std::int64_t row = 0; row < keys.size; ++row) {
      Real const* of_scores = gradients + row * kBlockSize;
      if (of_position != nullptr) {
        std::int64_t const distance = distance_from_first_query(sequence, queries, keys.begin + row);
        Real* const first = of_position + sequence.num_keys() - 1 + distance;
        for (std::int64_t query = 0; query < queries.size; ++query) first[-query] += of_scores[query];
      }
      if (of_time != nullptr) add_time_gradients(row, of_scores, of_time);
    }
  }

 private:
  /// Distance of a key from the first query of a block.
  static std::int64_t distance_from_first_query(Sequence const& sequence, TokenRange queries, std::int64_t key) {
    return key - sequence.mask.token_of(static_cast<std::int32_t>(queries.begin));
  }

  /// Sets a row to the weights of its time buckets.
  void set_time_row(std::int64_t row, Real* to) const {
    auto const* const weights = static_cast<Real const*>(bias_.time_weights);
    time_runs_.for_each(row, [&](std::int64_t begin, std::int64_t end, std::int64_t bucket) {
      std::fill(to + begin, to + end, weights[bucket]);
    });
  }

  void add_position_row(std::int64_t distance, std::int64_t num_queries, Real* to) const {
    Real const* const first =
        static_cast<Real const*>(bias_.position_weights) + bias_.max_position_distance - 1 + distance;
    for (std::int64_t query = 0; query < num_queries; ++query) to[query] += first[-query];
  }

  void add_time_gradients(std::int64_t row, Real const* of_scores, Real* of_time) const {
    time_runs_.for_each(row, [&](std::int64_t begin, std::int64_t end, std::int64_t bucket) {
      Real sum = 0;
      for (std::int64_t query = begin; query < end; ++query) sum += of_scores[query];
      of_time[bucket] += sum;
    });
  }

  HstuBias bias_;
  AlignedBuffer<Real> block_;
  TimeRuns time_runs_;
};

}  // namespace headway::kernels::hstu
