// SPDX-License-Identifier: Apache-2.0
#pragma once

// Erasure on the GPU: removes all keys of some stripes (parts of the key index) that match a predicate (eviction,
// expiry).
//
// Idea: one thread per bucket. A slot that loses its key becomes kEmpty if its bucket has an empty slot, since then no
// probe ever went past the bucket; else it becomes kErased. Rows go to the free lists. Table counters and free lists
// are a few words that all threads would contend for. So a block counts in shared memory, one thread adds the sums to
// the table and reserves places in the free lists, and then each thread writes the numbers of its rows there.
//
// Example: a block erases three float32 rows and one pending key, and the free list has 5 numbers (num_listed).
//   TableState::live drops by 4, num_rows by 3, num_pending by 1; `used` drops by the slots that became kEmpty.
//   The block reserves places 5, 6 and 7 of the list for its rows.
//
// Invariants: `goes` must not depend on erasures of the same launch. Freed rows lie behind num_listed until
//   settle_free_rows_async(). A kErased slot can be claimed again, and disappears when its stripe grows.
// Complexity: one pass over the buckets; per 256 buckets in which a key goes, at most eight atomics on table counters.

#include "cuda/index/for_each_bucket.cuh"
#include "cuda/rows/free_rows.cuh"
#include "cuda/rows/rows_view.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/state/table_state.hpp"
#include "cuda/table/cuda_table.hpp"

#include <cstdint>

namespace headway::embedding {

/// Word for a slot that loses its key: kEmpty if no probe ever went past the bucket, else kErased.
__device__ inline RowWord word_without_key(WideBucket const& bucket) {
  bool has_empty = false;
  for (RowWord const word : bucket.words) has_empty = has_empty || word == RowWord::kEmpty;
  return has_empty ? RowWord::kEmpty : RowWord::kErased;
}

/// Keys that a block has erased, in shared memory.
struct ErasedCounts {
  std::uint32_t live, used, pending;  ///< Keys; slots that became kEmpty; pending keys.
  std::uint32_t rows[2];              ///< Rows by Precision.
  std::uint32_t first_place[2];       ///< First place of the block in each free list.
};

/// Visitor of for_each_bucket_async(): erases the keys for which `goes(key, word)`. goes.is_idle(): no key goes at all.
template <class Goes>
struct Erasure {
  Goes goes;
  FreeLists lists;
  TableState* state;
  std::uint64_t* counter;  ///< Statistic that counts the erased keys, in device memory.

  __device__ void operator()(std::uint32_t stripe, WideBucket* bucket) const {
    constexpr std::uint32_t kNumSlots = WideBucket::kNumSlots;
    __shared__ ErasedCounts counts;
    if (goes.is_idle()) return;
    if (threadIdx.x == 0) counts = {};
    __syncthreads();
    RowId rows[kNumSlots];
    std::uint32_t ranks[kNumSlots];  // Index of each row among those of its precision that the block erases.
    // Decided once per bucket, before any slot changes: it would be wrong to look at the word that was just emptied.
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
      lists.indices[precision][counts.first_place[precision] + ranks[slot]] = row_index(rows[slot]);
    }
    __syncthreads();  // The block reuses `counts` for its next buckets.
  }

 private:
  /// Adds the counts of the block to the table, and reserves its places in the free lists. One thread calls it.
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
