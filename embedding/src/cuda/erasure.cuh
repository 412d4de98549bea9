#pragma once

#include "cuda/cuda_table.hpp"
#include "cuda/for_each_bucket.cuh"
#include "cuda/free_rows.cuh"
#include "cuda/launch.cuh"
#include "cuda/rows_view.cuh"
#include "cuda/table_state.hpp"

#include <cstdint>

namespace headway::embedding {

/// What a slot becomes that loses its key: empty if no probe ever went on from the bucket.
__device__ inline RowWord word_without_key(WideBucket const& bucket) {
  bool has_empty = false;
  for (RowWord const word : bucket.words) has_empty = has_empty || word == RowWord::kEmpty;
  return has_empty ? RowWord::kEmpty : RowWord::kErased;
}

/// What a block takes out of its stripe.
struct ErasedCounts {
  std::uint32_t live, used, pending;
  std::uint32_t rows[2];         ///< By precision.
  std::uint32_t first_place[2];  ///< In the list of free rows, of those of the block.
};

/// Erases the keys of a block's buckets for which `goes(key, word)`, and adds their number to a counter. `goes` must
/// not depend on what is erased meanwhile; is_idle() says that no key goes at all.
template <class Goes>
struct Erasure {
  Goes goes;
  FreeLists lists;
  TableState* state;
  std::uint64_t* counter;  ///< On the device.

  __device__ void operator()(std::uint32_t stripe, WideBucket* bucket) const {
    constexpr std::uint32_t kNumSlots = WideBucket::kNumSlots;
    __shared__ ErasedCounts counts;
    if (goes.is_idle()) return;
    if (threadIdx.x == 0) counts = {};
    __syncthreads();
    RowId rows[kNumSlots];
    std::uint32_t ranks[kNumSlots];
    RowWord const free_word = bucket == nullptr ? RowWord::kEmpty : word_without_key(*bucket);
#pragma unroll
    for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) {
      rows[slot] = RowId::kNone;
      if (bucket == nullptr) continue;
      RowWord const word = bucket->words[slot];
      if (!is_live(word) || !goes(bucket->key(slot), word)) continue;
      bucket->words[slot] = free_word;
      atomicAdd(&counts.live, 1U);
      if (free_word == RowWord::kEmpty) atomicAdd(&counts.used, 1U);
      if (is_row(word)) {
        rows[slot] = row_of(word);
        ranks[slot] = atomicAdd(counts.rows + static_cast<std::uint32_t>(precision_of(rows[slot])), 1U);
      } else {
        atomicAdd(&counts.pending, 1U);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0 && counts.live > 0) settle(stripe, counts);
    __syncthreads();
#pragma unroll
    for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) {
      if (rows[slot] == RowId::kNone) continue;
      auto const precision = static_cast<std::uint32_t>(precision_of(rows[slot]));
      lists.numbers[precision][counts.first_place[precision] + ranks[slot]] = plain_number(rows[slot]);
    }
    __syncthreads();  // The next buckets have the same counts.
  }

 private:
  /// For all of the block at once: its threads would meet at few words of memory.
  __device__ void settle(std::uint32_t stripe, ErasedCounts& counts) const {
    atomicSub(&state->live[stripe], counts.live);
    atomicSub(&state->used[stripe], counts.used);
    atomicSub(&state->num_pending, counts.pending);
    atomicSub(&state->num_rows, counts.rows[0] + counts.rows[1]);
    atomicSub(&state->num_cold, counts.rows[static_cast<std::uint32_t>(Precision::kBfloat16)]);
    for (std::uint32_t precision = 0; precision < 2; ++precision) {
      if (counts.rows[precision] == 0) continue;
      auto& free_rows = state->free_rows[precision];
      counts.first_place[precision] = free_rows.num_listed + atomicAdd(&free_rows.num_freed, counts.rows[precision]);
    }
    atomicAdd(reinterpret_cast<unsigned long long*>(counter), counts.live);
  }
};

/// Erases the keys of some stripes for which `goes(key, word)`.
template <class Goes>
void CudaTable::erase_if(StripeRange const& range, Goes goes, std::uint64_t TableStatistics::*counter,
                         cudaStream_t stream) {
  ++generation_;
  rows_.grow_lists();
  for_each_bucket_async(range,
                        Erasure<Goes>{.goes = goes,
                                      .lists = rows_.free_lists(),
                                      .state = state_.data(),
                                      .counter = &(state_.data()->statistics.*counter)},
                        stream, "erase_if");
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
}

}  // namespace headway::embedding
