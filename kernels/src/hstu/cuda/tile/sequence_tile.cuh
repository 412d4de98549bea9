// SPDX-License-Identifier: Apache-2.0

// Tiles of jagged sequences and the order in which a persistent grid takes them.
//
// A grid with one block of threads per multiprocessor takes tiles from a counter. Sequences differ in length and,
// with a causal mask, tiles differ in cost. Were the longest tile taken last, all other multiprocessors would idle
// meanwhile. So tiles come in descending order of cost, as far as the L2 cache allows.

#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_attention.hpp"
#include "headway/kernels/hstu_mask.hpp"

#include <cstdint>

namespace headway::kernels {

/// Factor of a sequence's attention weights, applied once to the accumulated sums.
template <class Params>
[[nodiscard]] __device__ __forceinline__ float scale_of_weights(Params const& params, std::int32_t num_keys) {
  bool const is_by_length = params.length_scaling == LengthScaling::kByNumKeys;
  return is_by_length ? params.scale / static_cast<float>(num_keys) : params.scale;
}

/// A sequence on the device: its first rows and its mask.
struct SequenceView {
  std::int64_t first_query_row = 0, first_key_row = 0;
  HstuSequenceMask mask{};

  SequenceView() = default;
  __device__ __forceinline__ SequenceView(HstuSequences const& all, HstuMaskOptions const& options, std::int32_t index)
      : first_query_row(__ldg(all.query_offsets + index)), first_key_row(__ldg(all.key_offsets + index)) {
    mask.options = options;
    mask.num_queries = static_cast<std::int32_t>(__ldg(all.query_offsets + index + 1) - first_query_row);
    mask.num_keys = static_cast<std::int32_t>(__ldg(all.key_offsets + index + 1) - first_key_row);
    if (all.num_contextual != nullptr) mask.num_contextual = __ldg(all.num_contextual + index);
    if (all.num_targets != nullptr) mask.num_targets = __ldg(all.num_targets + index);
  }
};

/// Unit of work of a block of threads: rows of one head of a sequence, beginning at row `block` * block_rows.
struct SequenceTile {
  std::int32_t sequence = 0, head = 0, block = 0;
};

/// Order of tiles by cost. With a causal mask the last queries of a sequence and its first keys take longest.
/// kFirstOnly: one tile index per head of a sequence, whose cost is its number of tiles.
enum class BlockOrder : std::uint8_t { kLastFirst, kFirstFirst, kFirstOnly };

/// Maps ascending tile numbers to tiles of all sequences, so that a persistent grid can take tiles from a counter
/// (longest processing time first). The cost of a tile is the number of tiles of its sequence from this one on, in the
/// order of BlockOrder: the first tile costs all of them, the last one 1. Cheap tiles should run last.
///
/// Order: tiles that cost more than half of the greatest cost come first, then those down to an eighth, and so on by
/// quarters. If the longest sequence has few tiles (kFewBlocks), all costs form one range, because each further range
/// reads the keys and values again. Within a range of costs, sections of sequences follow each other; the L2 cache
/// holds the keys and values of a section. Within a section costs descend, and heads vary fastest.
///
/// Example: two sequences of 3 and 1 tiles, one head, kLastFirst. Numbers 0 to 3 are tiles 2 and 1 of the first
/// sequence, then tile 0 of the first and tile 0 of the second.
///
/// All lanes of a warp call it, with ascending numbers. A call looks at 32 sequences at once.
class TileSchedule {
 public:
  /// @param max_rows upper bound on the rows of a sequence
  /// @param section_sequences as many sequences as the L2 cache holds keys and values of
  __device__ __forceinline__ TileSchedule(std::int64_t const* offsets, std::int32_t num_sequences,
                                          std::int32_t num_heads, std::int64_t max_rows, std::int32_t block_rows,
                                          std::int32_t section_sequences, BlockOrder order)
      : offsets_(offsets),
        order_(order),
        num_sequences_(num_sequences),
        num_heads_(num_heads),
        block_rows_(block_rows),
        section_sequences_(section_sequences),
        max_cost_(INT32_MAX),
        min_cost_(num_blocks_of(max_rows) > kFewBlocks ? num_blocks_of(max_rows) / 2 : 0) {
    enter_section(0);
  }

  /// Finds tile `tile_index`. @returns false if there are no more tiles
  __device__ __forceinline__ bool find(std::int32_t tile_index, SequenceTile& tile) {
    while (max_cost_ > 0) {
      std::int32_t const sequence = chunk_begin_ + static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
      std::int32_t const num_blocks = sequence < section_end_ ? num_blocks_in(sequence) : 0;
      bool const has_tile = order_ == BlockOrder::kFirstOnly ? cost_ == num_blocks : cost_ <= num_blocks;
      unsigned const members = __ballot_sync(kAllLanes, has_tile);
      std::int32_t const num_tiles = __popc(members) * num_heads_;
      if (tile_index - passed_ < num_tiles) {
        std::int32_t const index = (tile_index - passed_) / num_heads_;
        unsigned const before = members & ((1u << threadIdx.x % kWarpThreads) - 1);
        int const chosen = __ffs(static_cast<int>(__ballot_sync(kAllLanes, has_tile && __popc(before) == index))) - 1;
        std::int32_t const block =
            order_ == BlockOrder::kLastFirst ? cost_ - 1 : __shfl_sync(kAllLanes, num_blocks, chosen) - cost_;
        tile = {chunk_begin_ + chosen, (tile_index - passed_) % num_heads_, block};
        return true;
      }
      passed_ += num_tiles;
      go_on();
    }
    return false;
  }

 private:
  static constexpr std::int32_t kFewBlocks = 8;

  [[nodiscard]] __device__ __forceinline__ std::int32_t num_blocks_of(std::int64_t num_rows) const {
    return (static_cast<std::int32_t>(num_rows) + block_rows_ - 1) / block_rows_;
  }
  [[nodiscard]] __device__ __forceinline__ std::int32_t num_blocks_in(std::int32_t sequence) const {
    return num_blocks_of(__ldg(offsets_ + sequence + 1) - __ldg(offsets_ + sequence));
  }

  /// Enters the section from `begin` on, or the next one that has tiles in the present range of costs, or the first
  /// section of the next range.
  __device__ __forceinline__ void enter_section(std::int32_t begin) {
    for (;; begin = section_end_) {
      if (begin >= num_sequences_) {
        begin = 0;
        max_cost_ = min_cost_;
        min_cost_ /= 4;
        if (max_cost_ == 0) return;
      }
      section_begin_ = chunk_begin_ = begin;
      section_end_ = min(begin + section_sequences_, num_sequences_);
      std::int32_t most = 0;
      for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x % kWarpThreads); i < section_end_;
           i += kWarpThreads) {
        most = max(most, num_blocks_in(i));
      }
      for (int bits = 1; bits < kWarpThreads; bits *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
      cost_ = min(most, max_cost_);
      if (cost_ > min_cost_) return;
    }
  }

  /// Advances to the next 32 sequences, then to the next lower cost, then to the next section.
  __device__ __forceinline__ void go_on() {
    chunk_begin_ += kWarpThreads;
    if (chunk_begin_ < section_end_) return;
    chunk_begin_ = section_begin_;
    if (--cost_ <= min_cost_) enter_section(section_end_);
  }

  std::int64_t const* offsets_;
  BlockOrder order_;
  std::int32_t num_sequences_, num_heads_, block_rows_, section_sequences_;
  std::int32_t max_cost_, min_cost_;  ///< Range of costs of the present tiles: (least, most].
  std::int32_t section_begin_ = 0, section_end_ = 0, chunk_begin_ = 0, cost_ = 0;
  std::int32_t passed_ = 0;  ///< Number of tiles before the present 32 sequences and cost.
};

/// Gives tile indices to the blocks of a grid. Each block first takes its own index, then `first` plus the next number
/// of a counter that starts at 0.
struct TileCounter {
  std::int32_t* taken = nullptr;  ///< Numbers taken so far, 0 at first. Null: static round-robin instead.
  std::int32_t first = 0;         ///< First index that the counter gives; blocks begin with the smaller ones.

  /// Next tile index of this block. All lanes of one warp of the block call it.
  /// @param present the present index; at first that of the block
  [[nodiscard]] __device__ __forceinline__ std::int32_t next(std::int32_t present) const {
    if (taken == nullptr) return present + static_cast<std::int32_t>(gridDim.x);
    std::int32_t tile_index = 0;
    if (threadIdx.x % kWarpThreads == 0) tile_index = first + atomicAdd(taken, 1);
    return __shfl_sync(kAllLanes, tile_index, 0);
  }
};

}  // namespace headway::kernels
