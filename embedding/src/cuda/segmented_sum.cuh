#pragma once

#include "cuda/device_buffer.hpp"
#include "cuda/quad.cuh"
#include "cuda/term.hpp"
#include "cuda/unique_view.cuh"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

/// The members of a unique key are a segment of all members. Those of no more members than a chunk are added up where
/// their sum is wanted, others beforehand, chunk by chunk.
inline constexpr std::uint32_t kChunkMembers = 64;

/// What members of unique keys have: a row for each bag.
struct MemberRows {
  UniqueView unique;
  std::uint32_t const* bag_of;  ///< (keys) None: each key is a bag.
  float const* weights;         ///< (keys) None: 1.
  float const* values;          ///< (bags, dim)
  std::uint32_t dim;

  [[nodiscard]] __device__ Term term(std::uint32_t at) const {
    std::uint32_t const key = unique.members[at];
    return {bag_of == nullptr ? key : bag_of[key], weights == nullptr ? 1 : weights[key]};
  }
  [[nodiscard]] __device__ float const* row(std::uint32_t number) const { return values + std::uint64_t{number} * dim; }
};

/// The rows of each chunk, of dim floats, for segments that are longer: in a chunk in which one goes on its partial sum
/// is the head, where it begins the tail, and its sum is beside that.
struct ChunkRows {
  static constexpr std::uint32_t kCount = 3;

  [[nodiscard]] static __device__ std::uint32_t head(std::uint32_t chunk) { return kCount * chunk; }
  [[nodiscard]] static __device__ std::uint32_t tail(std::uint32_t chunk) { return kCount * chunk + 1; }
  [[nodiscard]] static __device__ std::uint32_t sum(std::uint32_t chunk) { return kCount * chunk + 2; }
};

/// The sums of what the members of unique keys have, for kernels.
struct SegmentedSumView {
  MemberRows terms;
  float const* chunk_rows;

  /// Terms of a key: the first, and members for more. No values at first, as it is put in shared memory.
  struct Segment {
    float const* row;
    float weight;
    std::uint32_t next, end;

    [[nodiscard]] __device__ bool has_one_term() const { return next == end; }
    /// Multiplies the first one, and not in one operation with what comes after.
    __device__ void weigh(Quad& values) const {
#pragma unroll
      for (float& value : values) value = __fmul_rn(value, weight);
    }
  };

  /// Of a key whose members are many it has their sum alone.
  [[nodiscard]] __device__ Segment segment(std::uint32_t number) const {
    std::uint32_t const begin = terms.unique.begins[number], end = terms.unique.begins[number + 1];
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
  /// Four columns of the sum, in the order of the members; the loads of `kInFlight` terms are under way at a time.
  template <std::uint32_t kInFlight>
  [[nodiscard]] __device__ Quad sum_of(Segment const& segment, std::uint32_t quad) const {
    Quad sum = first_of(segment, quad);
    segment.weigh(sum);
    for (std::uint32_t first = segment.next; first < segment.end; first += kInFlight) {
      Term others[kInFlight];
      Quad values[kInFlight];
      // Beyond the end a term is read again: without a branch no load waits for one before.
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

/// The sums of what the members of unique keys have, weight * values[bag], in the order of the stream. Members are
/// added up in their order within pieces whose ends depend only on where in all members they are, and then the pieces
/// in their order.
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

/// sums[number] = the sum of each unique key.
/// @param sums (unique keys or more, dim)
void write_sums_async(SegmentedSumView const& view, std::span<float> sums, cudaStream_t stream);

}  // namespace headway::embedding
