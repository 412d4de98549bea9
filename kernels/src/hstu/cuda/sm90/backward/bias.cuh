// SPDX-License-Identifier: Apache-2.0

// Bias in a consumer of the backward pass on sm_90a: the same bias as in the forward pass is added to S again, and dS
// is added to the gradients of time weights while wgmma runs. Position gradients are in bias_gradients.cuh.
//
// A strip is the 16 keys of one warp and all queries of a block. It consists of groups of 8 queries; two neighbouring
// groups are a chunk. A chunk is mixed if one comparison per pair cannot tell its time buckets, mostly because a group
// lies in more than two: its time weights are looked up pair by pair (bias/time_bias.cuh).

#pragma once

#include "hstu/cuda/sm90/backward/time_gradients.cuh"
#include "hstu/cuda/sm90/fragment_coord.cuh"

#include <cstdint>

namespace headway::kernels {

/// Bias work of one consumer (64 keys): adds the bias to scores, and dS to the gradients of time weights.
template <class T, class Shape>
class Sm90BackwardBias {
 public:
  using Queries = RingPosition<Shape::kStages>;
  using TimeBias = typename BiasBlock<Shape>::TimeBias;
  static constexpr int kAccS = 4 * TimeBias::kGroups;  ///< Accumulator registers of S per thread.
  static constexpr int kSteps = TimeBias::kChunks;

  /// Time bias of a warp's 16 keys and a block of queries, as far as a thread keeps it in registers.
  struct Strip {
    typename TimeBias::Strip about;  ///< Masks of chunks: mixed ones, and those with one bucket per group.
    float below[TimeBias::kGroups];  ///< Weight of the first bucket of each group; 0 in mixed chunks.
  };

  __device__ __forceinline__ Sm90BackwardBias(Sm90BackwardParams const& params, int warpgroup)
      : params_(params), state_(backward_state<Shape>()), warpgroup_(warpgroup), time_gradients_(params) {}

  /// Begin and end of the kernel and of a tile of keys: see Sm90TimeGradients.
  __device__ __forceinline__ void begin() const { time_gradients_.begin(); }
  __device__ __forceinline__ void begin_tile(KeyTileInfo const& tile) const {
    time_gradients_.begin_tile(params_.half_alpha * scale_of_weights(params_, tile.sequence.mask.num_keys));
  }
  __device__ __forceinline__ void end() const { time_gradients_.end(); }

  /// Waits for the bias of a block of queries, and loads the thread's part.
  [[nodiscard]] __device__ __forceinline__ Strip wait_for(Queries const& queries) const {
    wait_for_block(queries);
    TimeBias const& bias = block_of(queries).time_bias;
    Strip strip{bias.strips[warp()], {}};
    bias.bias[warp()].load_below(strip.below);
    return strip;
  }
  /// Releases the bias of a block that this consumer passes over.
  __device__ __forceinline__ void pass_over(Queries const& queries) const {
    wait_for_block(queries);
    release(&state_.bias_empty[stage_of(queries)]);
  }
  /// Adds dS to the gradients of time weights and releases the bias. Called while wgmma is in flight.
  __device__ __forceinline__ void finish(Queries const& queries, std::uint32_t const (&ds)[kSteps][4]) const {
    if (time_gradients_.is_wanted()) time_gradients_.add(ds, block_of(queries).time_bias);
    release(&state_.bias_empty[stage_of(queries)]);
  }

  /// Position bias of the thread's accumulator elements. The template argument -1: columns are queries.
  [[nodiscard]] __device__ __forceinline__ PositionBias<-1> position(Queries const& queries) const {
    FragmentCoord const coord(64 * warpgroup_);
    return PositionBias<-1>(block_of(queries).positions.weights + Shape::kBlockQueries - 1 + coord.row - coord.column);
  }

  /// Replaces scores by half_alpha * (score + bias), in place; the bias in shared memory already has the factor. Only
  /// called if there is a time bias.
  /// @param keys_parity phase parity of the tile of keys
  __device__ __forceinline__ void add_to(float (&s)[kAccS], Strip const& strip, Queries const& queries,
                                         std::uint32_t keys_parity, FragmentCoord const& coord) const {
    float factor = params_.half_alpha;
    if (params_.bias.has_position()) {
      add_position_bias(s, factor, position(queries));
      factor = 1;
    }
    std::uint32_t const mixed = strip.about.mixed & chunks_seen(queries, coord);
    add_below(s, factor, strip.below);
    BiasBlock<Shape> const& block = block_of(queries);
    TimePair const* const columns = block.times.pairs + coord.column / 2;
    // Read from shared memory each time, as registers are few.
    RowTimes const rows = state_.key_times[keys_parity].times_of_rows(FragmentCoord(64 * warpgroup_).row);
    add_rises(s, strip, block.time_bias.bias[warp()], columns, rows);
    add_mixed(s, mixed, columns, rows);
  }

 private:
  static constexpr int kChunkGroups = TimeBias::kChunkGroups, kChunkAcc = 4 * kChunkGroups;

  /// Index of this warp among the consumer warps.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t warp() { return threadIdx.x / kWarpThreads - 4; }
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t stage_of(Queries const& queries) {
    return Sm90BackwardState<Shape>::bias_stage_of(queries);
  }
  __device__ __forceinline__ void wait_for_block(Queries const& queries) const {
    wait(&state_.bias_full[stage_of(queries)], state_.blocks[queries.index].bias_parity);
  }
  [[nodiscard]] __device__ __forceinline__ BiasBlock<Shape> const& block_of(Queries const& queries) const {
    return state_.bias_blocks[stage_of(queries)];
  }

  /// Adds the rises of chunks that have a group in two buckets, and records which pairs are above their bound.
  /// A group is 16 keys by 8 queries. In most groups all pairs lie in one bucket or in two neighbouring ones: the
  /// lower one's weight has been added to all (add_below()), and the rise to the upper one is added where a pair is
  /// above the bound.
  __device__ __forceinline__ void add_rises(float (&s)[kAccS], Strip const& strip,
                                            StripBias<TimeBias::kGroups> const& bias, TimePair const* columns,
                                            RowTimes const& rows) const {
    float const low_rows[] = {rows.times[0].low, rows.times[1].low};
#pragma unroll
    for (int chunk = 0; chunk < TimeBias::kChunks; ++chunk) {
      int const first = chunk * kChunkGroups;
      if ((strip.about.alike >> first & 1) != 0) continue;
      // The bits are kept in shared memory, as registers are few.
      time_gradients_.are_above()[chunk] =
          static_cast<std::uint8_t>(bias.template add_rises<kChunkGroups>(s, first, columns, low_rows));
    }
  }

  /// Adds the bias of mixed chunks, looked up pair by pair.
  /// @param chunks bit mask: a chunk is marked by its first group
  __device__ __forceinline__ void add_mixed(float (&s)[kAccS], std::uint32_t chunks, TimePair const* columns,
                                            RowTimes const& rows) const {
    TimeTable const table = backward_time_table<Shape>(params_.bias);
    // The loop is not unrolled: all chunks share one copy of the code.
#pragma unroll 1
    for (; chunks != 0; chunks &= chunks - 1) {
      int const first = __ffs(static_cast<int>(chunks)) - 1;
      float values[kChunkAcc];  // Holds time differences, then biases.
      std::int32_t buckets[kChunkAcc];
#pragma unroll
      for (int i = 0; i < kChunkAcc; ++i) {
        values[i] = fabsf(time_difference(rows.times[i % 4 / 2], columns[4 * (first + i / 4)].time(i % 2)));
      }
      table.find_buckets(values, buckets);
#pragma unroll
      for (int i = 0; i < kChunkAcc; ++i) values[i] = table.weight(buckets[i]);
#pragma unroll
      for (int chunk = 0; chunk < TimeBias::kChunks; ++chunk) {
        if (first != chunk * kChunkGroups) continue;
#pragma unroll
        for (int i = 0; i < kChunkAcc; ++i) s[kChunkAcc * chunk + i] += values[i];
      }
    }
  }

  /// Chunks with a query that sees one of this warp's 16 keys, as a bit mask of first groups.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t chunks_seen(Queries const& queries,
                                                                     FragmentCoord const& coord) const {
    static_assert(kChunkGroups == 2);
    if (state_.blocks[queries.index].is_whole) return ~0u;
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
    std::int32_t const first_row = coord.row - lane / 4;
    std::uint32_t chunks = 0;
#pragma unroll
    for (int first = 0; first < Shape::kBlockQueries; first += kWarpThreads) {
      // One query per lane; 16 lanes are a chunk.
      bool const sees = state_.visibility[queries.index][first + lane].sees_some(first_row, 16);
      std::uint32_t const lanes = __ballot_sync(kAllLanes, sees);
      if ((lanes & 0xffffu) != 0) chunks |= 1u << first / 8;
      if ((lanes >> 16) != 0) chunks |= 1u << (first / 8 + 2);
    }
    return chunks;
  }

  Sm90BackwardParams const& params_;
  Sm90BackwardState<Shape>& state_;
  int warpgroup_;
  Sm90TimeGradients<T, Shape> time_gradients_;
};

/// Empty replacement for Sm90BackwardBias where there is no bias.
template <class Shape>
struct NoBackwardBias {
  using Queries = RingPosition<Shape::kStages>;
  struct Strip {};

  __device__ __forceinline__ NoBackwardBias(Sm90BackwardParams const& /*params*/, int /*warpgroup*/) {}

  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void begin_tile(KeyTileInfo const& /*tile*/) const {}
  __device__ __forceinline__ void end() const {}
  [[nodiscard]] __device__ __forceinline__ Strip wait_for(Queries const& /*queries*/) const { return {}; }
  __device__ __forceinline__ void pass_over(Queries const& /*queries*/) const {}
  template <class Grads>
  __device__ __forceinline__ void finish(Queries const& /*queries*/, Grads const& /*ds*/) const {}
};

}  // namespace headway::kernels
