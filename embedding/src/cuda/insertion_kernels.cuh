#pragma once

#include "cuda/free_rows.cuh"
#include "cuda/index_view.cuh"
#include "cuda/launch.cuh"
#include "cuda/row_moves.cuh"
#include "cuda/rows_view.cuh"
#include "cuda/table_state.hpp"
#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/table.hpp"
#include "saturating_sum.hpp"

#include <cstdint>
#include <type_traits>

namespace headway::embedding {

/// Found, and to be given float32.
inline constexpr KeyStatus kToPromote{0xff};
/// No lookup of a key makes it get a row.
inline constexpr std::uint32_t kNever = 0xffffffff;

/// What was decided on the keys of a batch beforehand, where one by one will not do: keys came more than once, or there
/// is no room for all. Without it all members are nullptr.
struct Decisions {
  std::uint32_t const* crossings = nullptr;        ///< Of its lookups in the batch, the one by which a key gets a row.
  std::uint32_t const* crossing_counts = nullptr;  ///< Lookups by then.
  std::uint32_t const* firsts = nullptr;           ///< Its first lookup in the batch.
  std::uint32_t const* first_counts = nullptr;     ///< That it stands for.
  std::uint8_t const* are_refused = nullptr;       ///< There is no room for its row.
};

struct InsertionArgs {
  IndexView index;
  RowsView rows;
  FreeLists free_lists;
  TableState* state;
  KeysView keys;  ///< All different.
  Decisions decisions;
  InitialValues initial_values;
  float initial_state;
  bool fills_vectors;
  std::uint32_t step, min_count, hot_count;
  RowId* row_ids;       ///< (keys)
  KeyStatus* statuses;  ///< (keys)
  RowWord** words;      ///< (keys) What is settled after it was claimed; unset where a key is absent or found.

  [[nodiscard]] __device__ bool is_cold(std::uint32_t count) const { return count < hot_count; }
};

/// Counts a lookup of a row that was there.
__device__ inline KeyStatus touch_row(InsertionArgs const& args, std::uint32_t i, RowId id) {
  // Both words at once, and round the cache of the multiprocessor: one that is written while a line with the other is
  // on its way holds up all accesses behind it (measured: 520 instead of 75 us for 2^20 keys).
  auto* const notes = reinterpret_cast<uint2*>(&args.rows.notes(id));
  uint2 const words = __ldcg(notes);
  DeviceRowNotes const before{.count = words.x, .step = words.y};
  __stcg(notes, make_uint2(saturating_sum(before.count, args.keys.count(i)), args.step));
  if (precision_of(id) == Precision::kFloat32 || before.step == args.step) return KeyStatus::kFound;
  auto const* const first_counts = args.decisions.first_counts;
  std::uint32_t const added = first_counts == nullptr ? args.keys.count(i) : first_counts[i];
  return args.is_cold(saturating_sum(before.count, added)) ? KeyStatus::kFound : kToPromote;
}

/// What becomes of a key without a row that was looked up `count` times before.
__device__ inline KeyStatus status_without_row(InsertionArgs const& args, std::uint32_t i, std::uint32_t count) {
  auto const& decisions = args.decisions;
  if (decisions.crossings == nullptr) {
    return saturating_sum(count, args.keys.count(i)) < args.min_count ? KeyStatus::kPending : KeyStatus::kInserted;
  }
  if (decisions.crossings[i] == kNever) return KeyStatus::kPending;
  return decisions.are_refused[i] != 0 ? KeyStatus::kNoRoom : KeyStatus::kInserted;
}

/// What was counted of a stripe's slots by a block.
struct SlotCounts {
  std::uint32_t used[StripeMap::kCount], live[StripeMap::kCount];
};

/// Puts a key that is not there in a free slot; another thread may be faster. @returns whether this one was
__device__ inline bool claim(Place const& place, Key key, std::uint32_t stripe, SlotCounts& counts) {
  auto* const word = reinterpret_cast<std::uint32_t*>(place.address());
  auto const expected = static_cast<std::uint32_t>(place.word);
  if (atomicCAS(word, expected, static_cast<std::uint32_t>(kClaimed)) != expected) return false;
  place.bucket->set_key(static_cast<std::size_t>(place.slot), key);
  if (place.word == RowWord::kEmpty) atomicAdd(&counts.used[stripe], 1U);
  atomicAdd(&counts.live[stripe], 1U);
  return true;
}

/// Puts a key that has no row in the key structure, if it is to be there.
/// @param place where an older view of the structure has it, or room for it. No key leaves while this kernel runs, so a
/// key that was not there then comes by this thread alone, and claim() sees whether the slot is still free.
__device__ inline void claim_key(InsertionArgs const& args, std::uint32_t i, Key key, Hash hash, Place place,
                                 SlotCounts& counts) {
  auto status = KeyStatus::kNoRoom;
  RowWord* word = nullptr;
  for (;; place = find_place(args.index.walk(hash), key, LoadNewest())) {
    if (place.bucket == nullptr) {  // Only ids that were made to have one hash fill a stripe.
      if (args.decisions.crossings == nullptr) count_one(&args.state->statistics.refused);
      break;
    }
    bool const is_there = is_live(place.word);
    status = status_without_row(args, i, is_there ? pending_count_of(place.word) : 0);
    // One that has no room is not remembered, unless it waited before, be it in this batch.
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

__device__ inline void find_or_claim(InsertionArgs const& args, std::uint32_t i, SlotCounts& counts) {
  Key const key = args.keys.key(i);
  Hash const hash = hash_of(key);
  // Keys that had rows before keep them as long as this kernel runs, so what is cached is good enough to find those.
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

// A thread finds a key or claims a slot for it: of 4 slots of 16 bytes, in one bucket after the other.
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

/// A key that gets a row, while its block fills the row. Without initial values, as shared memory has none.
struct Newcomer {
  std::uint64_t id;
  std::uint32_t table;
  RowId before, row;  ///< `before`: kNone, or the row that its values come from.

  [[nodiscard]] __device__ Key key() const { return {.id = id, .table = table}; }
};

/// What a block of settle_insertion_kernel counts and shares. Counters of the whole table have one address each: the
/// block adds to them once.
struct SettlingBlock {
  std::uint32_t num_wanted[2], first_ticket[2];  ///< Rows, by precision.
  std::uint32_t num_newcomers, num_promoted, num_new_cold;
  std::uint32_t more_pending;  ///< Modulo 2^32.
  Newcomer newcomers[kBlockThreads];
};

/// The place of this thread among those of its block that want one, in any order; all lanes of a warp call it.
__device__ inline std::uint32_t take_place(bool is_wanted, std::uint32_t& num_taken) {
  std::uint32_t const lane = threadIdx.x % kWarp;
  std::uint32_t const takers = __ballot_sync(kAllLanes, is_wanted);
  std::uint32_t first = 0;
  if (lane == 0 && takers != 0) first = atomicAdd(&num_taken, static_cast<std::uint32_t>(__popc(takers)));
  return __shfl_sync(kAllLanes, first, 0) + static_cast<std::uint32_t>(__popc(takers & ((1U << lane) - 1)));
}

/// Takes the rows that a block wants, and tells the table's counters; one thread calls it.
__device__ inline void take_rows(TableState& state, SettlingBlock& block) {
  for (int precision = 0; precision < 2; ++precision) {
    std::uint32_t const wanted = block.num_wanted[precision];
    if (wanted != 0) block.first_ticket[precision] = atomicAdd(&state.free_rows[precision].num_taken, wanted);
  }
  auto const add = [](auto* counter, std::uint32_t more) {
    using Word = std::conditional_t<sizeof(*counter) == 8, unsigned long long, unsigned int>;
    if (more != 0) atomicAdd(reinterpret_cast<Word*>(counter), static_cast<Word>(more));
  };
  std::uint32_t const num_new = block.num_newcomers - block.num_promoted;
  add(&state.num_rows, num_new);
  add(&state.statistics.inserted, num_new);
  add(&state.num_cold, block.num_new_cold - block.num_promoted);
  add(&state.statistics.promoted, block.num_promoted);
  add(&state.num_pending, block.more_pending);
}

/// The cells of a table of rows that a thread of a block visits, one in 256, row by row. With 100 columns thread 7 has
/// row 0, column 7, then row 2, column 63.
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

/// Writes the values and the optimizer's state of a block's new rows. Neighbouring threads have neighbouring columns,
/// of one row after the other.
__device__ inline void fill_rows(InsertionArgs const& args, SettlingBlock const& block) {
  std::uint32_t const num_quads = args.rows.num_quads(), state_size = args.rows.state_size;
  if (args.fills_vectors || block.num_promoted != 0) {
    for (BlockCells cell(num_quads); cell.row() < block.num_newcomers; cell.go_on()) {
      Newcomer const& one = block.newcomers[cell.row()];
      std::uint32_t const quad = cell.column();
      if (one.before != RowId::kNone) {
        args.rows.write_at_random(one.row, quad, one.key(), args.step, args.rows.read(one.before, quad));
      } else if (args.fills_vectors) {
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

/// Writes what a row has besides its values, of its own thread.
__device__ inline void write_notes(InsertionArgs const& args, Newcomer const& one, std::uint32_t count) {
  bool const is_new = one.before == RowId::kNone;
  args.rows.notes(one.row) = is_new ? DeviceRowNotes{.count = count, .step = args.step} : args.rows.notes(one.before);
  if (args.rows.is_row_wise) {
    args.rows.row_state(one.row) = is_new ? args.initial_state : args.rows.row_state(one.before);
  }
}

// A block looks at 256 keys, a thread at each. Those that get a row take it with one step for the block, and then all
// threads fill the rows together.
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
      // A key waits for a row that did not, or no longer.
      if (gets_row != is_new) atomicAdd(&block.more_pending, is_new ? 1U : ~0U);
    }
  }
  bool const takes_row = is_promoted || gets_row;
  auto const precision = is_wanted_cold ? Precision::kBfloat16 : Precision::kFloat32;
  std::uint32_t const hot = take_place(takes_row && !is_wanted_cold, block.num_wanted[0]);
  std::uint32_t const cold = take_place(is_wanted_cold, block.num_wanted[1]);
  std::uint32_t const place = take_place(takes_row, block.num_newcomers);
  __syncthreads();
  auto& state = *args.state;
  if (threadIdx.x == 0) take_rows(state, block);
  __syncthreads();
  if (takes_row) {
    auto const number = static_cast<std::uint32_t>(precision);
    own.row = row_id(precision, taken_row(state.free_rows[number], args.free_lists.numbers[number],
                                          block.first_ticket[number] + (is_wanted_cold ? cold : hot)));
    block.newcomers[place] = own;
    write_notes(args, own, count);
  }
  __syncthreads();
  fill_rows(args, block);
  if (!takes_row) return;
  *word = RowWord{static_cast<std::uint32_t>(own.row)};
  args.row_ids[i] = own.row;
  if (!is_promoted) return;
  args.statuses[i] = KeyStatus::kFound;
  free_row(state, args.free_lists, own.before);
}

}  // namespace headway::embedding
