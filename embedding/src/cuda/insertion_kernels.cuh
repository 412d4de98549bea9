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
  RowWord** words;      ///< (keys) Of what is settled after it was claimed.

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
__device__ inline void claim_key(InsertionArgs const& args, std::uint32_t i, Key key, Hash hash, SlotCounts& counts) {
  auto status = KeyStatus::kNoRoom;
  RowWord* word = nullptr;
  while (true) {
    auto const place = find_place(args.index.walk(hash), key, LoadNewest());
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
    claim_key(args, i, key, hash, counts);
    return;
  }
  RowId const row = row_of(place.word);
  auto const status = touch_row(args, i, row);
  args.row_ids[i] = row;
  args.statuses[i] = status;
  args.words[i] = status == kToPromote ? place.address() : nullptr;
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

/// Fills a new row, a warp together.
__device__ inline void fill_row(InsertionArgs const& args, RowId id, Key key, std::uint32_t count) {
  std::uint32_t const lane = threadIdx.x % kWarp;
  if (args.fills_vectors) {
    for (std::uint32_t quad = lane; quad < args.rows.num_quads(); quad += kWarp) {
      args.rows.write(id, quad, args.initial_values.of(key, quad));
    }
  }
  float* const state = args.rows.state(id);
  for (std::uint32_t j = lane; j < args.rows.state_size; j += kWarp) state[j] = args.initial_state;
  if (lane != 0) return;
  args.rows.notes(id) = {.count = count, .step = args.step};
  if (args.rows.is_row_wise) args.rows.row_state(id) = args.initial_state;
}

/// One key of a batch while its warp settles it.
struct Newcomer {
  Key key{};
  RowId before = RowId::kNone, row = RowId::kNone;
  std::uint32_t count = 0;
};

__device__ inline Newcomer of_lane(Newcomer const& own, std::uint32_t lane) {
  auto const from = static_cast<int>(lane);
  return {.key = {.id = __shfl_sync(kAllLanes, own.key.id, from), .table = __shfl_sync(kAllLanes, own.key.table, from)},
          .before = RowId{__shfl_sync(kAllLanes, static_cast<std::uint32_t>(own.before), from)},
          .row = RowId{__shfl_sync(kAllLanes, static_cast<std::uint32_t>(own.row), from)},
          .count = __shfl_sync(kAllLanes, own.count, from)};
}

/// A key waits for a row that did not, or no longer.
__device__ inline void count_pending(TableState& state, bool is_new) {
  if (is_new) {
    atomicAdd(&state.num_pending, 1U);
  } else {
    atomicSub(&state.num_pending, 1U);
  }
}

// A warp looks at 32 keys. Those that get a row take it together, and then the whole warp fills one row after the
// other.
__global__ void __launch_bounds__(kBlockThreads) settle_insertion_kernel(__grid_constant__ InsertionArgs const args) {
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  RowWord* const word = i < args.keys.size() ? args.words[i] : nullptr;
  if (__ballot_sync(kAllLanes, word != nullptr) == 0) return;
  auto& state = *args.state;
  Newcomer own;
  bool gets_row = false, is_promoted = false, is_wanted_cold = false;
  if (word != nullptr) {
    auto const status = args.statuses[i];
    own = {.key = args.keys.key(i), .before = args.row_ids[i]};
    is_promoted = status == kToPromote;
    bool const is_new = *word == kClaimed;
    if (!is_promoted) {
      own.count = saturating_sum(is_new ? 0 : pending_count_of(*word), args.keys.count(i));
      gets_row = status == KeyStatus::kInserted;
      if (!gets_row) *word = pending_word(own.count);
      auto const* const crossing_counts = args.decisions.crossing_counts;
      is_wanted_cold = gets_row && args.is_cold(crossing_counts == nullptr ? own.count : crossing_counts[i]);
      if (gets_row != is_new) count_pending(state, is_new);
    }
  }
  bool const is_wanted_hot = is_promoted || (gets_row && !is_wanted_cold);
  RowId const hot = take_row(state, args.free_lists, is_wanted_hot, Precision::kFloat32);
  RowId const cold = take_row(state, args.free_lists, is_wanted_cold, Precision::kBfloat16);
  own.row = is_wanted_cold ? cold : hot;
  for (std::uint32_t left = __ballot_sync(kAllLanes, own.row != RowId::kNone); left != 0; left &= left - 1) {
    auto const one = of_lane(own, static_cast<std::uint32_t>(__ffs(static_cast<int>(left))) - 1);
    if (one.before == RowId::kNone) {
      fill_row(args, one.row, one.key, one.count);
    } else {
      copy_row(args.rows, one.before, one.row, one.key, args.step);
    }
  }
  if (own.row == RowId::kNone) return;
  *word = RowWord{static_cast<std::uint32_t>(own.row)};
  args.row_ids[i] = own.row;
  if (is_promoted) {
    args.statuses[i] = KeyStatus::kFound;
    free_row(state, args.free_lists, own.before);
    atomicSub(&state.num_cold, 1U);
    count_one(&state.statistics.promoted);
    return;
  }
  if (is_wanted_cold) count_one(&state.num_cold);
  count_one(&state.num_rows);
  count_one(&state.statistics.inserted);
}

}  // namespace headway::embedding
