#pragma once

#include "cuda/mma.cuh"
#include "hstu/cuda/hopper_backward_state.cuh"
#include "hstu/cuda/time_columns.cuh"

#include <cstdint>

namespace headway::kernels {

/// A warpgroup that adds gradients of scores, which the others leave in shared memory, to those of bias weights.
template <class T, class Shape>
class HopperBiasGradients {
 public:
  explicit __device__ __forceinline__ HopperBiasGradients(HopperBackwardParams const& params)
      : params_(params),
        state_(backward_state<Shape>()),
        thread_(static_cast<std::int32_t>(threadIdx.x % 128)),
        num_copies_(copies_of_time_sums(params.bias.num_time_bounds)),
        own_time_sums_(time_sums() + (thread_ & (num_copies_ - 1))) {}

  __device__ __forceinline__ void run() {
    prepare_backward_time_table<Shape>(params_);
    bool const has_time = params_.grad_time_weights != nullptr;
    if (has_time) clear_time_sums();
    for (std::uint32_t parity = 0;; parity ^= 1) {
      wait(&state_.keys_full, parity);
      if (state_.tiles[parity].is_end) break;
      add_tile(state_.tiles[parity]);
    }
    if (has_time) write_time_sums();
  }

 private:
  static constexpr int kRowBytes = Shape::ScoreTile::kRowBytes;
  static_assert(kRowBytes == 16 * Shape::kBlockQueries / 8);

  static constexpr int kGroups = 8;  ///< Of 8 queries.
  /// Of a group, so that comparing with bounds takes less than looking up each pair. On the diagonal there are dozens.
  static constexpr std::int32_t kFewBuckets = 8;
  static_assert(Shape::kBlockQueries == 8 * kGroups);

  __device__ __forceinline__ void add_tile(KeyTileInfo const& tile) {
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const factor = params_.half_alpha * scale_of_weights(params_, mask.num_keys);
    std::int32_t const first_distance = tile.first_key - (mask.num_keys - mask.num_queries);
    if (params_.grad_time_weights != nullptr) describe_keys(tile);
    for (bool is_last = !tile.is_seen; !is_last;) {
      std::uint32_t const stage = queries_.index;
      wait(&state_.queries_full[stage], queries_.parity);
      QueryBlockInfo const block = state_.blocks[stage];
      is_last = block.is_last;
      wait(&state_.grads_full[stage], queries_.parity);
      if (params_.grad_position_weights != nullptr) add_positions(stage, first_distance - block.first_query, factor);
      if (params_.grad_time_weights != nullptr) add_times(stage, factor);
      release(&state_.grads_empty[stage]);
      release(&state_.times_empty[stage]);
      queries_.advance();
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
      auto const packed = *reinterpret_cast<uint4 const*>(shared_memory() + offset_of(stage, key, query));
      std::uint32_t const pairs[] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 const two = unpack<T>(pairs[i]);
        sums[2 * i] += two.x;
        sums[2 * i + 1] += two.y;
      }
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

  /// By each warp for its own keys.
  __device__ __forceinline__ void describe_keys(KeyTileInfo const& tile) const {
    std::int32_t const key = min(tile.first_key + thread_, tile.sequence.mask.num_keys - 1);
    __syncwarp();
    state_.key_times[thread_] = {__ldg(params_.bias.key_times + tile.sequence.first_key_row + key), tile.base_time};
    __syncwarp();
  }

  /// Gradients of a warp's 32 keys by groups of 8 queries and the first or last 16 keys. Most groups lie in one bucket,
  /// and are added up by products with ones: so a lane gets the sums of two keys in two groups of each half.
  __device__ __forceinline__ void add_times(std::uint32_t stage, float factor) const {
    TimeTable const table = backward_time_table<Shape>(params_.bias);
    std::int32_t const lane = thread_ % kWarpThreads, first_key = thread_ - lane;
    // A lane looks up one of the groups.
    TimeRange const& key_range = state_.row_times[first_key / 16 + lane / kGroups % 2];
    BucketRange const buckets = buckets_between(table, key_range, state_.query_times[stage].ranges[lane % kGroups]);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) add_alike(stage, first_key + 16 * half, half * kGroups, buckets, factor);
    unsigned mixed = __ballot_sync(kAllLanes, buckets.first != buckets.last) & ((1u << 2 * kGroups) - 1);
    for (; mixed != 0; mixed &= mixed - 1) {
      int const group = __ffs(static_cast<int>(mixed)) - 1;
      BucketRange const of_group{__shfl_sync(kAllLanes, buckets.first, group),
                                 __shfl_sync(kAllLanes, buckets.last, group)};
      add_mixed(stage, first_key + group / kGroups * 16, group % kGroups, of_group, factor);
    }
  }

  /// The groups of 16 keys that lie in one bucket.
  /// @param own buckets of one group; a lane has that with its number from `first_group` on
  __device__ __forceinline__ void add_alike(std::uint32_t stage, std::int32_t first_key, std::int32_t first_group,
                                            BucketRange const& own, float factor) const {
    std::int32_t const lane = thread_ % kWarpThreads;
    float sums[4] = {};
#pragma unroll
    for (int step = 0; step < kGroups / 2; ++step) {
      std::uint32_t grads[4];
      load_matrices(grads, shared_memory() + offset_of(stage, first_key + lane % 16, 16 * step + lane / 16 * 8));
      std::uint32_t const ones = pack<T>(1, 1);
      mma_m16n8k16<T>(sums, grads, {lane / 4 == 2 * step ? ones : 0, lane / 4 == 2 * step + 1 ? ones : 0});
    }
    std::int32_t const bucket = own.first == own.last ? own.first : -1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sums[i] + sums[2 + i];
      sum += __shfl_xor_sync(kAllLanes, sum, 16);
      std::int32_t const of_group = __shfl_sync(kAllLanes, bucket, first_group + lane % 4 * 2 + i);
      if (lane < 16 && of_group >= 0) add_to_sum(of_group, sum * factor);
    }
  }

  /// A group of several buckets. A lane has two queries of two keys, as in a product.
  __device__ __forceinline__ void add_mixed(std::uint32_t stage, std::int32_t first_key, std::int32_t group,
                                            BucketRange const& buckets, float factor) const {
    std::int32_t const lane = thread_ % kWarpThreads, key = first_key + lane / 4, pair = lane % 4;
    float grads[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      auto const* const two = shared_memory() + offset_of(stage, key + 8 * r, 8 * group + 2 * pair);
      float2 const unpacked = unpack<T>(*reinterpret_cast<std::uint32_t const*>(two));
      grads[2 * r] = unpacked.x;
      grads[2 * r + 1] = unpacked.y;
    }
    bool const is_seen = grads[0] != 0 || grads[1] != 0 || grads[2] != 0 || grads[3] != 0;
    if (!__any_sync(kAllLanes, is_seen)) return;
    TimePair const queries = state_.query_times[stage].pairs[4 * group + pair];
    float apart[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      apart[i] = fabsf(time_difference(state_.key_times[key + i / 2 * 8], queries.times[i % 2]));
    }
    if (buckets.last - buckets.first < kFewBuckets) {
      add_by_bounds(buckets, apart, grads, factor);
    } else {
      std::int32_t each[4];
      backward_time_table<Shape>(params_.bias).find_buckets(apart, each);
#pragma unroll
      for (int i = 0; i < 4; ++i) add_to_sum(each[i], grads[i] * factor);
    }
  }

  /// Adds up a warp's gradients four buckets at a time: what is from the bound below each on, less what is from the
  /// next on.
  __device__ __forceinline__ void add_by_bounds(BucketRange const& buckets, float const (&apart)[4],
                                                float const (&grads)[4], float factor) const {
    std::int32_t const lane = thread_ % kWarpThreads;
    TimeTable const table = backward_time_table<Shape>(params_.bias);
    float from = grads[0] + grads[1] + (grads[2] + grads[3]);
#pragma unroll 1
    for (std::int32_t bucket = buckets.first; bucket <= buckets.last; bucket += 4) {
      float sums[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float const bound = bucket + j < buckets.last ? table.bound_above(bucket + j) : INFINITY;
        float from_next = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) from_next += apart[i] >= bound ? grads[i] : 0.0F;
        sums[j] = from - from_next;
        from = from_next;
      }
      float const sum = sum_over_lanes(sums);
      std::int32_t const own = bucket + lane / 8;
      if (lane % 8 == 0 && own <= buckets.last) add_to_sum(own, sum * factor);
    }
  }

  /// @returns the sum over a warp's lanes of one of their values: of that with the number lane / 8
  [[nodiscard]] static __device__ __forceinline__ float sum_over_lanes(float const (&values)[4]) {
    // Lanes with bit 4 take values 2 and 3, and of these those with bit 3 the second one.
    bool const takes_last = (threadIdx.x & 16) != 0, takes_second = (threadIdx.x & 8) != 0;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      two[i] = takes_last ? values[2 + i] : values[i];
      two[i] += __shfl_xor_sync(kAllLanes, takes_last ? values[i] : values[2 + i], 16);
    }
    float sum = takes_second ? two[1] : two[0];
    sum += __shfl_xor_sync(kAllLanes, takes_second ? two[0] : two[1], 8);
#pragma unroll
    for (int bits = 4; bits > 0; bits /= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
    return sum;
  }

  __device__ __forceinline__ void add_to_sum(std::int32_t bucket, float grad) const {
    if (grad != 0) atomicAdd(own_time_sums_ + bucket * num_copies_, grad);
  }

  /// Where the gradient of a key and a query is in shared memory, and those of the next queries behind it.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t stage, std::int32_t key,
                                                                          std::int32_t query) {
    return Shape::kScoresAt + stage * Shape::ScoreTile::kBytes +
           Shape::ScoreTile::offset_of(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(query));
  }

  /// Behind the table of times.
  [[nodiscard]] __device__ __forceinline__ float* time_sums() const {
    return reinterpret_cast<float*>(shared_memory() + Shape::kStateAt + sizeof(HopperBackwardState<Shape>) +
                                    TimeTable::size_bytes(params_.bias.num_time_bounds));
  }
  __device__ __forceinline__ void clear_time_sums() const {
    for (std::int64_t i = thread_; i < (params_.bias.num_time_bounds + 1) * num_copies_; i += 128) {
      time_sums()[i] = 0;
    }
    sync_named(kTimeSums, 128);
  }
  __device__ __forceinline__ void write_time_sums() const {
    sync_named(kTimeSums, 128);
    for (std::int64_t i = thread_; i <= params_.bias.num_time_bounds; i += 128) {
      float sum = 0;
      for (std::int32_t copy = 0; copy < num_copies_; ++copy) sum += time_sums()[i * num_copies_ + copy];
      if (sum != 0) atomicAdd(params_.grad_time_weights + i, sum);
    }
  }

  /// By each warp for itself.
  static __device__ __forceinline__ void release(Barrier* empty) {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) arrive(empty);
  }

  HopperBackwardParams const& params_;
  HopperBackwardState<Shape>& state_;
  std::int32_t thread_, num_copies_;
  float* own_time_sums_;  ///< That of the first bucket; a power of two of sums for each, see copies_of_time_sums().
  RingPosition<Shape::kStages> queries_;
};

}  // namespace headway::kernels
