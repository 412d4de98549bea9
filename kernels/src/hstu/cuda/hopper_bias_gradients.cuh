#pragma once

#include "hstu/cuda/hopper_time_gradients.cuh"

#include <cstdint>

namespace headway::kernels {

/// A warpgroup that adds gradients of scores, which the others leave in shared memory, to those of bias weights: of
/// positions, and of times in chunks that are looked up pair by pair (BlockTimeBias).
template <class T, class Shape>
class HopperBiasGradients {
 public:
  explicit __device__ __forceinline__ HopperBiasGradients(HopperBackwardParams const& params)
      : params_(params), state_(backward_state<Shape>()), thread_(static_cast<std::int32_t>(threadIdx.x % 128)) {}

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
  static constexpr int kRowBytes = Shape::ScoreTile::kRowBytes;
  static_assert(kRowBytes == 16 * Shape::kBlockQueries / 8);
  static_assert(Shape::kBlockKeys == 128);

  using KeyTimes = BlockTimes<Shape::kBlockKeys, 16>;
  using TimeBias = typename BiasBlock<Shape>::TimeBias;

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
      wait(&state_.grads_full[stage], queries_.parity);
      if (params_.grad_position_weights != nullptr) add_positions(stage, first_distance - block.first_query, factor);
      if (params_.grad_time_weights != nullptr) add_times(stage, key_times, block);
      release(&state_.grads_empty[stage]);
      release(&state_.bias_empty[bias_.index]);
      queries_.advance();
      bias_.advance();
    }
    release(&state_.keys_empty);
  }

  /// Pairs of the same distance lie on a diagonal. A thread goes from 8 queries of a key to the next 8 queries of the
  /// eighth key behind it, which are on the same 8 diagonals; it begins with the first queries, or where that is above
  /// the tile, with the first key.
  /// @param first_distance of the first key from the first query
  __device__ __forceinline__ void add_positions(std::uint32_t stage, std::int32_t first_distance, float factor) const {
    constexpr std::int32_t kAbove = Shape::kBlockQueries - 8;
    static_assert(kAbove <= 2 * kWarpThreads);
    add_diagonals(stage, thread_ - kAbove, first_distance, factor);
    // As many keys at the tile's end are left.
    if (thread_ < 2 * kWarpThreads) add_diagonals(stage, thread_ - kAbove + Shape::kBlockKeys, first_distance, factor);
  }

  /// By all lanes of a warp.
  /// @param first_key for the first queries; it may be outside of the tile
  __device__ __forceinline__ void add_diagonals(std::uint32_t stage, std::int32_t first_key,
                                                std::int32_t first_distance, float factor) const {
    float sums[8] = {};
#pragma unroll 2
    for (std::int32_t query = 0; query < Shape::kBlockQueries; query += 8) {
      std::int32_t const key = first_key + query;
      if (key < 0 || key >= Shape::kBlockKeys) continue;
      float grads[8];
      load_eight(stage, key, query, grads);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += grads[i];
    }
    // Sum i of a lane is of the diagonal of sum 0 of the lane i before, or of a lane 32 further in the warp before.
    std::int32_t const lane = thread_ % kWarpThreads;
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

  __device__ __forceinline__ void add_position(std::int32_t distance, float sum) const {
    auto const place = static_cast<std::int32_t>(params_.bias.max_position_distance - 1) + distance;
    if (sum != 0 && place >= 0 && place <= 2 * params_.bias.max_position_distance - 2) {
      atomicAdd(params_.grad_position_weights + place, sum);
    }
  }

  /// A warp those of 16 queries, as around a diagonal all have about as many chunks then.
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

  /// Of 16 keys and 16 queries. A product with ones in a column sums those of a bucket.
  __device__ __forceinline__ void add_chunk(std::uint32_t stage, KeyTimes const& keys, BiasBlock<Shape> const& block,
                                            std::int32_t strip, std::int32_t first_group) const {
    constexpr std::int32_t kColumns = 8;
    std::int32_t const lane = thread_ % kWarpThreads;
    std::uint32_t grads[4], buckets[4];
    load_matrices(grads, shared_memory() + offset_of(stage, 16 * strip + lane % 16, 8 * (first_group + lane / 16)));
    // Nobody sees a pair of half of the chunks around a diagonal.
    std::uint32_t const any = (grads[0] | grads[1] | grads[2] | grads[3]) & 0x7fff7fffu;
    if (!__any_sync(kAllLanes, any != 0)) return;
    find_buckets(keys.times_of_rows(16 * strip + lane / 4), block.times.pairs + 4 * first_group + lane % 4, buckets);
    BucketRange const all = block.time_bias.buckets_of_chunk(strip, first_group);
#pragma unroll 1
    for (std::int32_t lowest = all.first; lowest <= all.last; lowest += kColumns) {
      float sums[2][4] = {};  // Of two chains of products.
#pragma unroll 1
      for (std::int32_t first = 0; first < min(kColumns, all.last - lowest + 1); first += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          auto const column = static_cast<std::uint32_t>(first + i);
          std::uint32_t const bucket = (static_cast<std::uint32_t>(lowest) + column) * 0x10001;
          std::uint32_t own[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) own[j] = grads[j] & mask_of_equal_halves(buckets[j], bucket);
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

  /// Of the pairs that the lane has as a first factor, two in each.
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

  /// Gradients of a key and 8 queries.
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

  /// Where the gradient of a key and a query is in shared memory, and those of the next queries behind it.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t stage, std::int32_t key,
                                                                          std::int32_t query) {
    return Shape::kScoresAt + stage * Shape::ScoreTile::kBytes +
           Shape::ScoreTile::offset_of(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(query));
  }

  HopperBackwardParams const& params_;
  HopperBackwardState<Shape>& state_;
  std::int32_t thread_;
  RingPosition<Shape::kStages> queries_;
  RingPosition<Shape::kBiasStages> bias_;
};

}  // namespace headway::kernels
