#pragma once

#include "hstu/cuda/hopper_backward_state.cuh"

#include <cstdint>

namespace headway::kernels {

/// A warpgroup that adds gradients of scores, which the others leave in shared memory, to those of bias weights.
template <class T, class Shape>
class HopperBiasGradients {
 public:
  explicit __device__ __forceinline__ HopperBiasGradients(HopperBackwardParams const& params)
      : params_(params), state_(backward_state<Shape>()), thread_(static_cast<std::int32_t>(threadIdx.x % 128)) {}

  __device__ __forceinline__ void run() {
    prepare_backward_time_table<Shape>(params_.bias);
    bool const has_time = params_.grad_time_weights != nullptr;
    if (has_time) clear_time_sums();
    for (std::uint32_t parity = 0;; parity ^= 1) {
      wait(&state_.keys_full, parity);
      if (state_.tile.is_end) break;
      add_tile(state_.tile);
    }
    if (has_time) write_time_sums();
  }

 private:
  /// Of neighbouring queries, whose times from one key mostly lie in one bucket.
  struct Run {
    std::int32_t bucket = 0;
    float sum = 0;
  };

  __device__ __forceinline__ void add_tile(KeyTileInfo const& tile) {
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const factor = params_.half_alpha * scale_of_weights(params_, mask.num_keys);
    std::int32_t const first_distance = tile.first_key - (mask.num_keys - mask.num_queries);
    Run run;
    SplitTime time;
    if (params_.grad_time_weights != nullptr) {
      std::int32_t const key = min(tile.first_key + thread_, mask.num_keys - 1);
      time = {__ldg(params_.bias.key_times + tile.sequence.first_key_row + key), tile.base_time};
    }
    for (bool is_last = !tile.is_seen; !is_last;) {
      std::uint32_t const stage = queries_.index;
      wait(&state_.queries_full[stage], queries_.parity);
      QueryBlockInfo const block = state_.blocks[stage];
      is_last = block.is_last;
      wait(&state_.grads_full[stage], queries_.parity);
      if (params_.grad_position_weights != nullptr) add_positions(stage, first_distance - block.first_query, factor);
      if (params_.grad_time_weights != nullptr) add_times(stage, time, factor, run);
      release(&state_.queries_empty[stage]);
      queries_.advance();
    }
    if (params_.grad_time_weights != nullptr) flush(run, factor);
    release(&state_.keys_empty);
  }

  /// A thread goes along a diagonal, on which the distance from query to key is the same, and where that leaves the
  /// tile above, along the one that begins there.
  /// @param first_distance of the first key from the first query
  __device__ __forceinline__ void add_positions(std::uint32_t stage, std::int32_t first_distance, float factor) const {
    constexpr std::int32_t kLast = Shape::kBlockQueries - 1;
    float inside = 0, above = 0;
#pragma unroll 8
    for (std::int32_t query = 0; query < Shape::kBlockQueries; ++query) {
      std::int32_t const key = thread_ - kLast + query;
      float const grad = grad_of(stage, key & (Shape::kBlockKeys - 1), query);
      if (key >= 0) {
        inside += grad;
      } else {
        above += grad;
      }
    }
    add_position(first_distance + thread_ - kLast, inside * factor);
    add_position(first_distance + thread_ - kLast + Shape::kBlockKeys, above * factor);
  }

  __device__ __forceinline__ void add_position(std::int32_t distance, float sum) const {
    auto const place = static_cast<std::int32_t>(params_.bias.max_position_distance - 1) + distance;
    if (sum != 0 && place >= 0 && place <= 2 * params_.bias.max_position_distance - 2) {
      atomicAdd(params_.grad_position_weights + place, sum);
    }
  }

  /// A thread goes along the queries of its key.
  __device__ __forceinline__ void add_times(std::uint32_t stage, SplitTime const& time, float factor, Run& run) const {
    TimeTable const table = backward_time_table<Shape>(params_.bias);
    bool const is_crowded = table.is_crowded();
#pragma unroll 4
    for (std::int32_t query = 0; query < Shape::kBlockQueries; ++query) {
      float const apart = fabsf(time_difference(time, state_.query_times[stage].times[query]));
      std::int32_t const bucket =
          is_crowded ? table.template bucket_of<true>(apart) : table.template bucket_of<false>(apart);
      if (bucket != run.bucket) {
        flush(run, factor);
        run = {bucket, 0};
      }
      run.sum += grad_of(stage, thread_, query);
    }
  }

  __device__ __forceinline__ void flush(Run const& run, float factor) const {
    if (run.sum != 0) atomicAdd(time_sums() + run.bucket, run.sum * factor);
  }

  [[nodiscard]] __device__ __forceinline__ float grad_of(std::uint32_t stage, std::int32_t key,
                                                         std::int32_t query) const {
    std::uint32_t const offset =
        Shape::ScoreTile::offset_of(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(query));
    std::byte const* const tile = shared_memory() + Shape::kScoresAt + stage * Shape::ScoreTile::kBytes;
    return to_float(*reinterpret_cast<T const*>(tile + offset));
  }

  /// Behind the table of times, one for each weight.
  [[nodiscard]] __device__ __forceinline__ float* time_sums() const {
    return reinterpret_cast<float*>(shared_memory() + Shape::kStateAt + sizeof(HopperBackwardState<Shape>) +
                                    TimeTable::size_bytes(params_.bias.num_time_bounds));
  }
  __device__ __forceinline__ void clear_time_sums() const {
    for (std::int64_t i = thread_; i <= params_.bias.num_time_bounds; i += 128) time_sums()[i] = 0;
    sync_named(kTimeSums, 128);
  }
  __device__ __forceinline__ void write_time_sums() const {
    sync_named(kTimeSums, 128);
    for (std::int64_t i = thread_; i <= params_.bias.num_time_bounds; i += 128) {
      if (time_sums()[i] != 0) atomicAdd(params_.grad_time_weights + i, time_sums()[i]);
    }
  }

  /// By each warp for itself.
  static __device__ __forceinline__ void release(Barrier* empty) {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) arrive(empty);
  }

  HopperBackwardParams const& params_;
  HopperBackwardState<Shape>& state_;
  std::int32_t thread_;
  RingPosition<Shape::kStages> queries_;
};

}  // namespace headway::kernels
