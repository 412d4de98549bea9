// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hstu/cuda/sm90/backward/state.cuh"
#include "hstu/cuda/sm90/fragment_coord.cuh"
#include "hstu/cuda/sm90/store_rows.cuh"

#include <cstdint>

namespace headway::kernels {

/// dQ accumulation if a block of threads goes through all tiles of keys of a sequence (BackwardWork::kSequences).
///
/// Idea: nobody else adds to this dQ, and a thread has the same accumulator elements of a block of queries at each
/// tile. Between two tiles they stay in memory that only this thread uses, so no synchronisation is needed. The last
/// blocks of queries (Shape::kSharedDqBlocks) use shared memory. Others use global memory that should stay in the L2
/// cache.
///
/// Example: causal, 300 tokens, tiles of 128 keys. Queries 0 to 127 see tile 0 only: their dQ is stored at once.
/// Queries 256 to 299 see three tiles: dQ is kept after tile 0, loaded and kept again by tile 1, loaded by tile 2 and
/// stored.
///
/// Invariants: the accumulator is the initial value of the wgmma product, so dQ is added in the order of tiles: results
/// are bitwise reproducible. It is rounded once, when it is stored. Complexity: each tile but the first reads, and each
/// but the last writes, 4 * dim bytes per query.
template <class T, class Shape>
class SequenceAccDq {
 public:
  static constexpr int kAccDq = Shape::kDqColumns / 2;  ///< Accumulator registers per thread.

  /// @param warpgroup index of the consumer; it owns that half of the columns
  __device__ __forceinline__ SequenceAccDq(Sm90BackwardParams const& params, int warpgroup)
      : params_(params), warpgroup_(warpgroup) {}

  /// Loads the sum of the previous tiles, or zeros, into the accumulator.
  __device__ __forceinline__ void begin(float (&acc_dq)[kAccDq], SequenceDqCoord const& coord,
                                        KeyTileInfo const& tile) const {
#pragma unroll
    for (int i = 0; i < kAccDq; ++i) acc_dq[i] = 0;
    if (!coord.has_before) return;
    with_storage(coord, tile, [&acc_dq](auto const& memory) {
#pragma unroll
      for (int i = 0; i < kAccDq / 4; ++i) {
        float4 const four = memory.load(128 * i);
        acc_dq[4 * i] = four.x;
        acc_dq[4 * i + 1] = four.y;
        acc_dq[4 * i + 2] = four.z;
        acc_dq[4 * i + 3] = four.w;
      }
    });
  }

  /// Keeps the accumulator for the next tile, or stores it as gradient if this is the last tile.
  __device__ __forceinline__ void finish(float const (&acc_dq)[kAccDq], SequenceDqCoord const& coord,
                                         KeyTileInfo const& tile) const {
    if (!coord.has_behind) return store(acc_dq, coord, tile);
    with_storage(coord, tile, [&acc_dq](auto const& memory) {
#pragma unroll
      for (int i = 0; i < kAccDq / 4; ++i) {
        memory.store(128 * i, make_float4(acc_dq[4 * i], acc_dq[4 * i + 1], acc_dq[4 * i + 2], acc_dq[4 * i + 3]));
      }
    });
  }

 private:
  /// Sums in shared memory.
  struct SharedDq {
    float4* first;
    [[nodiscard]] __device__ __forceinline__ float4 load(int i) const { return first[i]; }
    __device__ __forceinline__ void store(int i, float4 four) const { first[i] = four; }
  };
  /// Sums in global memory, with a hint to stay in the L2 cache.
  struct GlobalDq {
    float4* first;
    [[nodiscard]] __device__ __forceinline__ float4 load(int i) const { return load_evict_last(first + i); }
    __device__ __forceinline__ void store(int i, float4 four) const { store_evict_last(first + i, four); }
  };

  /// Calls `use` with the memory that keeps the thread's sums between two tiles.
  template <class Use>
  __device__ __forceinline__ void with_storage(SequenceDqCoord const& coord, KeyTileInfo const& tile, Use use) const {
    std::int32_t const behind = blocks_behind(coord, tile);
    if (behind < Shape::kSharedDqBlocks) return use(SharedDq{shared_dq(behind)});
    use(GlobalDq{global_dq(coord)});
  }

  /// Scales, rounds and stores the gradient of a block of queries.
  __device__ __forceinline__ void store(float const (&acc_dq)[kAccDq], SequenceDqCoord const& coord,
                                        KeyTileInfo const& tile) const {
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const scale = scale_of_weights(params_, mask.num_keys) * params_.half_alpha;
    OutputRows to_query(params_.grad_query, tile.sequence.first_query_row, tile.head, FragmentCoord(coord.first_query),
                        mask.num_queries, scale);
    to_query.data += Shape::kDqColumns * warpgroup_;
    store_rows<T>(acc_dq, to_query);
  }

  /// Number of blocks of queries of the sequence behind this one.
  [[nodiscard]] static __device__ __forceinline__ std::int32_t blocks_behind(SequenceDqCoord const& coord,
                                                                             KeyTileInfo const& tile) {
    return (tile.sequence.mask.num_queries - 1) / Shape::kBlockQueries - coord.first_query / Shape::kBlockQueries;
  }

  [[nodiscard]] __device__ __forceinline__ float4* shared_dq(std::int32_t behind) const {
    return reinterpret_cast<float4*>(shared_memory() + Shape::kAccDqAt) +
           (2 * behind + warpgroup_) * (Shape::kDqElements / 4) + threadIdx.x % 128;
  }

  [[nodiscard]] __device__ __forceinline__ float4* global_dq(SequenceDqCoord const& coord) const {
    std::int64_t const block = std::int64_t{blockIdx.x} * params_.max_query_blocks;
    std::int64_t const part = 2 * (block + coord.first_query / Shape::kBlockQueries) + warpgroup_;
    return reinterpret_cast<float4*>(params_.acc_dq) + part * (Shape::kDqElements / 4) + threadIdx.x % 128;
  }

  Sm90BackwardParams const& params_;
  int warpgroup_;
};

}  // namespace headway::kernels
