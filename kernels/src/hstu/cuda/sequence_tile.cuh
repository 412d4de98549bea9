#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_attention.hpp"
#include "headway/kernels/hstu_mask.hpp"

#include <cstdint>

namespace headway::kernels {

/// What weights of a sequence are multiplied by at last.
template <class Params>
[[nodiscard]] __device__ __forceinline__ float scale_of_weights(Params const& params, std::int32_t num_keys) {
  bool const is_by_length = params.length_scaling == LengthScaling::kByNumKeys;
  return is_by_length ? params.scale / static_cast<float>(num_keys) : params.scale;
}

/// A sequence as kernels see it: where its rows begin, and its mask.
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

/// What a block of threads works on: so many rows of one head of a sequence, from row `block` times that number.
struct SequenceTile {
  std::int32_t sequence = 0, head = 0, block = 0;
};

/// Which tiles take longest with a causal mask: of queries the last of a sequence, of keys the first. Or that the first
/// stands for all of a sequence, which takes the longer the more there are.
enum class BlockOrder : std::uint8_t { kLastFirst, kFirstFirst, kFirstOnly };

/// Numbers the tiles of all sequences, so that blocks of threads take them one after the other from a counter. The cost
/// of a tile is its place in the order of its sequence, counted from the end: what runs at the end should cost little.
///
/// Tiles that cost more than half of the most come first, then those down to an eighth, and so on by quarters; but all
/// at once where sequences are short, as keys and values are read anew each time. Among these a section of sequences,
/// whose keys and values the L2 cache holds together, comes after the other; within one costs descend. Heads count
/// fastest. Numbers are asked for in ascending order, by all lanes of a warp.
class TileSchedule {
 public:
  /// @param max_rows of a sequence
  __device__ __forceinline__ TileSchedule(std::int64_t const* offsets, std::int32_t num_sequences,
                                          std::int32_t num_heads, std::int64_t max_rows, std::int32_t block_rows,
                                          std::int32_t section_sequences, BlockOrder order)
      : offsets_(offsets),
        order_(order),
        num_sequences_(num_sequences),
        num_heads_(num_heads),
        block_rows_(block_rows),
        section_sequences_(section_sequences),
        most_cost_(INT32_MAX),
        least_cost_(num_blocks_of(max_rows) > kFewBlocks ? num_blocks_of(max_rows) / 2 : 0) {
    enter_section(0);
  }

  /// @returns whether there is such a tile
  __device__ __forceinline__ bool find(std::int32_t number, SequenceTile& tile) {
    while (most_cost_ > 0) {
      std::int32_t const sequence = chunk_begin_ + static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
      std::int32_t const num_blocks = sequence < section_end_ ? num_blocks_in(sequence) : 0;
      bool const has_tile = order_ == BlockOrder::kFirstOnly ? cost_ == num_blocks : cost_ <= num_blocks;
      unsigned const members = __ballot_sync(kAllLanes, has_tile);
      std::int32_t const num_tiles = __popc(members) * num_heads_;
      if (number - passed_ < num_tiles) {
        std::int32_t const place = (number - passed_) / num_heads_;
        unsigned const before = members & ((1u << threadIdx.x % kWarpThreads) - 1);
        int const chosen = __ffs(static_cast<int>(__ballot_sync(kAllLanes, has_tile && __popc(before) == place))) - 1;
        std::int32_t const block =
            order_ == BlockOrder::kLastFirst ? cost_ - 1 : __shfl_sync(kAllLanes, num_blocks, chosen) - cost_;
        tile = {chunk_begin_ + chosen, (number - passed_) % num_heads_, block};
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

  /// Or the next that has tiles of these costs, or the first of the next costs.
  __device__ __forceinline__ void enter_section(std::int32_t begin) {
    for (;; begin = section_end_) {
      if (begin >= num_sequences_) {
        begin = 0;
        most_cost_ = least_cost_;
        least_cost_ /= 4;
        if (most_cost_ == 0) return;
      }
      section_begin_ = chunk_begin_ = begin;
      section_end_ = min(begin + section_sequences_, num_sequences_);
      std::int32_t most = 0;
      for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x % kWarpThreads); i < section_end_;
           i += kWarpThreads) {
        most = max(most, num_blocks_in(i));
      }
      for (int bits = 1; bits < kWarpThreads; bits *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
      cost_ = min(most, most_cost_);
      if (cost_ > least_cost_) return;
    }
  }

  __device__ __forceinline__ void go_on() {
    chunk_begin_ += kWarpThreads;
    if (chunk_begin_ < section_end_) return;
    chunk_begin_ = section_begin_;
    if (--cost_ <= least_cost_) enter_section(section_end_);
  }

  std::int64_t const* offsets_;
  BlockOrder order_;
  std::int32_t num_sequences_, num_heads_, block_rows_, section_sequences_;
  std::int32_t most_cost_, least_cost_;  ///< Of the present tiles: in (least, most].
  std::int32_t section_begin_ = 0, section_end_ = 0, chunk_begin_ = 0, cost_ = 0;
  std::int32_t passed_ = 0;
};

/// Hands out numbers of tiles to the blocks of a grid: first its own to each, then from a counter that starts at 0.
struct TileCounter {
  std::int32_t* taken = nullptr;  ///< How many numbers have been taken, 0 at first; null: blocks take turns instead.
  std::int32_t first = 0;         ///< The first number to be taken: those before it are taken by nobody else.

  /// By all lanes of a warp.
  /// @param present number, that of the block at first
  [[nodiscard]] __device__ __forceinline__ std::int32_t next(std::int32_t present) const {
    if (taken == nullptr) return present + static_cast<std::int32_t>(gridDim.x);
    std::int32_t number = 0;
    if (threadIdx.x % kWarpThreads == 0) number = first + atomicAdd(taken, 1);
    return __shfl_sync(kAllLanes, number, 0);
  }
};

}  // namespace headway::kernels
