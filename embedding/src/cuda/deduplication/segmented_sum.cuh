// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/deduplication/unique_view.cuh"
#include "cuda/deduplication/vector_rows.cuh"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/quad.cuh"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

/// Members per chunk. The members of a unique key are its batch positions: a segment of unique.csr_indices. A segment
/// of at most this length is summed where its sum is needed; longer ones are summed beforehand, chunk by chunk
/// (segmented_sum.cu).
inline constexpr std::uint32_t kChunkMembers = 64;

/// Terms of the sums: each member of a unique key contributes its weight times the row of its bag.
struct MemberRows {
  UniqueView unique;
  std::uint32_t const* bag_of;  ///< (keys) Bag of each key; nullptr: each key is a bag of its own.
  float const* weights;         ///< (keys) nullptr: 1.
  float const* values;          ///< (bags, dim)
  std::uint32_t dim;

  /// Term of the member at place `at` of unique.csr_indices.
  [[nodiscard]] __device__ Term term(std::uint32_t at) const {
    std::uint32_t const key = unique.csr_indices[at];
    return {bag_of == nullptr ? key : bag_of[key], weights == nullptr ? 1 : weights[key]};
  }
  [[nodiscard]] __device__ float const* row(std::uint32_t index) const { return values + std::uint64_t{index} * dim; }
};

/// Scratch rows of dim floats, three per chunk. Head: partial sum of a long segment that began in an earlier chunk.
/// Tail: partial sum of a long segment that begins in the chunk. Sum: total of the segment that begins in the chunk.
struct ChunkRows {
  static constexpr std::uint32_t kCount = 3;

  [[nodiscard]] static __device__ std::uint32_t head(std::uint32_t chunk) { return kCount * chunk; }
  [[nodiscard]] static __device__ std::uint32_t tail(std::uint32_t chunk) { return kCount * chunk + 1; }
  [[nodiscard]] static __device__ std::uint32_t sum(std::uint32_t chunk) { return kCount * chunk + 2; }
};

/// The sums of a SegmentedSum, for kernels.
struct SegmentedSumView {
  MemberRows terms;
  float const* chunk_rows;  ///< (chunks * ChunkRows::kCount, dim)

  /// Terms of the sum of one key. No member initialisers: __shared__ variables cannot have them.
  struct Segment {
    float const* row;         ///< Row of the first term.
    float weight;             ///< Weight of the first term.
    std::uint32_t next, end;  ///< Places in unique.csr_indices of the further terms.

    [[nodiscard]] __device__ bool has_one_term() const { return next == end; }
    /// Multiplies the first term by its weight. The product is rounded before it is added to anything (no fused
    /// multiply-add).
    __device__ void weigh(Quad& values) const {
#pragma unroll
      for (float& value : values) value = __fmul_rn(value, weight);
    }
  };

  /// Segment of a unique key. A long segment has one term: its precomputed sum.
  [[nodiscard]] __device__ Segment segment(std::uint32_t index) const {
    std::uint32_t const begin = terms.unique.csr_offsets[index], end = terms.unique.csr_offsets[index + 1];
    if (end - begin > kChunkMembers) {
      std::uint64_t const sum = ChunkRows::sum(begin / kChunkMembers);
      return {.row = chunk_rows + sum * terms.dim, .weight = 1, .next = end, .end = end};
    }
    Term const first = terms.term(begin);
    return {.row = terms.row(first.row), .weight = first.weight, .next = begin + 1, .end = end};
  }
  /// Four columns of the first term, without its weight.
  [[nodiscard]] __device__ Quad first_of(Segment const& segment, std::uint32_t quad) const {
    return read_quad(segment.row, quad, terms.dim, LoadConstant());
  }
  /// Four columns of the sum, in the order of the members. The loads of `kInFlight` terms overlap.
  template <std::uint32_t kInFlight>
  [[nodiscard]] __device__ Quad sum_of(Segment const& segment, std::uint32_t quad) const {
    Quad sum = first_of(segment, quad);
    segment.weigh(sum);
    for (std::uint32_t first = segment.next; first < segment.end; first += kInFlight) {
      Term others[kInFlight];
      Quad values[kInFlight];
      // Reads the last term again beyond the end: without a branch, no load waits for an earlier one.
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) others[i] = terms.term(min(first + i, segment.end - 1));
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        if (first + i < segment.end) values[i] = read_quad(terms.row(others[i].row), quad, terms.dim, LoadConstant());
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        if (first + i >= segment.end) break;
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) sum[j] += others[i].weight * values[i][j];
      }
    }
    return sum;
  }
};

/// For each unique key, the sum of weight * values[bag] over its members. Stream-ordered. Members are added in order
/// within pieces whose ends depend on positions in `csr_indices` alone, then the pieces in order: deterministic.
class SegmentedSum {
 public:
  /// @param bags of all keys of the batch
  /// @param values (bags, dim)
  SegmentedSum(UniqueView const& unique, std::size_t num_keys, Bags const& bags, std::size_t dim, float const* values,
               cudaStream_t stream);

  [[nodiscard]] SegmentedSumView view() const { return {terms_, chunk_rows_.data()}; }

 private:
  DeviceBuffer<std::uint32_t> bag_of_;
  DeviceBuffer<float> chunk_rows_;
  MemberRows terms_;
};

/// Writes sums[index] for each unique key.
/// @param sums (unique keys or more, dim)
void write_sums_async(SegmentedSumView const& view, std::span<float> sums, cudaStream_t stream);

}  // namespace headway::embedding
