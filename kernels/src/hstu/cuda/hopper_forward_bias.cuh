#pragma once

#include "hstu/cuda/fragment_place.cuh"
#include "hstu/cuda/hopper_forward_state.cuh"

#include <cstdint>

namespace headway::kernels {

/// A warpgroup that finds time biases for those that compute.
template <class T, class Shape>
class HopperForwardBias {
 public:
  explicit __device__ __forceinline__ HopperForwardBias(HopperForwardParams const& params)
      : params_(params), state_(forward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    fill_time_table();
    for (RingPosition<Shape::kTileStages> tile;; tile.advance()) {
      wait(&state_.tile_known[tile.index], tile.parity);
      if (state_.tiles[tile.index].is_end) return;
      for (bool is_last = false; !is_last;) is_last = take_block(state_.query_times[tile.index]);
      release(&state_.tile_empty[tile.index]);
    }
  }

 private:
  static __device__ __forceinline__ void meet() {
    constexpr int kBarrier = 3;
    sync_named(kBarrier, 128);
  }

  __device__ __forceinline__ void fill_time_table() const {
    forward_time_table<Shape>(params_.bias)
        .fill(params_.bias, params_.half_alpha, static_cast<int>(threadIdx.x % 128), 128, meet);
    meet();
  }

  /// @returns whether it was the last of the tile
  __device__ __forceinline__ bool take_block(BlockTimes<Shape::kBlockQueries, 16> const& query_times) {
    wait(&state_.bias_full[bias_.index], bias_.parity);
    ForwardBiasBlock<Shape> const& block = state_.bias_blocks[bias_.index];
    bool const is_last = block.is_last;
#pragma unroll 1
    for (int i = 0; i < Shape::kConsumers; ++i) {
      FragmentPlace const place(64 * i);
      state_.time_values[i].template find<T>(forward_time_table<Shape>(params_.bias), query_times, place.row,
                                             block.times, place.column,
                                             [&] { wait(&state_.times_empty[i], parity_ ^ 1); });
      release(&state_.times_full[i]);
    }
    release(&state_.bias_empty[bias_.index]);
    bias_.advance();
    parity_ ^= 1;
    return is_last;
  }

  HopperForwardParams const& params_;
  HopperForwardState<Shape>& state_;
  RingPosition<Shape::kBiasStages> bias_;
  std::uint32_t parity_ = 0;  ///< Of values.
};

}  // namespace headway::kernels
