#pragma once

#include "hstu/cuda/hopper_backward_state.cuh"

#include <cstdint>

namespace headway::kernels {

/// A warpgroup that adds gradients of scores, which the others leave in shared memory, to those of bias weights: of
/// positions, and of times in chunks with groups of more than two buckets. A thread has a key.
///
/// For gradients of time weights a thread has sums of its own in shared memory, so that it adds to them without waiting
/// for others: of as many buckets as there is room for. A warp's threads have those of the same buckets, which follow
/// the pairs; what it leaves behind goes to global memory.
template <class T, class Shape>
class HopperBiasGradients {
 public:
  explicit __device__ __forceinline__ HopperBiasGradients(HopperBackwardParams const& params)
      : params_(params),
        state_(backward_state<Shape>()),
        thread_(static_cast<std::int32_t>(threadIdx.x % 128)),
        num_kept_(buckets_kept<Shape>(params.bias.num_time_bounds)) {}

  __device__ __forceinline__ void run() {
    prepare_backward_time_table<Shape>(params_);
    bool const has_time = params_.grad_time_weights != nullptr;
    if (has_time) clear_time_sums();
    for (std::uint32_t parity = 0;; parity ^= 1) {
      wait(&state_.keys_full, parity);
      if (state_.tiles[parity].is_end) break;
      add_tile(state_.tiles[parity], state_.key_times[parity]);
    }
    if (has_time) write_time_sums();
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
    std::int32_t const first_distance = tile.first_key - (mask.num_keys - mask.num_queries);
    for (bool is_last = !tile.is_seen; !is_last;) {
      std::uint32_t const stage = queries_.index;
      wait(&state_.bias_full[bias_.index], bias_.parity);
      auto const& block = state_.bias_blocks[bias_.index];
      is_last = block.is_last;
      wait(&state_.grads_full[stage], queries_.parity);
      if (params_.grad_position_weights != nullptr) add_positions(stage, first_distance - block.first_query, factor);
      if (params_.grad_time_weights != nullptr) add_times(stage, key_times, block, factor);
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

  /// A warp those of two strips of keys.
  __device__ __forceinline__ void add_times(std::uint32_t stage, KeyTimes const& keys, BiasBlock<Shape> const& block,
                                            float factor) {
    TimeBias const& bias = block.time_bias;
    std::int32_t const lane = thread_ % kWarpThreads, first_strip = thread_ / kWarpThreads * 2;
    std::uint32_t left = bias.strips[first_strip].mixed | bias.strips[first_strip + 1].mixed;
    if (left == 0) return;
    BucketRange const own_range = bias.looked_up(first_strip + lane / TimeBias::kGroups % 2, lane % TimeBias::kGroups);
    cover({__reduce_min_sync(kAllLanes, own_range.first), __reduce_max_sync(kAllLanes, own_range.last)});
    std::uint32_t const own = bias.strips[thread_ / 16].mixed;
    SplitTime const time = keys.time(thread_);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      int const first = __ffs(static_cast<int>(left)) - 1;
      if ((own >> first & 1) == 0) continue;
#pragma unroll 1
      for (int group = first; group < first + TimeBias::kChunkGroups; ++group) {
        float grads[8];
        load_eight(stage, thread_, 8 * group, grads);
        add_group(block.times.pairs + 4 * group, time, grads, factor);
      }
    }
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

  /// Of a key and 8 queries.
  __device__ __forceinline__ void add_group(TimePair const* queries, SplitTime time, float const (&grads)[8],
                                            float factor) const {
    float apart[8];
    std::int32_t buckets[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) apart[i] = fabsf(time_difference(time, queries[i / 2].times[i % 2]));
    backward_time_table<Shape>(params_.bias).find_buckets(apart, buckets);
#pragma unroll
    for (int i = 0; i < 8; ++i) add_to_sum(buckets[i], grads[i], factor);
  }

  /// Those of buckets that are not kept go to global memory at once.
  __device__ __forceinline__ void add_to_sum(std::int32_t bucket, float grad, float factor) const {
    std::int32_t const place = bucket - first_kept_;
    if (static_cast<std::uint32_t>(place) < static_cast<std::uint32_t>(num_kept_)) {
      float& sum = time_sums()[place * Shape::kBlockKeys + thread_];
      sum = fmaf(grad, factor, sum);
    } else if (grad != 0) {
      atomicAdd(params_.grad_time_weights + bucket, grad * factor);
    }
  }

  /// Keeps sums of these buckets from here on, or if they are too many, of the last ones, which have most pairs as
  /// buckets of long times are wider.
  __device__ __forceinline__ void cover(BucketRange const& buckets) {
    std::int32_t const first = max(buckets.first, buckets.last - num_kept_ + 1);
    if (first >= first_kept_ && buckets.last < first_kept_ + num_kept_) return;
    write_time_sums();
    first_kept_ = first;
  }

  /// Where the gradient of a key and a query is in shared memory, and those of the next queries behind it.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t stage, std::int32_t key,
                                                                          std::int32_t query) {
    return Shape::kScoresAt + stage * Shape::ScoreTile::kBytes +
           Shape::ScoreTile::offset_of(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(query));
  }

  /// By bucket and thread, behind the table of times.
  [[nodiscard]] __device__ __forceinline__ float* time_sums() const {
    return reinterpret_cast<float*>(shared_memory() + Shape::kStateAt + sizeof(HopperBackwardState<Shape>) +
                                    TimeTable::size_bytes(params_.bias.num_time_bounds));
  }
  __device__ __forceinline__ void clear_time_sums() const {
    for (std::int32_t place = 0; place < num_kept_; ++place) time_sums()[place * Shape::kBlockKeys + thread_] = 0;
    __syncwarp();
  }

  /// Adds the sums of the warp to those in global memory, and clears them. A lane has a bucket; lanes begin at
  /// different threads, so that they read different banks.
  __device__ __forceinline__ void write_time_sums() const {
    __syncwarp();
    std::int32_t const lane = thread_ % kWarpThreads, first_thread = thread_ - lane;
    for (std::int32_t place = lane; place < num_kept_; place += kWarpThreads) {
      float* const of_threads = time_sums() + place * Shape::kBlockKeys + first_thread;
      float total = 0;
#pragma unroll 8
      for (int i = 0; i < kWarpThreads; ++i) {
        float& sum = of_threads[(lane + i) % kWarpThreads];
        total += sum;
        sum = 0;
      }
      if (total != 0) atomicAdd(params_.grad_time_weights + first_kept_ + place, total);
    }
    __syncwarp();
  }

  HopperBackwardParams const& params_;
  HopperBackwardState<Shape>& state_;
  std::int32_t thread_;
  std::int32_t num_kept_, first_kept_ = 0;  ///< Buckets of which a thread has sums.
  RingPosition<Shape::kStages> queries_;
  RingPosition<Shape::kBiasStages> bias_;
};

}  // namespace headway::kernels
