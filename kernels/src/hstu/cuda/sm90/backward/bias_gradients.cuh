// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of bias weights on sm_90a: a warpgroup that reads dS from shared memory, beside the dQ products.
//
// Idea, positions: all pairs at one distance share a weight, and they lie on a diagonal of dS. A thread reads 8 queries
// of one key with one load. Then it goes to the next 8 queries of the key 8 further: these lie on the same 8 diagonals.
// At the end, lanes combine their sums by shuffles and add them to global memory. Idea, times: consumers leave mixed
// chunks to it: 16 keys and 16 queries in which one comparison per pair cannot tell the bucket, mostly because there
// are more than two (bias/time_bias.cuh). For each bucket of such a chunk, dS of the pairs in it is multiplied by a
// column of ones (mma). Eight buckets fit one accumulator.
//
// Example, positions: a thread begins with key 5, queries 0 to 7 (distances 5 to -2). Next come key 13, queries 8 to
// 15, which have the distances 5 to -2 again.
//
// Invariants: dS of hidden pairs is 0, so no mask is needed. Atomic additions make the order of these sums arbitrary;
// deterministic calls use the sm_80 kernels.
// Complexity: positions read each element of dS once; times cost one mma per chunk and bucket in it.

#include "hstu/cuda/sm90/backward/time_gradients.cuh"

#include <cstdint>

namespace headway::kernels {

/// Warpgroup that adds dS, which consumers leave in shared memory, to gradients of bias weights: all of the position
/// weights, and of the time weights those in mixed chunks (BlockTimeBias).
template <class T, class Shape>
class Sm90BiasGradients {
 public:
  explicit __device__ __forceinline__ Sm90BiasGradients(Sm90BackwardParams const& params)
      : params_(params), state_(backward_state<Shape>()), thread_(static_cast<std::int32_t>(threadIdx.x % 128)) {}

  /// Works through all tiles of keys until the producer marks the end.
  __device__ __forceinline__ void run() {
    own_time_sums<Shape>().begin();
    for (std::uint32_t parity = 0;; parity ^= 1) {
      wait(&state_.keys_full, parity);
      if (state_.tiles[parity].is_end) break;
      add_tile(state_.tiles[parity], state_.key_times[parity]);
    }
    own_time_sums<Shape>().end(params_.grad_time_weights);
  }

 private:
  static constexpr int kRowBytes = Shape::PdsTile::kRowBytes;
  static_assert(kRowBytes == 16 * Shape::kBlockQueries / 8);
  static_assert(Shape::kBlockKeys == 128);

  using KeyTimes = BlockTimes<Shape::kBlockKeys, 16>;
  using TimeBias = typename BiasBlock<Shape>::TimeBias;

  /// Adds dS of all blocks of queries of a tile.
  __device__ __forceinline__ void add_tile(KeyTileInfo const& tile, KeyTimes const& key_times) {
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const factor = params_.half_alpha * scale_of_weights(params_, mask.num_keys);
    own_time_sums<Shape>().begin_tile(factor);
    std::int32_t const first_distance = tile.first_key - (mask.num_keys - mask.num_queries);
    for (bool is_last = !tile.is_seen; !is_last;) {
      std::uint32_t const stage = queries_.index;
      wait(&state_.bias_full[bias_.index], bias_.parity);
      auto const& block = state_.bias_blocks[bias_.index];
      is_last = block.is_last;
      wait(&state_.ds_full[stage], queries_.parity);
      if (params_.grad_position_weights != nullptr) add_positions(stage, first_distance - block.first_query, factor);
      if (params_.grad_time_weights != nullptr) add_times(stage, key_times, block);
      release(&state_.ds_empty[stage]);
      release(&state_.bias_empty[bias_.index]);
      queries_.advance();
      bias_.advance();
    }
    release(&state_.keys_empty);
  }

  /// Adds a block of dS to the gradients of position weights. All pairs at one distance lie on a diagonal. A thread
  /// starts at 8 queries of one key and steps by 8 queries and 8 keys: it stays on the same 8 diagonals. It starts at
  /// the first queries, or if that is above the tile, at the first key.
  /// @param first_distance distance of the first key from the first query
  __device__ __forceinline__ void add_positions(std::uint32_t stage, std::int32_t first_distance, float factor) const {
    constexpr std::int32_t kAbove = Shape::kBlockQueries - 8;
    static_assert(kAbove <= 2 * kWarpThreads);
    add_diagonals(stage, thread_ - kAbove, first_distance, factor);
    // The first call started up to kAbove keys above the tile, so as many keys at its end are left.
    if (thread_ < 2 * kWarpThreads) add_diagonals(stage, thread_ - kAbove + Shape::kBlockKeys, first_distance, factor);
  }

  /// Adds up 8 diagonals per thread, combines those of neighbouring lanes, and adds the sums to global memory. All
  /// lanes of a warp call it.
  /// @param first_key key of the thread for the first queries; it may lie outside of the tile
  __device__ __forceinline__ void add_diagonals(std::uint32_t stage, std::int32_t first_key,
                                                std::int32_t first_distance, float factor) const {
    float sums[8] = {};
#pragma unroll 2
    for (std::int32_t query = 0; query < Shape::kBlockQueries; query += 8) {
      std::int32_t const key = first_key + query;
      if (key < 0 || key >= Shape::kBlockKeys) continue;
      float ds[8];
      load_eight(stage, key, query, ds);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += ds[i];
    }
    // Sum i of a lane is on the diagonal of sum 0 of the lane i before it. For the first lanes that lane is in the warp
    // before; the lane 32 further collects these sums in `before`.
    std::int32_t const lane = thread_ % kWarpThreads;
    // Example: lane 5 holds sums of the distances d + 5, d + 4, ..., d - 2. Lane 4 holds d + 4 as its sum 0, so it
    // takes sum 1 of lane 5, sum 2 of lane 6, and so on.
    float own = sums[0], before = 0;
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      float const sum = __shfl_sync(kAllLanes, sums[i], lane + i);
      if (lane + i < kWarpThreads) {
        own += sum;
      } else {
        before += sum;
      }
    }
    add_position(first_distance + first_key, own * factor);
    add_position(first_distance + first_key - kWarpThreads, before * factor);
  }

  /// Adds to the gradient of one position weight. Distances outside of the table belong to no pair of the sequence.
  __device__ __forceinline__ void add_position(std::int32_t distance, float sum) const {
    auto const index = static_cast<std::int32_t>(params_.bias.max_position_distance - 1) + distance;
    if (sum != 0 && index >= 0 && index <= 2 * params_.bias.max_position_distance - 2) {
      atomicAdd(params_.grad_position_weights + index, sum);
    }
  }

  /// Adds the mixed chunks of dS to the gradients of time weights. A warp has the chunks of 16 queries: around a
  /// diagonal, all warps then have about as many.
  __device__ __forceinline__ void add_times(std::uint32_t stage, KeyTimes const& keys,
                                            BiasBlock<Shape> const& block) const {
    static_assert(TimeBias::kChunks == 4);
    std::int32_t const lane = thread_ % kWarpThreads, first_group = thread_ / kWarpThreads * TimeBias::kChunkGroups;
    bool const is_mixed = lane < TimeBias::kWarps && (block.time_bias.strips[lane].mixed >> first_group & 1) != 0;
#pragma unroll 1
    for (std::uint32_t left = __ballot_sync(kAllLanes, is_mixed); left != 0; left &= left - 1) {
      add_chunk(stage, keys, block, __ffs(static_cast<int>(left)) - 1, first_group);
    }
  }

  /// Adds a chunk of 16 keys and 16 queries. For each bucket, dS of its pairs is multiplied by a column of ones: mma
  /// sums them.
  /// @param strip index of the 16 keys in the tile
  /// @param first_group index of the first 8 queries in the block
  __device__ __forceinline__ void add_chunk(std::uint32_t stage, KeyTimes const& keys, BiasBlock<Shape> const& block,
                                            std::int32_t strip, std::int32_t first_group) const {
    constexpr std::int32_t kColumns = 8;
    std::int32_t const lane = thread_ % kWarpThreads;
    std::uint32_t ds[4], buckets[4];
    ldmatrix_x4(ds, shared_memory() + offset_of(stage, 16 * strip + lane % 16, 8 * (first_group + lane / 16)));
    // Around a diagonal, half of the chunks have no visible pair: all their dS are 0.
    // The sign is masked out: a gradient of -0 counts as 0.
    std::uint32_t const any = (ds[0] | ds[1] | ds[2] | ds[3]) & 0x7fff7fffu;
    if (!__any_sync(kAllLanes, any != 0)) return;
    find_buckets(keys.times_of_rows(16 * strip + lane / 4), block.times.pairs + 4 * first_group + lane % 4, buckets);
    BucketRange const all = block.time_bias.buckets_of_chunk(strip, first_group);
#pragma unroll 1
    for (std::int32_t lowest = all.first; lowest <= all.last; lowest += kColumns) {
      float sums[2][4] = {};  // Two accumulators for two independent chains of mma.
#pragma unroll 1
      for (std::int32_t first = 0; first < min(kColumns, all.last - lowest + 1); first += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          auto const column = static_cast<std::uint32_t>(first + i);
          std::uint32_t const bucket = (static_cast<std::uint32_t>(lowest) + column) * 0x10001;
          std::uint32_t own[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) own[j] = ds[j] & mask_of_equal_halves(buckets[j], bucket);
          // The second operand is zero but for one column of ones. So column `column` of the result holds, per key,
          // the sum of dS over the queries whose bucket this is.
          std::uint32_t const ones = ones_in_column<T>(column);
          mma_m16n8k16<T>(sums[i], own, {ones, ones});
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[0][i] += sums[1][i];
      float of_buckets[2];
      sum_of_rows(sums[0], of_buckets);
      own_time_sums<Shape>().add(lowest, all.last, of_buckets, params_.grad_time_weights);
    }
  }

  /// Finds the buckets of the pairs that a lane holds as the first mma operand, packed in pairs.
  /// @param columns times of the lane's queries, in groups of 8
  __device__ __forceinline__ void find_buckets(RowTimes const& rows, TimePair const* columns,
                                               std::uint32_t (&packed)[4]) const {
    float apart[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      apart[i] = fabsf(time_difference(rows.times[i / 2 % 2], columns[i / 4 * 4].time(i % 2)));
    }
    std::int32_t buckets[8];
    backward_time_table<Shape>(params_.bias).find_buckets(apart, buckets);
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = static_cast<std::uint32_t>(buckets[2 * i] | buckets[2 * i + 1] << 16);
  }

  /// Loads dS of one key and 8 queries.
  __device__ __forceinline__ void load_eight(std::uint32_t stage, std::int32_t key, std::int32_t first_query,
                                             float (&values)[8]) const {
    auto const packed = *reinterpret_cast<uint4 const*>(shared_memory() + offset_of(stage, key, first_query));
    std::uint32_t const pairs[] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 const two = unpack<T>(pairs[i]);
      values[2 * i] = two.x;
      values[2 * i + 1] = two.y;
    }
  }

  /// Offset of dS of a key and a query in shared memory; dS of the next 7 queries follow if `query` is a multiple of 8.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t stage, std::int32_t key,
                                                                          std::int32_t query) {
    return Shape::kDsAt + stage * Shape::PdsTile::kBytes +
           Shape::PdsTile::offset_of(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(query));
  }

  Sm90BackwardParams const& params_;
  Sm90BackwardState<Shape>& state_;
  std::int32_t thread_;
  RingPosition<Shape::kStages> queries_;
  RingPosition<Shape::kBiasStages> bias_;
};

}  // namespace headway::kernels
