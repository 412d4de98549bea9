// SPDX-License-Identifier: Apache-2.0

// Removal on the GPU: erase(), expiry (rows not looked up for time_to_live steps), and halve_counts(). Halving demotes
// float32 rows whose lookup count falls below hot_count: they move to bfloat16 rows, and become cold. Eviction is in
// cuda_table_eviction.cu; the erasure of all keys that match a predicate is in erasure.cuh.
//
// Erasing given keys takes one thread per key. It probes for the key and replaces its word by compare-and-swap, so of
// several threads with the same key only one erases it and gives the row back. Lookups report expired rows as absent.
// They are removed in two ways: a step sweeps one of the 64 stripes for each step that passed, and an insertion first
// removes the expired rows of its keys.
//
// Example: time_to_live 10, step 20, no row in use. A row looked up in step 9 is expired (more than 10 steps ago); one
//  of step 10 is not. From step 20 to step 23, begin_step() sweeps three stripes, so after 64 steps each stripe was
//  swept once.
//
// Invariants: a slot becomes kErased first and then, if its bucket has another empty slot, kEmpty. An empty slot ends
//  probes, so it may only appear where no probe ever went on. A row is given back exactly once.
// Complexity: one probe per erased key; a sweep reads one stripe, 1/64 of the key index.

#include "cuda/rows/row_moves.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "cuda/table/erasure.cuh"
#include "expect_batch.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <utility>

namespace headway::embedding {

namespace {

/// Frees a slot whose word the calling thread has already set to kErased, and counts that.
__device__ void empty_slot(WideBucket& bucket, std::size_t slot, std::uint32_t stripe, TableState& state) {
  bucket.words[slot] = word_without_key(bucket);
  atomicSub(&state.live[stripe], 1U);
  if (bucket.words[slot] == RowWord::kEmpty) atomicSub(&state.used[stripe], 1U);
}

/// Puts a row on the free list, and counts that.
__device__ void give_up_row(TableState& state, FreeLists const& lists, RowId row) {
  free_row(state, lists, row);
  atomicSub(&state.num_rows, 1U);
  if (precision_of(row) == Precision::kBfloat16) atomicSub(&state.num_cold, 1U);
}

/// Predicate of erasures: the key has a row, and it is expired.
struct IsExpired {
  RowsView rows;
  Expiry expiry;

  [[nodiscard]] __device__ bool is_idle() const { return false; }
  __device__ bool operator()(RowWord word) const { return is_row(word) && expiry(rows.metadata(row_of(word)).step); }
  __device__ bool operator()(Key /*key*/, RowWord word) const { return (*this)(word); }
};

/// Predicate of erasures: every key.
struct IsAny {
  __device__ bool operator()(RowWord /*word*/) const { return true; }
};

}  // namespace

template <class Goes>
void CudaTable::erase_keys_async(Keys const& keys, Goes goes, std::uint64_t TableStatistics::*counter,
                                 cudaStream_t stream) {
  ++generation_;
  rows_.grow_lists();
  for_each_async(
      keys.size(),
      [batch = view_of(keys), index = index(), lists = rows_.free_lists(), state = state_.data(), goes,
       counter = &(state_.data()->statistics.*counter)] __device__(std::uint64_t i) {
        if (i >= batch.size()) return;
        Key const key = batch.key(static_cast<std::uint32_t>(i));
        Hash const hash = hash_of(key);
        for (auto walk = index.walk(hash); !walk.is_over(); walk.go_on()) {
          auto const bucket = load_bucket(walk.bucket(), LoadNewest());
          int const slot = bucket.slot_of(key);
          if (slot < 0) {
            // A bucket with an empty slot ends the probe: the key is not in the table.
            if (bucket.has_empty()) return;
            continue;
          }
          RowWord const word = bucket.word(slot);
          if (!goes(word)) return;
          // If the key repeats in the batch, only the thread that wins the compare-and-swap erases it.
          auto* const at = reinterpret_cast<std::uint32_t*>(&walk.bucket()->words[static_cast<std::size_t>(slot)]);
          auto const before = static_cast<std::uint32_t>(word);
          if (atomicCAS(at, before, static_cast<std::uint32_t>(RowWord::kErased)) != before) return;
          empty_slot(*walk.bucket(), static_cast<std::size_t>(slot), index.stripe_of(hash), *state);
          if (is_pending(word)) {
            atomicSub(&state->num_pending, 1U);
            return;
          }
          give_up_row(*state, lists, row_of(word));
          count_one(counter);
          return;
        }
      },
      stream, "erase keys");
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
}

void CudaTable::erase(Keys const& keys) {
  expect_one_each(keys, keys.size(), "keys");
  Call const call(*this);
  if (keys.size() == 0) return;
  erase_keys_async(keys, IsAny{}, &TableStatistics::erased, call.stream());
  mirror_.record(state_.data(), 0, call.stream());
}

void CudaTable::begin_step(std::uint32_t step, std::uint32_t oldest_in_use) {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  expect_step(step_, step, oldest_in_use);
  auto const before = std::exchange(step_, step);
  oldest_in_use_ = oldest_in_use;
  bool const expires = options_.time_to_live > 0;
  // Asked once: a newer copy of the counters may arrive at any time.
  bool const may_be_too_many = num_rows_at_most() > options_.high_water;
  bool const evicts = options_.eviction != EvictionPolicy::kNone && (num_parts_left_ > 0 || may_be_too_many);
  bool const forgets = num_pending_at_most() > options_.max_pending;
  if (expires) sweep_expired_async(before, stream);
  if (evicts) evict_in_step_async(may_be_too_many, stream);
  if (forgets) forget_pending_async(stream);
  if (expires || evicts || forgets) mirror_.record(state_.data(), 0, stream);
}

void CudaTable::resume_step(std::uint32_t step, std::uint32_t oldest_in_use) {
  Call const call(*this);
  expect_step(step_, step, oldest_in_use);
  step_ = step;
  oldest_in_use_ = oldest_in_use;
}

void CudaTable::sweep_expired_async(std::uint32_t step_before, cudaStream_t stream) {
  auto const sweep = sweep_of(step_before, step_, stripes_.size());
  IsExpired const is_expired{rows_.view(), expiry()};
  std::size_t const num_to_last = std::min(sweep.count, stripes_.size() - sweep.first);
  erase_if(stripes(sweep.first, num_to_last), is_expired, &TableStatistics::expired, stream);
  if (num_to_last == sweep.count) return;
  erase_if(stripes(0, sweep.count - num_to_last), is_expired, &TableStatistics::expired, stream);
}

void CudaTable::remove_expired_async(Keys const& keys, cudaStream_t stream) {
  erase_keys_async(keys, IsExpired{rows_.view(), expiry()}, &TableStatistics::expired, stream);
}

namespace {

struct HalvingArgs {
  RowsView rows;
  FreeLists lists;
  TableState* state;
  StripeView const* stripes;
  std::uint32_t step, oldest_in_use, hot_count;
};

// blockIdx.y is the stripe. A warp halves the counts of 32 slots, one per lane. Then its lanes together copy each row
// that becomes cold to a bfloat16 row.
__global__ void __launch_bounds__(kBlockThreads) halve_counts_kernel(__grid_constant__ HalvingArgs const args) {
  StripeView const stripe = args.stripes[blockIdx.y];
  std::uint64_t const i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, index = i / WideBucket::kNumSlots;
  auto& bucket = stripe.buckets[index & stripe.mask];
  std::size_t const slot = i % WideBucket::kNumSlots;
  RowWord const word = index <= stripe.mask ? bucket.words[slot] : RowWord::kEmpty;
  bool becomes_cold = false;
  if (is_pending(word)) bucket.words[slot] = pending_word(pending_count_of(word) / 2);
  if (is_row(word)) {
    // Rows in use keep their precision: a backward pass still holds the row's id, and demotion changes it.
    auto& metadata = args.rows.metadata(row_of(word));
    metadata.count /= 2;
    becomes_cold = precision_of(row_of(word)) == Precision::kFloat32 && metadata.count < args.hot_count &&
                   metadata.step < args.oldest_in_use;
  }
  RowId const to = take_row(*args.state, args.lists, becomes_cold, Precision::kBfloat16);
  // The warp visits the lanes that demote a row one by one, and all 32 lanes copy that row's columns together.
  for (std::uint32_t left = __ballot_sync(kAllLanes, becomes_cold); left != 0; left &= left - 1) {
    int const from = __ffs(static_cast<int>(left)) - 1;
    RowId const before{__shfl_sync(kAllLanes, static_cast<std::uint32_t>(word), from)};
    RowId const after{__shfl_sync(kAllLanes, static_cast<std::uint32_t>(to), from)};
    auto const own = becomes_cold ? bucket.key(slot) : Key{};
    Key const key{.id = __shfl_sync(kAllLanes, own.id, from), .table = __shfl_sync(kAllLanes, own.table, from)};
    copy_row(args.rows, before, after, key, args.step);
  }
  if (!becomes_cold) return;
  bucket.words[slot] = RowWord{static_cast<std::uint32_t>(to)};
  free_row(*args.state, args.lists, row_of(word));
  count_one(&args.state->num_cold);
  count_one(&args.state->statistics.demoted);
}

}  // namespace

void CudaTable::halve_counts() {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  std::size_t num_hot = 0;
  if (options_.hot_count > 0) {
    auto const& state = wait(stream);
    num_hot = state.num_rows - state.num_cold;
    // Every hot row may become cold in this call, so memory for all of them is mapped before the kernel runs.
    rows_.grow(Precision::kBfloat16, state.free_rows[1].next + num_hot);
    rows_.grow_lists();
    ++generation_;
  }
  auto const range = all_stripes();
  dim3 const grid(num_blocks(range.most_buckets * WideBucket::kNumSlots), range.count);
  halve_counts_kernel<<<grid, kBlockThreads, 0, stream>>>({.rows = rows_.view(),
                                                           .lists = rows_.free_lists(),
                                                           .state = state_.data(),
                                                           .stripes = range.views,
                                                           .step = step_,
                                                           .oldest_in_use = oldest_in_use_,
                                                           .hot_count = options_.hot_count});
  base::check_launch("halve_counts_kernel");
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
  mirror_.record(state_.data(), num_hot, stream);  // Each hot row may have taken a new bfloat16 row.
}

}  // namespace headway::embedding
