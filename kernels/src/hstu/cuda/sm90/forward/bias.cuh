// SPDX-License-Identifier: Apache-2.0
#pragma once

// Time bias of the forward pass on sm_90a: a warpgroup that works ahead of the consumers.
//
// Idea: find_groups() looks at groups of 16 queries and 8 keys, one per lane. Least and greatest difference give the
// first and last bucket of a group. One bucket or two: StripBias holds the bias, and the consumer applies it with one
// comparison per pair. More: find_parts() looks up each pair of the part (32 keys), rounds its bias to T, and stores it
// in a slot, in the register layout of the consumer's accumulator.
//
// Example: queries at times 1000 to 1200, keys at 400 to 450, bounds 500 and 700. Differences range from 550 to 800:
// buckets 1 and 2. So the bias is the weight of bucket 1, plus a rise for differences from 700 on.
//
// Invariants: each warp serves the same warp of both consumers. A part needs a slot until its consumer has added it;
// find_parts() waits for the block before if slots run out. Parts that no query of the 16 sees may get any bias.
// Complexity: two look-ups per group; one look-up per pair of the parts that need it.

#include "hstu/cuda/sm90/forward/state.cuh"
#include "hstu/cuda/sm90/fragment_coord.cuh"

#include <cstdint>
#include <limits>

namespace headway::kernels {

/// Warpgroup that looks up time biases ahead of the consumers and leaves them in TimeValues. Each of its warps works
/// for the same warp of both consumers.
template <class T, class Shape>
class Sm90ForwardBias {
 public:
  explicit __device__ __forceinline__ Sm90ForwardBias(Sm90ForwardParams const& params)
      : params_(params),
        state_(forward_state<Shape>()),
        table_(forward_time_memory<Shape>(), params.bias),
        rounded_(forward_time_memory<Shape>() + TimeTable::size_bytes(params.bias.num_time_bounds)) {}

  __device__ __forceinline__ void run() {
    fill_tables();
    begin_slots();
    // The choice is a template argument, so that no branch is taken for each pair.
    if (RoundedTimeWeights::can_hold(table_)) {
      find_tiles<true>();
    } else {
      find_tiles<false>();
    }
  }

 private:
  using Values = Sm90ForwardTimeValues<Shape>;
  using Parts = typename Values::Parts;
  using Strip = StripBias<Values::kGroups>;
  using QueryTimes = BlockTimes<Shape::kBlockQueries, 16>;
  static_assert(Shape::kConsumers * Values::kGroups <= kWarpThreads);

  /// Work of one lane: a group of 8 columns and 16 rows of one consumer. If there are fewer groups than lanes, several
  /// lanes have the same group and write the same values.
  struct Own {
    int thread = reread_thread();  ///< Read anew, which leaves registers for several pairs at a time.
    int warp = thread / kWarpThreads, lane = thread % kWarpThreads;
    int group = lane % Values::kGroups, consumer = lane / Values::kGroups % Shape::kConsumers;
  };

  /// Barrier of this warpgroup.
  static __device__ __forceinline__ void meet() {
    constexpr int kBarrier = 3;
    named_barrier_sync(kBarrier, 128);
  }

  /// Fills the time table, and the rounded weights if they fit.
  __device__ __forceinline__ void fill_tables() {
    auto const thread = static_cast<int>(threadIdx.x % 128);
    table_.fill(params_.bias, params_.half_alpha, thread, 128, meet);
    meet();
    if (RoundedTimeWeights::can_hold(table_)) rounded_.template fill<T>(table_, thread, 128);
    meet();
  }

  /// Marks the stage before the first block as a block without parts.
  __device__ __forceinline__ void begin_slots() const {
    Own const own;
    if (own.lane == 0) {
      for (Values& values : state_.time_values) values.stages[time_position().previous().index].parts[own.warp] = {};
    }
    __syncwarp();
  }

  /// Works through all tiles until the producer marks the end.
  /// @tparam kIsRounded are there rounded weights (RoundedTimeWeights)?
  template <bool kIsRounded>
  __device__ __forceinline__ void find_tiles() {
    for (RingPosition<Shape::kTileStages> tile;; tile.advance()) {
      wait(&state_.tile_known[tile.index], tile.parity);
      if (state_.tiles[tile.index].is_end) return;
      find_seen_keys(state_.tiles[tile.index]);
      for (bool is_last = false; !is_last;) is_last = find_block<kIsRounded>(state_.query_times[tile.index]);
      release(&state_.tile_empty[tile.index]);
    }
  }

  /// Computes the range of keys that each 16 rows of the tile see. A lane has one row.
  __device__ __forceinline__ void find_seen_keys(QueryTileInfo const& tile) const {
    static_assert(Shape::kConsumers * 16 == kWarpThreads);
    HstuSequenceMask const& mask = tile.sequence.mask;
    Own const own;
    int const consumer = own.lane / 16;
    std::int32_t const query = tile.first_query + 64 * consumer + 16 * own.warp + own.lane % 16;
    HstuKeyRange const range = mask.keys_seen_by(query);
    std::int32_t const token = mask.token_of(query);
#pragma unroll
    for (int i = 0; i < Shape::kConsumers; ++i) {
      bool const is_one = i == consumer && query < mask.num_queries;
      std::int32_t const begin = is_one ? min(range.begin, token) : std::numeric_limits<std::int32_t>::max();
      std::int32_t const end = is_one ? max(range.end, token + 1) : 0;
      state_.time_values[i].seen[own.warp] = {__reduce_min_sync(kAllLanes, begin), __reduce_max_sync(kAllLanes, end)};
    }
    __syncwarp();
  }

  /// Finds the time bias of one block of keys for both consumers.
  /// @returns was it the last block of the tile?
  template <bool kIsRounded>
  __device__ __forceinline__ bool find_block(QueryTimes const& query_times) {
    auto const position = bias_position();
    wait(&state_.bias_full[position.index], position.parity);
    ForwardBiasBlock<Shape> const& block = state_.bias_blocks[position.index];
    bool const is_last = block.is_last;
    find_groups<kIsRounded>(query_times, block);
#pragma unroll 1
    for (int i = 0; i < Shape::kConsumers; ++i) {
      find_parts<kIsRounded>(i, query_times, block.times);
      release(&state_.times_full[time_position().index][i]);
    }
    release(&state_.bias_empty[bias_position().index]);
    ++num_blocks_;
    return is_last;
  }

  /// Classifies the groups of the block, one per lane: stores the bias of groups that lie in one bucket or in two, and
  /// marks the parts that need a look-up per pair. Results stay in shared memory, as registers are few.
  template <bool kIsRounded>
  __device__ __forceinline__ void find_groups(QueryTimes const& query_times,
                                              ForwardBiasBlock<Shape> const& block) const {
    Own const own;
    TimeRange const rows = query_times.ranges[4 * own.consumer + own.warp], columns = block.times.ranges[own.group];
    BucketRange const buckets = buckets_between<kIsRounded>(table_, rows, columns);
    // Near the tile's base time, low parts of times give exact differences. Elsewhere every pair is looked up.
    bool const is_near = rows.is_near_base() && columns.is_near_base();
    std::int32_t const first_group = own.group - own.group % Values::kPartGroups;
    std::int32_t const first_key = block.first_key + 8 * first_group;
    HstuKeyRange const seen = state_.time_values[own.consumer].seen[own.warp];
    bool const is_seen = first_key < seen.end && first_key + 8 * Values::kPartGroups > seen.begin;
    bool const are_several = is_seen && buckets.first != buckets.last;
    Parts const before = parts_before(own.consumer, own.warp);
    Parts const parts{parts_with(own.consumer, are_several),
                      parts_with(own.consumer, are_several && !(is_near && Strip::holds(table_, buckets))),
                      before.slot(before.num_found())};
    auto const bias = Strip::group_of(table_, buckets, (parts.found >> first_group & 1) != 0);
    auto const position = time_position();
#pragma unroll
    for (int i = 0; i < Shape::kConsumers; ++i) wait(&state_.times_empty[position.index][i], position.parity ^ 1);
    auto& stage = state_.time_values[own.consumer].stages[position.index];
    stage.strips[own.warp].set(own.group, bias);
    if (own.group == 0) stage.parts[own.warp] = parts;
    __syncwarp();
  }

  /// Parts of the block before, which hold slots until its consumer has added them. With a single stage they have been
  /// added already.
  [[nodiscard]] __device__ __forceinline__ Parts parts_before(int i, int warp) const {
    if constexpr (Shape::kTimeStages == 1) return {};
    return state_.time_values[i].stages[time_position().previous().index].parts[warp];
  }

  /// Marks a part, by the bit of its first group, if `is_so` holds for any of its groups.
  /// @param i index of the consumer warpgroup
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t parts_with(int i, bool is_so) {
    static_assert(Values::kPartGroups == 4);
    std::uint32_t bits = __ballot_sync(kAllLanes, is_so);
#pragma unroll
    for (int groups = 1; groups < Values::kPartGroups; groups *= 2) bits |= bits >> groups;
    return bits >> Values::kGroups * i & (0x11111111u >> (kWarpThreads - Values::kGroups));
  }

  /// Looks up the bias of each pair of the marked parts, rounds it to T and writes it into slots. Waits for free slots.
  /// @param i index of the consumer warpgroup
  template <bool kIsRounded>
  __device__ __forceinline__ void find_parts(int i, QueryTimes const& query_times,
                                             BlockTimes<Shape::kBlockKeys, 8> const& times) const {
    Own const own;
    Values& values = state_.time_values[i];
    Parts const parts = values.stages[time_position().index].parts[own.warp];
    if (parts.found == 0) return;
    int const num_free = Values::kSlots - parts_before(i, own.warp).num_found();
    FragmentCoord const coord(64 * i, own.thread);
    RowTimes const rows = query_times.times_of_rows(coord.row);
    int index = 0;
    // The loops are not unrolled: fetching the instructions would take longer than running them.
#pragma unroll 1
    for (std::uint32_t left = parts.found; left != 0; left &= left - 1, ++index) {
      if (index == num_free) {
        auto const before = time_position().previous();
        wait(&state_.times_empty[before.index][i], before.parity);
      }
      TimePair const* const columns = times.pairs + 4 * (__ffs(static_cast<int>(left)) - 1) + coord.column / 2;
      typename Values::Slot& slot = values.slots[own.warp][parts.slot(index)];
#pragma unroll 1
      for (int group = 0; group < Values::kPartGroups; ++group) {
        TimePair const pair = columns[4 * group];
        float apart[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) apart[j] = fabsf(time_difference(rows.times[j / 2], pair.time(j % 2)));
        std::uint32_t packed[2];
        if constexpr (kIsRounded) {
          rounded_.find(apart, packed);
        } else {
          find_rounded(apart, packed);
        }
        slot.values[group][own.lane] = {packed[0], packed[1]};
      }
    }
  }

  /// Looks up two packed pairs of weights without rounded cells, and rounds them to T.
  __device__ __forceinline__ void find_rounded(float const (&apart)[4], std::uint32_t (&packed)[2]) const {
    std::int32_t buckets[4];
    table_.find_buckets(apart, buckets);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      packed[i] = RoundedTimeWeights::pack_bounded<T>(table_.weight(buckets[2 * i]), table_.weight(buckets[2 * i + 1]));
    }
  }

  /// Positions in the rings of bias blocks and of TimeValues stages, computed from the number of blocks.
  [[nodiscard]] __device__ __forceinline__ auto bias_position() const {
    return RingPosition<Shape::kBiasStages>::after(num_blocks_);
  }
  [[nodiscard]] __device__ __forceinline__ auto time_position() const {
    return RingPosition<Shape::kTimeStages>::after(num_blocks_);
  }

  Sm90ForwardParams const& params_;
  Sm90ForwardState<Shape>& state_;
  TimeTable table_;
  RoundedTimeWeights rounded_;
  std::uint32_t num_blocks_ = 0;  ///< Blocks of keys done so far.
};

}  // namespace headway::kernels
