// SPDX-License-Identifier: Apache-2.0
#pragma once

// Insertion into the key index on the GPU: two kernels, claim and settle. All keys of a batch differ.
//
// Idea: one thread per key. claim_kernel looks the key up. If it has a row, it counts the lookup. If it is absent, it
// claims a free slot by one compare-and-swap of its word from kEmpty or kErased to kClaimed, then writes the key there.
// settle_insertion_kernel follows on the stream and gives each claimed or pending slot its word: a row, or the new
// count of a pending key (one that was looked up fewer than min_count times). A block takes all its rows with one
// atomic per precision, and its threads fill these rows together.
//
// Example: min_count 1, keys 7, 8, 9. Key 7 has row 3; 8 and 9 are new and find the same free slot.
//   Claim: 7 is kFound in row 3. 8 wins the slot. 9 loses, probes again past L1, and claims the next free slot.
//   Settle: 8 and 9 take rows 12 and 13 and get their initial embeddings; their words become 12 and 13.
//
// Invariants: only one thread inserts a given key, so no thread waits for another one's claim.
//   While claim_kernel runs, no key leaves and no row moves. So a row seen in a stale L1 line is still the right one.
//   The end of claim_kernel orders its writes before settle_insertion_kernel, after which no slot is kClaimed.
// Complexity: one probe per key, one more per lost compare-and-swap. A block adds to each counter of the table once.
// Source: docs/design/cuda_tables.md, "Keys that are all different need no locks".

#include "cuda/index/index_view.cuh"
#include "cuda/rows/free_rows.cuh"
#include "cuda/rows/row_moves.cuh"
#include "cuda/rows/rows_view.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/state/table_state.hpp"
#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/table.hpp"
#include "saturating_sum.hpp"

#include <cstdint>

namespace headway::embedding {

/// Internal status between the kernels: found in a bfloat16 row that has to move to float32.
inline constexpr KeyStatus kToPromote{0xff};
/// Value of Decisions::crossings: no lookup of the batch gives the key a row.
inline constexpr std::uint32_t kNever = 0xffffffff;

/// Plan of a batch, per unique key, for batches with duplicates or near a row limit (insert_carefully()). All pointers
/// are nullptr if there is no plan; then each key decides on its own.
struct Decisions {
  std::uint32_t const* crossings = nullptr;        ///< Batch position at which the key reaches min_count, or kNever.
  std::uint32_t const* crossing_counts = nullptr;  ///< Lookups of the key up to that position.
  std::uint32_t const* firsts = nullptr;           ///< First batch position of the key.
  std::uint32_t const* first_counts = nullptr;     ///< Lookups of one occurrence: the first, or the last (last_holds).
  std::uint8_t const* are_refused = nullptr;       ///< 1: there is no room for a row of the key.
};

/// Arguments of both insertion kernels.
struct InsertionArgs {
  IndexView index;
  RowsView rows;
  FreeLists free_lists;
  TableState* state;
  KeysView keys;  ///< No duplicates.
  Decisions decisions;
  InitialValues initial_values;
  float initial_state;    ///< Initial value of each float of the optimizer state.
  bool fills_embeddings;  ///< Write initial embeddings; false: the caller writes the embeddings.
  /// Present step; lookups after which a key gets a row; rows with fewer lookups than `hot_count` have bfloat16
  /// embeddings (cold), all others float32 (hot).
  std::uint32_t step, min_count, hot_count;
  RowId* row_ids;       ///< (keys)
  KeyStatus* statuses;  ///< (keys)
  RowWord** words;      ///< (keys) Slot to settle, or nullptr; not set for keys that are kAbsent or kFound.

  [[nodiscard]] __device__ bool is_cold(std::uint32_t count) const { return count < hot_count; }
};

/// Counts a lookup of an existing row.
/// @returns kToPromote if a bfloat16 row becomes hot and this step did not look it up before; else kFound
__device__ inline KeyStatus touch_row(InsertionArgs const& args, std::uint32_t i, RowId id) {
  // Loads and stores both words at once and bypasses L1. With separate accesses, a store meets its own line in flight
  // and stalls all accesses behind it (measured: 520 instead of 75 us for 2^20 keys).
  auto* const metadata = reinterpret_cast<uint2*>(&args.rows.metadata(id));
  uint2 const words = __ldcg(metadata);
  DeviceRowMetadata const before{.count = words.x, .step = words.y};
  __stcg(metadata, make_uint2(saturating_sum(before.count, args.keys.count(i)), args.step));
  if (precision_of(id) == Precision::kFloat32 || before.step == args.step) return KeyStatus::kFound;
  auto const* const first_counts = args.decisions.first_counts;
  std::uint32_t const added = first_counts == nullptr ? args.keys.count(i) : first_counts[i];
  return args.is_cold(saturating_sum(before.count, added)) ? KeyStatus::kFound : kToPromote;
}

/// Status of a key without a row that was looked up `count` times before this batch.
__device__ inline KeyStatus status_without_row(InsertionArgs const& args, std::uint32_t i, std::uint32_t count) {
  auto const& decisions = args.decisions;
  if (decisions.crossings == nullptr) {
    return saturating_sum(count, args.keys.count(i)) < args.min_count ? KeyStatus::kPending : KeyStatus::kInserted;
  }
  if (decisions.crossings[i] == kNever) return KeyStatus::kPending;
  return decisions.are_refused[i] != 0 ? KeyStatus::kNoRoom : KeyStatus::kInserted;
}

/// Slots that a block has claimed, by stripe of the key index (shared memory). `used`: slots that were kEmpty; `live`:
/// all.
struct SlotCounts {
  std::uint32_t used[StripeMap::kCount], live[StripeMap::kCount];
};

/// Claims a free slot for an absent key. @returns false if another thread has claimed the slot first
__device__ inline bool claim(Place const& place, Key key, std::uint32_t stripe, SlotCounts& counts) {
  auto* const word = reinterpret_cast<std::uint32_t*>(place.address());
  auto const expected = static_cast<std::uint32_t>(place.word);
  if (atomicCAS(word, expected, static_cast<std::uint32_t>(kClaimed)) != expected) return false;
  place.bucket->set_key(static_cast<std::size_t>(place.slot), key);
  if (place.word == RowWord::kEmpty) atomicAdd(&counts.used[stripe], 1U);
  atomicAdd(&counts.live[stripe], 1U);
  return true;
}

/// Decides on a key without a row, and claims a slot for it if it has to be in the index.
/// @param place slot of the key or a free slot, from an L1 view that may be stale. If the key was absent in that view,
/// only this thread can insert it; claim() checks that the slot is still free.
__device__ inline void claim_key(InsertionArgs const& args, std::uint32_t i, Key key, Hash hash, Place place,
                                 SlotCounts& counts) {
  auto status = KeyStatus::kNoRoom;
  RowWord* word = nullptr;
  for (;; place = find_place(args.index.walk(hash), key, LoadNewest())) {
    if (place.bucket == nullptr) {  // Stripe full: only ids that were constructed to collide can cause this.
      if (args.decisions.crossings == nullptr) count_one(&args.state->statistics.refused);
      break;
    }
    bool const is_there = is_live(place.word);
    status = status_without_row(args, i, is_there ? pending_count_of(place.word) : 0);
    // A refused key gets no slot, unless it was pending before or becomes pending earlier in this batch.
    bool const is_forgotten =
        !is_there && status == KeyStatus::kNoRoom && args.decisions.crossings[i] == args.decisions.firsts[i];
    if (is_forgotten) break;
    if (is_there || claim(place, key, args.index.stripe_of(hash), counts)) {
      word = place.address();
      break;
    }
  }
  args.row_ids[i] = RowId::kNone;
  args.statuses[i] = status;
  args.words[i] = word;
}

/// Looks key `i` up, and claims a slot for it if it needs one.
__device__ inline void find_or_claim(InsertionArgs const& args, std::uint32_t i, SlotCounts& counts) {
  Key const key = args.keys.key(i);
  Hash const hash = hash_of(key);
  // Rows do not change while this kernel runs, so a stale L1 line is good enough to find them.
  auto const place = find_place(args.index.walk(hash), key, LoadCached());
  if (!is_row(place.word)) {
    claim_key(args, i, key, hash, place, counts);
    return;
  }
  RowId const row = row_of(place.word);
  auto const status = touch_row(args, i, row);
  args.row_ids[i] = row;
  args.statuses[i] = status;
  if (status == kToPromote) args.words[i] = place.address();
}

// One thread per key finds it or claims a slot. Keys beyond the known ones get kAbsent.
__global__ void __launch_bounds__(kBlockThreads) claim_kernel(__grid_constant__ InsertionArgs const args) {
  __shared__ SlotCounts counts;
  for (std::uint32_t i = threadIdx.x; i < StripeMap::kCount; i += blockDim.x) counts.used[i] = counts.live[i] = 0;
  __syncthreads();
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.keys.size()) {
    find_or_claim(args, i, counts);
  } else if (i < args.keys.size.most) {
    args.row_ids[i] = RowId::kNone;
    args.statuses[i] = KeyStatus::kAbsent;
  }
  __syncthreads();
  for (std::uint32_t s = threadIdx.x; s < StripeMap::kCount; s += blockDim.x) {
    if (counts.used[s] != 0) atomicAdd(&args.state->used[s], counts.used[s]);
    if (counts.live[s] != 0) atomicAdd(&args.state->live[s], counts.live[s]);
  }
}

/// A key that gets a row, in shared memory while its block fills the row. No member initialisers: __shared__ variables
/// cannot have them.
struct Newcomer {
  std::uint64_t id;
  std::uint32_t table;
  RowId before, row;  ///< `before`: the row that is promoted, or kNone for a new key.

  [[nodiscard]] __device__ Key key() const { return {.id = id, .table = table}; }
};

/// Counters of one block of settle_insertion_kernel, in shared memory. The block adds them to the table's counters
/// once, since all blocks contend for those.
struct SettlingBlock {
  std::uint32_t num_wanted[2], first_ticket[2];  ///< Rows to take and the first ticket of the block, by Precision.
  std::uint32_t num_newcomers, num_promoted, num_new_cold;
  std::uint32_t more_pending;  ///< Change of the number of pending keys, modulo 2^32.
  Newcomer newcomers[kBlockThreads];
};

/// Takes the rows that a block wants and updates the table's counters. One thread of the block calls it.
__device__ inline void take_rows(TableState& state, SettlingBlock& block) {
  for (int precision = 0; precision < 2; ++precision) {
    std::uint32_t const wanted = block.num_wanted[precision];
    if (wanted != 0) block.first_ticket[precision] = atomicAdd(&state.free_rows[precision].num_taken, wanted);
  }
  auto const add = [](auto* counter, std::uint32_t more) {
    if (more != 0) add_to(counter, more);
  };
  std::uint32_t const num_new = block.num_newcomers - block.num_promoted;
  add(&state.num_rows, num_new);
  add(&state.statistics.inserted, num_new);
  add(&state.num_cold, block.num_new_cold - block.num_promoted);
  add(&state.statistics.promoted, block.num_promoted);
  add(&state.num_pending, block.more_pending);
}

/// Block-stride loop over the cells (row, column) of a matrix: this thread visits each 256th cell in row-major order,
/// without a division per step. With 100 columns, thread 7 visits (0, 7), then (2, 63).
class BlockCells {
 public:
  __device__ explicit BlockCells(std::uint32_t num_columns)
      : num_columns_(num_columns),
        rows_(kBlockThreads / num_columns),
        columns_(kBlockThreads % num_columns),
        row_(threadIdx.x / num_columns),
        column_(threadIdx.x % num_columns) {}

  [[nodiscard]] __device__ std::uint32_t row() const { return row_; }
  [[nodiscard]] __device__ std::uint32_t column() const { return column_; }
  __device__ void go_on() {
    row_ += rows_;
    column_ += columns_;
    if (column_ < num_columns_) return;
    column_ -= num_columns_;
    ++row_;
  }

 private:
  std::uint32_t num_columns_, rows_, columns_, row_, column_;
};

/// Writes embeddings and optimizer states of a block's new rows. Neighbouring threads write neighbouring columns.
__device__ inline void fill_rows(InsertionArgs const& args, SettlingBlock const& block) {
  std::uint32_t const num_quads = args.rows.num_quads(), state_size = args.rows.state_size;
  if (args.fills_embeddings || block.num_promoted != 0) {
    for (BlockCells cell(num_quads); cell.row() < block.num_newcomers; cell.go_on()) {
      Newcomer const& one = block.newcomers[cell.row()];
      std::uint32_t const quad = cell.column();
      if (one.before != RowId::kNone) {
        args.rows.write_stochastically(one.row, quad, one.key(), args.step, args.rows.read(one.before, quad));
      } else if (args.fills_embeddings) {
        args.rows.write(one.row, quad, args.initial_values.of(one.key(), quad));
      }
    }
  }
  if (state_size == 0) return;
  for (BlockCells cell(state_size); cell.row() < block.num_newcomers; cell.go_on()) {
    Newcomer const& one = block.newcomers[cell.row()];
    args.rows.state(one.row)[cell.column()] =
        one.before == RowId::kNone ? args.initial_state : args.rows.state(one.before)[cell.column()];
  }
}

/// Writes count, step and row-wise optimizer state of a row. The thread of its key calls it.
__device__ inline void write_metadata(InsertionArgs const& args, Newcomer const& one, std::uint32_t count) {
  bool const is_new = one.before == RowId::kNone;
  args.rows.metadata(one.row) =
      is_new ? DeviceRowMetadata{.count = count, .step = args.step} : args.rows.metadata(one.before);
  if (args.rows.is_row_wise) {
    args.rows.row_state(one.row) = is_new ? args.initial_state : args.rows.row_state(one.before);
  }
}

// One thread per key. The block takes the rows of its keys with one atomic per precision, then all its threads fill
// these rows together. Blocks without anything to settle return at once.
__global__ void __launch_bounds__(kBlockThreads) settle_insertion_kernel(__grid_constant__ InsertionArgs const args) {
  __shared__ SettlingBlock block;
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  auto const status = i < args.keys.size() ? args.statuses[i] : KeyStatus::kAbsent;
  bool const is_settled = status == KeyStatus::kAbsent || status == KeyStatus::kFound;
  RowWord* const word = is_settled ? nullptr : args.words[i];
  if (threadIdx.x == 0) {
    block.num_wanted[0] = block.num_wanted[1] = 0;
    block.num_newcomers = block.num_promoted = block.num_new_cold = block.more_pending = 0;
  }
  if (__syncthreads_or(word != nullptr ? 1 : 0) == 0) return;

  Newcomer own{.id = 0, .table = 0, .before = RowId::kNone, .row = RowId::kNone};
  std::uint32_t count = 0;
  bool gets_row = false, is_promoted = false, is_wanted_cold = false;
  if (word != nullptr) {
    Key const key = args.keys.key(i);
    own = {.id = key.id, .table = key.table, .before = args.row_ids[i], .row = RowId::kNone};
    is_promoted = status == kToPromote;
    if (is_promoted) {
      atomicAdd(&block.num_promoted, 1U);
    } else {
      RowWord const before = *word;
      bool const is_new = before == kClaimed;
      count = saturating_sum(is_new ? 0 : pending_count_of(before), args.keys.count(i));
      gets_row = status == KeyStatus::kInserted;
      if (!gets_row) *word = pending_word(count);
      auto const* const crossing_counts = args.decisions.crossing_counts;
      is_wanted_cold = gets_row && args.is_cold(crossing_counts == nullptr ? count : crossing_counts[i]);
      if (is_wanted_cold) atomicAdd(&block.num_new_cold, 1U);
      // Pending keys: one more if a new key gets no row, one less if a pending key gets one.
      if (gets_row != is_new) atomicAdd(&block.more_pending, is_new ? 1U : ~0U);
    }
  }
  bool const takes_row = is_promoted || gets_row;
  auto const precision = is_wanted_cold ? Precision::kBfloat16 : Precision::kFloat32;
  // Phase 1: each thread takes its index among the block's new rows, by precision, and its place in `newcomers`.
  std::uint32_t const hot = take_place(takes_row && !is_wanted_cold, block.num_wanted[0]);
  std::uint32_t const cold = take_place(is_wanted_cold, block.num_wanted[1]);
  std::uint32_t const place = take_place(takes_row, block.num_newcomers);
  __syncthreads();
  // Phase 2: one thread turns these numbers into tickets of the table and adds the block's counts.
  auto& state = *args.state;
  if (threadIdx.x == 0) take_rows(state, block);
  __syncthreads();
  // Phase 3: each thread resolves its ticket to a row and describes it, so that phase 4 can fill rows with all threads.
  if (takes_row) {
    auto const index = static_cast<std::uint32_t>(precision);
    own.row = row_id(precision, taken_row(state.free_rows[index], args.free_lists.indices[index],
                                          block.first_ticket[index] + (is_wanted_cold ? cold : hot)));
    block.newcomers[place] = own;
    write_metadata(args, own, count);
  }
  __syncthreads();
  // Phase 4: all threads fill the new rows.
  fill_rows(args, block);
  if (!takes_row) return;
  // Phase 5: publish the row in the key index. No kernel of this stream reads it before this launch has ended.
  *word = RowWord{static_cast<std::uint32_t>(own.row)};
  args.row_ids[i] = own.row;
  if (!is_promoted) return;
  args.statuses[i] = KeyStatus::kFound;
  free_row(state, args.free_lists, own.before);
}

}  // namespace headway::embedding
