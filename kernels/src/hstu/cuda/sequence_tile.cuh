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

enum class BlockOrder : std::uint8_t { kLastFirst, kFirstFirst };

/// Numbers the tiles of all sequences, so that blocks of threads take them one after the other from a counter.
/// A section of sequences, whose keys and values the L2 cache holds together, comes after the other; within one, last
/// blocks of all its sequences before the last but one, and so on, or first ones first: so that with a causal mask
/// those that take longest come first, and what runs at the end is short. Heads count fastest. Numbers are asked for in
/// ascending order, by all lanes of a warp.
class TileSchedule {
 public:
  __device__ __forceinline__ TileSchedule(std::int64_t const* offsets, std::int32_t num_sequences,
                                          std::int32_t num_heads, std::int32_t block_rows,
                                          std::int32_t section_sequences, BlockOrder order)
      : offsets_(offsets),
        order_(order),
        num_sequences_(num_sequences),
        num_heads_(num_heads),
        block_rows_(block_rows),
        section_sequences_(section_sequences) {
    enter_section(0);
  }

  /// @returns whether there is such a tile
  __device__ __forceinline__ bool find(std::int32_t number, SequenceTile& tile) {
    while (section_begin_ < num_sequences_) {
      std::int32_t const sequence = chunk_begin_ + static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
      bool const has_block = sequence < section_end_ && block_ < num_blocks_of(sequence);
      unsigned const members = __ballot_sync(kAllLanes, has_block);
      std::int32_t const num_tiles = __popc(members) * num_heads_;
      if (number - passed_ < num_tiles) {
        std::int32_t const place = (number - passed_) / num_heads_;
        unsigned const before = members & ((1u << threadIdx.x % kWarpThreads) - 1);
        unsigned const chosen = __ballot_sync(kAllLanes, has_block && __popc(before) == place);
        tile = {chunk_begin_ + __ffs(static_cast<int>(chosen)) - 1, (number - passed_) % num_heads_, block_};
        return true;
      }
      passed_ += num_tiles;
      go_on();
    }
    return false;
  }

 private:
  __device__ __forceinline__ std::int32_t num_blocks_of(std::int32_t sequence) const {
    std::int64_t const num_rows = __ldg(offsets_ + sequence + 1) - __ldg(offsets_ + sequence);
    return (static_cast<std::int32_t>(num_rows) + block_rows_ - 1) / block_rows_;
  }

  __device__ __forceinline__ void enter_section(std::int32_t begin) {
    section_begin_ = chunk_begin_ = begin;
    section_end_ = min(begin + section_sequences_, num_sequences_);
    std::int32_t most = 1;
    for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x % kWarpThreads); i < section_end_;
         i += kWarpThreads) {
      most = max(most, num_blocks_of(i));
    }
    for (int bits = 1; bits < kWarpThreads; bits *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
    most_ = most;
    block_ = order_ == BlockOrder::kLastFirst ? most - 1 : 0;
  }

  __device__ __forceinline__ void go_on() {
    chunk_begin_ += kWarpThreads;
    if (chunk_begin_ < section_end_) return;
    chunk_begin_ = section_begin_;
    block_ += order_ == BlockOrder::kLastFirst ? -1 : 1;
    if (block_ < 0 || block_ == most_) enter_section(section_end_);
  }

  std::int64_t const* offsets_;
  BlockOrder order_;
  std::int32_t num_sequences_, num_heads_, block_rows_, section_sequences_;
  std::int32_t section_begin_ = 0, section_end_ = 0, chunk_begin_ = 0, block_ = 0, most_ = 0;
  std::int32_t passed_ = 0;
};

/// Hands out numbers of tiles to the blocks of a grid: first its own to each, then from a counter that starts at 0.
struct TileCounter {
  std::int32_t* taken = nullptr;  ///< How many numbers have been taken, 0 at first.
  std::int32_t first = 0;         ///< The first number to be taken: those before it are taken by nobody else.

  /// By all lanes of a warp.
  [[nodiscard]] __device__ __forceinline__ std::int32_t next() const {
    std::int32_t number = 0;
    if (threadIdx.x % kWarpThreads == 0) number = first + atomicAdd(taken, 1);
    return __shfl_sync(kAllLanes, number, 0);
  }
};

}  // namespace headway::kernels
