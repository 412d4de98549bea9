#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/sequence.hpp"

#include <cmath>
#include <cstdint>

namespace headway::kernels::hstu {

/// Queries or keys [begin, begin + size) of a sequence.
struct TokenRange {
  std::int64_t begin, size;
};

/// What is added to the scores of a block, and where gradients of scores go. Blocks have a row for each key.
template <class Real>
class BlockBias {
 public:
  explicit BlockBias(HstuBias const& bias)
      : bias_(bias), block_(is_there() ? kBlockSize * kBlockSize : 0), buckets_(bias.has_time() ? block_size() : 0) {}

  [[nodiscard]] bool is_there() const { return bias_.has_position() || bias_.has_time(); }

  /// The bias of a block, (kBlockSize, kBlockSize); null without one.
  Real const* fill(Sequence const& sequence, TokenRange queries, TokenRange keys) {
    if (!is_there()) return nullptr;
    if (bias_.has_time()) find_buckets(sequence, queries, keys);
    for (std::int64_t row = 0; row < keys.size; ++row) {
      if (bias_.has_position())
        copy_position_row(distance_from_first_query(sequence, queries, keys.begin + row), queries.size, row);
      else
        for (std::int64_t query = 0; query < queries.size; ++query) block_.data()[row * kBlockSize + query] = 0;
      if (bias_.has_time()) add_time_row(queries.size, row);
    }
    return block_.data();
  }

  /// Adds gradients of the scores of the block filled last to those of weights. Of the position they are as if the
  /// table were just long enough for the sequence: that of key j and the token of query i at [keys - 1 + j - i].
  void add_gradients(Sequence const& sequence, TokenRange queries, TokenRange keys, Real const* gradients,
                     Real* of_position, Real* of_time) const {
    for (std::int64_t row = 0; row < keys.size; ++row) {
      Real const* of_scores = gradients + row * kBlockSize;
      if (of_position != nullptr) {
        std::int64_t const distance = distance_from_first_query(sequence, queries, keys.begin + row);
        Real* const first = of_position + sequence.num_keys() - 1 + distance;
        for (std::int64_t query = 0; query < queries.size; ++query) first[-query] += of_scores[query];
      }
      if (of_time != nullptr) add_time_gradients(queries.size, row, of_scores, of_time);
    }
  }

 private:
  static std::int64_t block_size() { return kBlockSize * kBlockSize; }

  static std::int64_t distance_from_first_query(Sequence const& sequence, TokenRange queries, std::int64_t key) {
    return key - sequence.mask.token_of(static_cast<std::int32_t>(queries.begin));
  }

  void copy_position_row(std::int64_t distance, std::int64_t num_queries, std::int64_t row) {
    Real const* const first =
        static_cast<Real const*>(bias_.position_weights) + bias_.max_position_distance - 1 + distance;
    Real* const to = block_.data() + row * kBlockSize;
    for (std::int64_t query = 0; query < num_queries; ++query) to[query] = first[-query];
  }

  /// The search goes on from the bucket before, as times of neighbours are mostly near.
  void find_buckets(Sequence const& sequence, TokenRange queries, TokenRange keys) {
    std::int64_t const* const query_times = bias_.query_times + sequence.first_query + queries.begin;
    std::int64_t const* const key_times = bias_.key_times + sequence.first_key + keys.begin;
    std::int64_t bucket = 0;
    for (std::int64_t row = 0; row < keys.size; ++row)
      for (std::int64_t query = 0; query < queries.size; ++query) {
        auto const apart = static_cast<float>(std::abs(query_times[query] - key_times[row]));
        while (bucket < bias_.num_time_bounds && bias_.time_bounds[bucket] <= apart) ++bucket;
        while (bucket > 0 && bias_.time_bounds[bucket - 1] > apart) --bucket;
        buckets_.data()[row * kBlockSize + query] = static_cast<std::int32_t>(bucket);
      }
  }

  void add_time_row(std::int64_t num_queries, std::int64_t row) {
    auto const* const weights = static_cast<Real const*>(bias_.time_weights);
    std::int32_t const* const buckets = buckets_.data() + row * kBlockSize;
    Real* const to = block_.data() + row * kBlockSize;
    for (std::int64_t query = 0; query < num_queries; ++query) to[query] += weights[buckets[query]];
  }

  /// Queries of one bucket that follow each other are added up first.
  void add_time_gradients(std::int64_t num_queries, std::int64_t row, Real const* of_scores, Real* of_time) const {
    std::int32_t const* const buckets = buckets_.data() + row * kBlockSize;
    for (std::int64_t query = 0; query < num_queries;) {
      std::int32_t const bucket = buckets[query];
      Real sum = 0;
      for (; query < num_queries && buckets[query] == bucket; ++query) sum += of_scores[query];
      of_time[bucket] += sum;
    }
  }

  HstuBias bias_;
  AlignedBuffer<Real> block_;
  AlignedBuffer<std::int32_t> buckets_;
};

}  // namespace headway::kernels::hstu
