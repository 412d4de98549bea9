#pragma once

#include "hstu/cuda/fragment_place.cuh"
#include "hstu/cuda/hopper_backward_state.cuh"
#include "hstu/cuda/store_rows.cuh"

#include <cstdint>

namespace headway::kernels {

/// Sums for the gradients of queries where a block of threads goes through all tiles of keys of a sequence: nobody else
/// adds to them, and of a block of queries a thread has the same sums at each tile. Between two tiles they are in
/// memory that the thread alone uses, so nothing waits for it: of the last blocks of queries (Shape::kNearBlocks)
/// shared memory, of others global memory that should stay in the L2 cache.
///
/// Example: causal, 300 tokens. Queries 0 to 127 see tile 0 only: their sums become gradients at once. Queries 256 to
/// 299 see three tiles: after tile 0 their sums are kept, for tile 1 loaded and kept again, for tile 2 loaded and, with
/// its own, stored as gradients.
template <class T, class Shape>
class HopperOwnQuerySums {
 public:
  static constexpr int kSums = Shape::kQuerySumColumns / 2;  ///< Of a thread.

  /// @param warpgroup of those that compute: it has the columns of that number
  __device__ __forceinline__ HopperOwnQuerySums(HopperBackwardParams const& params, int warpgroup)
      : params_(params), warpgroup_(warpgroup) {}

  /// What the tiles before have given.
  __device__ __forceinline__ void begin(float (&sums)[kSums], OwnSumsPlace const& place,
                                        KeyTileInfo const& tile) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0;
    if (!place.has_before) return;
    at_place(place, tile, [&sums](auto const& memory) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        float4 const four = memory.load(128 * i);
        sums[4 * i] = four.x;
        sums[4 * i + 1] = four.y;
        sums[4 * i + 2] = four.z;
        sums[4 * i + 3] = four.w;
      }
    });
  }

  /// Keeps them for the next tile, or makes gradients of them.
  __device__ __forceinline__ void finish(float const (&sums)[kSums], OwnSumsPlace const& place,
                                         KeyTileInfo const& tile) const {
    if (!place.has_behind) return store(sums, place, tile);
    at_place(place, tile, [&sums](auto const& memory) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        memory.store(128 * i, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
      }
    });
  }

 private:
  /// Shared memory.
  struct NearSums {
    float4* first;
    [[nodiscard]] __device__ __forceinline__ float4 load(int i) const { return first[i]; }
    __device__ __forceinline__ void store(int i, float4 four) const { first[i] = four; }
  };
  /// Global memory.
  struct KeptSums {
    float4* first;
    [[nodiscard]] __device__ __forceinline__ float4 load(int i) const { return load_kept(first + i); }
    __device__ __forceinline__ void store(int i, float4 four) const { store_kept(first + i, four); }
  };

  /// Calls `use` with the memory that has the thread's sums between two tiles.
  template <class Use>
  __device__ __forceinline__ void at_place(OwnSumsPlace const& place, KeyTileInfo const& tile, Use use) const {
    std::int32_t const behind = blocks_behind(place, tile);
    if (behind < Shape::kNearBlocks) return use(NearSums{near_sums(behind)});
    use(KeptSums{kept_sums(place)});
  }

  __device__ __forceinline__ void store(float const (&sums)[kSums], OwnSumsPlace const& place,
                                        KeyTileInfo const& tile) const {
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const scale = scale_of_weights(params_, mask.num_keys) * params_.half_alpha;
    OutputRows to_query(params_.grad_query, tile.sequence.first_query_row, tile.head, FragmentPlace(place.first_query),
                        mask.num_queries, scale);
    to_query.data += Shape::kQuerySumColumns * warpgroup_;
    store_rows<T>(sums, to_query);
  }

  /// Blocks of queries of the sequence behind this one.
  [[nodiscard]] static __device__ __forceinline__ std::int32_t blocks_behind(OwnSumsPlace const& place,
                                                                             KeyTileInfo const& tile) {
    return (tile.sequence.mask.num_queries - 1) / Shape::kBlockQueries - place.first_query / Shape::kBlockQueries;
  }

  [[nodiscard]] __device__ __forceinline__ float4* near_sums(std::int32_t behind) const {
    return reinterpret_cast<float4*>(shared_memory() + Shape::kQuerySumsAt) +
           (2 * behind + warpgroup_) * (Shape::kQuerySums / 4) + threadIdx.x % 128;
  }

  [[nodiscard]] __device__ __forceinline__ float4* kept_sums(OwnSumsPlace const& place) const {
    std::int64_t const block = std::int64_t{blockIdx.x} * params_.most_query_blocks;
    std::int64_t const part = 2 * (block + place.first_query / Shape::kBlockQueries) + warpgroup_;
    return reinterpret_cast<float4*>(params_.query_sums) + part * (Shape::kQuerySums / 4) + threadIdx.x % 128;
  }

  HopperBackwardParams const& params_;
  int warpgroup_;
};

}  // namespace headway::kernels
